"""Loggers that speak once, however many processes run."""

from __future__ import annotations

import logging
import os
import sys

_VARIABLES = ("RANK", "SLURM_PROCID", "LOCAL_RANK")


def rank() -> int:
    """This process's rank: of the process group if one is up, else of what torchrun, SLURM or Fabric set; else 0."""
    distributed = sys.modules.get("torch.distributed")  # loading torch only to learn of rank 0 would cost seconds
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return next((int(os.environ[name]) for name in _VARIABLES if os.environ.get(name, "").isdigit()), 0)


class _RankZeroFilter(logging.Filter):
    """Lets records pass on rank zero."""

    def filter(self, record: logging.LogRecord) -> bool:
        return rank() == 0


def get_rankzero_logger(name: str) -> logging.Logger:
    """The logger of that name, silent on every rank but zero."""
    logger = logging.getLogger(name)
    if not any(isinstance(present, _RankZeroFilter) for present in logger.filters):
        logger.addFilter(_RankZeroFilter())
    return logger
