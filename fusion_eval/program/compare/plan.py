"""What a comparison will do, checked before the first forward pass: methods, task, metrics, data, devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from fusion_eval.errors import ConfigError, DataError, Fault, FusionEvalError
from fusion_eval.evaluation.columns import length_of
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.given import as_loader
from fusion_eval.evaluation.loop import Batches
from fusion_eval.evaluation.replicas import Deal
from fusion_eval.program.compare.arguments import (
    Model,
    cluster_faults,
    faults_of,
    places_of,
    ranks_of,
    runs_of,
    seed_faults,
)
from fusion_eval.stats.settings import Settings, SettingsArguments, settings_of
from fusion_eval.task.inputs import BatchParts, split_batch
from fusion_eval.task.task import BatchFields
from fusion_eval.taskpool.measurement import Measurement, MetricArguments, check_targets, measurement, task_of


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of `compare` that choose who is compared, on what and where."""

    methods: Any
    data: Any
    measured: MetricArguments
    seeds: Any = None
    clusters: Any = None
    device: Any = None
    fabric: Any = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked comparison.

    Args:
        runs: models per method.
        loader: all batches.
        deal: the batches of one share of several.
        measurement: what is measured.
        seeds: the runs' names.
        places: devices of this process that share the batches; none to leave models where they are.
        ranks: the processes that share the batches.
    """

    runs: Mapping[str, Sequence[Model]]
    loader: Batches
    deal: Deal
    measurement: Measurement
    seeds: tuple[int, ...]
    places: tuple[torch.device, ...] = ()
    ranks: Devices = field(default_factory=Devices)


def planned(asked: Asked, arguments: SettingsArguments) -> Plan:
    """The plan of a comparison.

    Raises:
        ConfigError: everything that is wrong with the arguments.
    """
    faults: list[Fault] = []
    given = asked.measured
    runs = runs_of(asked.methods, faults)
    settings: Settings | None = faults_of(lambda: settings_of(arguments), faults)
    places, ranks = places_of(asked.device, asked.fabric, faults), ranks_of(asked.fabric, faults)
    task = faults_of(lambda: task_of(given.task), faults)
    fields = given.fields if given.fields is not None or task is None else task.fields
    collate = None if task is None else task.collate
    deal = partial(_dealt, given.name, asked.data, fields, collate)
    loader = faults_of(lambda: deal(0, 1), faults)
    count = max((len(models) for models in runs.values()), default=0)
    faults += seed_faults(asked.seeds, count)
    parts = None if loader is None else faults_of(lambda: _first_parts(loader, fields), faults)
    chosen = None
    if task is not None:
        chosen = faults_of(lambda: measurement(given, None if parts is None else parts.target), faults)
    if chosen is not None and parts is not None:
        faults_of(lambda: check_targets(chosen, parts.target), faults)
    if settings is not None:
        faults += settings.reference_faults(list(runs))
        items = None if loader is None else loader.items
        faults += cluster_faults(settings, asked.clusters, items, {} if parts is None else parts.extras)
    if faults or loader is None or chosen is None:
        raise ConfigError(*faults)
    seeds = tuple(asked.seeds) if asked.seeds is not None else tuple(range(count))
    return Plan(runs, loader, deal, chosen, seeds, places, ranks)


def _dealt(name: str, data: Any, fields: BatchFields | None, collate: Any, share: int, shares: int) -> Batches:
    return as_loader(name, data, fields, collate=collate, rank=share, world=shares)


def _first_parts(loader: Batches, fields: BatchFields | None) -> BatchParts:
    try:
        first = next(iter(loader), None)
    except FusionEvalError:
        raise
    except Exception as error:
        found = f"reading failed with {type(error).__name__}: {' '.join(str(error).split())}"
        do = "Set HYDRA_FULL_ERROR=1 to see the traceback."
        raise DataError(Fault("data, first batch", found, do=do)) from error
    if first is None:
        raise DataError(Fault("data", "no batches", "at least one", "Check the data set's path and split."))
    parts = split_batch(first[1], fields, "data, first batch")
    if length_of(parts.inputs) == 0:
        raise DataError(Fault("data, first batch", "no items", "at least one"))
    return parts
