"""The models of a comparison evaluated one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fusion_eval.errors import DataError, Fault, FusionEvalError
from fusion_eval.evaluation.columns import rebuilt
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.loop import Batches, evaluate_rows
from fusion_eval.evaluation.measure import check_battery, counted_rows, measure
from fusion_eval.evaluation.replicas import rows_of_replicas
from fusion_eval.evaluation.rows import Rows
from fusion_eval.evaluation.task_step import TaskStep
from fusion_eval.forms.measured_forms import forms_of
from fusion_eval.program.compare.arguments import Model, loaded
from fusion_eval.program.compare.plan import Plan
from fusion_eval.program.compare.result import Run
from fusion_eval.program.compare.row_cache import RowCache, model_key
from fusion_eval.taskpool.measurement import Measurement


@dataclass(slots=True)
class RowSource:
    """Models' rows: those kept of an earlier evaluation, or new ones. Rank zero has them, other ranks work only.

    The first model sees one batch first, so that metrics which cannot take its outputs are found early; later models
    must have been given the first one's items.
    """

    plan: Plan
    progress: bool
    cache: RowCache | None
    first: tuple[int, Any] | None = None
    probed: bool = False

    def __call__(self, model: Model) -> Rows | None:
        """A model's rows; None on ranks other than zero.

        Raises:
            FusionEvalError: what the model, the data or the metrics cannot do.
        """
        rows = self._kept_or_new(model)
        self.plan.ranks.on_zero(lambda: self._check(rows))
        return rows

    def _check(self, rows: Rows | None) -> None:
        assert rows is not None
        self.first = self.first or (len(rows), rebuilt(rows.columns, "target"))
        _check_same_items(*self.first, rows)

    def _kept_or_new(self, model: Model) -> Rows | None:
        ranks, key = self.plan.ranks, "" if self.cache is None else model_key(model)
        kept = self.cache.read(key) if self.cache is not None and key and ranks.is_zero else None
        if ranks.broadcast(kept is not None):
            return kept
        rows = _evaluate(loaded(model), self.plan, self.progress, not self.probed)
        self.probed = True
        ranks.on_zero(lambda: self._keep(key, rows))
        return rows

    def _keep(self, key: str, rows: Rows | None) -> None:
        if self.cache is not None and key and rows is not None:
            self.cache.write(key, rows)


def evaluated(rows_of: RowSource, drop: bool) -> tuple[dict[str, list[Run]], list[str]]:
    """Every method's runs, which rank zero has, and a warning per method that was dropped."""
    found: dict[str, list[Run]] = {}
    dropped: list[str] = []
    plan = rows_of.plan
    for name, models in plan.runs.items():
        runs: list[Run] = []
        try:
            for i in range(len(models)):
                who = f"method '{name}'" + (f", run {i}" if len(models) > 1 else "")
                run = _told_as(who, rows_of, models[i])
                runs += [] if run is None else [run]
        except FusionEvalError as error:
            last = name == list(plan.runs)[-1] and not found
            if not drop or last:
                raise
            dropped.append(f"method '{name}' is left out: {error}")
            continue
        found[name] = runs
    return found, dropped


def _told_as(who: str, rows_of: RowSource, model: Model) -> Run | None:
    """One run; its faults say which."""
    plan = rows_of.plan
    try:
        rows = rows_of(model)
        return plan.ranks.on_zero(lambda: _run(plan.measurement, rows))
    except FusionEvalError as error:
        raise type(error)(*(replace(f, where=f"{who}, {f.where}") for f in error.faults)) from error


def _evaluate(model: nn.Module, plan: Plan, progress: bool, probe: bool) -> Rows | None:
    chosen, ranks = plan.measurement, plan.ranks

    def new_step() -> TaskStep:
        return TaskStep(chosen.name, chosen.task, chosen.make())

    home = next((p.device for p in [*model.parameters(), *model.buffers()]), torch.device("cpu"))
    device = plan.places[0] if plan.places else home if ranks.fabric is None else ranks.device
    try:
        model.to(device)
        if probe:
            _probe(model, plan, new_step(), Devices(device))
        if len(plan.places) > 1:
            return rows_of_replicas(model, plan.places, plan.deal, new_step, progress=progress)
        loader = plan.deal(ranks.rank, ranks.world) if ranks.world > 1 else plan.loader
        return evaluate_rows(model, loader, new_step(), replace(ranks, device=device), progress)
    finally:
        if device != home:
            model.to(home)


def _probe(model: nn.Module, plan: Plan, step: TaskStep, devices: Devices) -> None:
    """One batch through model and metrics, so that what does not fit is found before everything is evaluated."""
    rows = evaluate_rows(model, _FirstBatch(plan.loader), step, replace(devices, fabric=plan.ranks.fabric), False)
    assert rows is not None
    check_battery(rows, step.task, step.battery, step.where)


class _FirstBatch:
    """The first batch of a loader."""

    items: int | None = None

    def __init__(self, loader: Batches) -> None:
        self.name, self.loader = loader.name, loader

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Any:
        for ids, batch in self.loader:
            yield ids, batch
            return


def _check_same_items(items: int, mine: Any, rows: Rows) -> None:
    """Paired tests need the same items in the same order."""
    theirs = rebuilt(rows.columns, "target")
    same = items == len(rows)
    if same and isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        same = torch.equal(mine, theirs)
    if not same:
        do = "Give a DataLoader over a data set, or a list of batches, instead of data that change from pass to pass."
        raise DataError(Fault("data", "other items, or another order, than in the first pass", "the same items", do))


def _run(chosen: Measurement, rows: Rows | None) -> Run:
    assert rows is not None
    measured = measure(rows, chosen.task, chosen.make(), chosen.where)
    counted, _ = counted_rows(rows)
    forms = forms_of(rows, measured, chosen.task, chosen.make())
    return Run(measured, forms, counted.columns.get("cluster"), counted.ids)
