"""The embedded pool: an encoder of handwritten digits, fine-tuned on eight views of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from fusion_eval.assets import digits
from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.modelpool.checkpoint_pool import ArchitecturePool


@final
class DigitsPool(ArchitecturePool):
    """The packaged base, experts and heads of the digits benchmark; needs no network and no download.

    Args:
        tasks: the views whose experts take part, by default all eight.

    Raises:
        ConfigError: listing the views that do not exist.
    """

    def __init__(self, tasks: Sequence[str] | None = None, **kwargs: Any) -> None:
        known = tuple(digits.VIEWS)
        chosen = known if tasks is None else tuple(tasks)
        faults = [
            Fault(
                "modelpool.tasks", f"no view '{task}'", f"one of {listed(known, len(known))}", did_you_mean(task, known)
            )
            for task in chosen
            if task not in known
        ]
        if faults:
            raise ConfigError(*faults)
        super().__init__(
            digits.checkpoint_path("base"),
            {task: digits.checkpoint_path(task) for task in chosen},
            skeleton=digits.DigitsEncoder,
            heads=digits.FOLDER / digits.HEADS_FILE,
            **kwargs,
        )

    def open_source(self, source: Any, name: str) -> Checkpoint:
        """The packaged file."""
        return open_checkpoint(source)
