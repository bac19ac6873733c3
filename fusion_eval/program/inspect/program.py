"""Look at a pool before merging it: how its task vectors lie to each other, and which methods that speaks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

from torch import nn

from fusion_eval.errors import AlignmentError, ConfigError, Fault, FusionEvalError, listed
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.diagnosis_advice import findings
from fusion_eval.merge.diagnosis_matrix import DIRECTIONS
from fusion_eval.merge.diagnosis_pool import Diagnosis, Look, Survey, diagnosis, survey
from fusion_eval.merge.engine import AlignedPool, alignment_faults
from fusion_eval.merge.views import Composed, Part
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.program.base_program import BaseProgram
from fusion_eval.program.inspect.folders import folder_differences
from fusion_eval.program.inspect.inspection import Inspection
from fusion_eval.program.inspect.report import InspectReport
from fusion_eval.report.values import ModelResult
from fusion_eval.taskpool.base_pool import BaseTaskPool


@final
class InspectProgram(BaseProgram):
    """Diagnose a pool, one parameter at a time; nothing is merged, no model is built, no data is opened.

    Args:
        modelpool: the models; they need not align: of models that differ, what all share is compared.
        entries: of a larger parameter look at about so many entries only; None looks at all.
        exact_side: matrices up to this smaller side are decomposed whole.
        directions: how many leading singular directions of each task vector are compared.
        matrices: whether to look at singular values at all.
        picture: whether to draw a picture.
        seed: of the sketches of large matrices.
        output, dry_run, hash_inputs, progress, config, overrides: see `BaseProgram`.
    """

    given_by_launch: ClassVar[tuple[str, ...]] = ("modelpool",)

    def __init__(
        self,
        modelpool: BaseModelPool,
        *,
        entries: int | None = None,
        exact_side: int = 1024,
        directions: int = DIRECTIONS,
        matrices: bool = True,
        picture: bool = True,
        output: str | Path | None = None,
        seed: int = 0,
        dry_run: bool = False,
        hash_inputs: bool = True,
        progress: bool = True,
        config: Mapping[str, Any] | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        super().__init__(
            modelpool,
            _NoTasks(),
            output=output,
            seed=seed,
            dry_run=dry_run,
            hash_inputs=hash_inputs,
            progress=progress,
            config=config,
            overrides=overrides,
        )
        self.look, self.picture = Look(entries, exact_side, directions, matrices), picture
        self.inspection: Inspection | None = None

    def faults(self) -> list[Fault]:
        """Numbers that are too small, and models that cannot be opened."""
        least = {"entries": self.look.entries, "exact_side": self.look.exact_side, "directions": self.look.directions}
        found = [
            Fault(f"program.{name}", str(value), "at least 1")
            for name, value in least.items()
            if value is not None and value < 1
        ]
        for name in self.modelpool.names:
            try:
                self.modelpool.checkpoint(name)
            except FusionEvalError as error:
                found.extend(error.faults)
        return found

    def plan(self) -> str:
        """What a run that is no dry run would look at."""
        names = self.modelpool.names
        return f"dry run: all {len(names)} models can be opened ({listed(names)}); no weight was read"

    def work(self) -> Iterator[ModelResult]:
        """Nothing is evaluated; the inspection is in the report."""
        for name in self.modelpool.names:
            self.note_input(name)
        models = {name: self.modelpool.checkpoint(name) for name in self.modelpool.names}
        with self.timed("inspect"):
            pool, misaligned = self._aligned(models)
            found = self._diagnosis(pool)
            if found is not None:
                self.inspection = Inspection(found, findings(found), misaligned, tuple(folder_differences(models)))
        yield from ()

    def _prepare(self) -> None:
        """Check; models that do not align are a result here, not a fault."""
        with self.timed("check"):
            if found := self.faults():
                raise ConfigError(*dict.fromkeys(found))

    def _aligned(self, models: Mapping[str, Checkpoint]) -> tuple[AlignedPool, tuple[str, ...]]:
        """The models side by side, and what is wrong with that; of those that differ, what all share."""
        experts = dict(models)
        base = None if self.modelpool.base_name is None else experts.pop(self.modelpool.base_name)
        faults = alignment_faults(base, experts)
        if not faults:
            return AlignedPool(base, experts, self.seed), ()
        first, *others = models.values()
        kept = [n for n in first if all(n in other and other.spec(n).shape == first.spec(n).shape for other in others)]
        if not kept:
            raise AlignmentError(*faults)
        shared = {name: _only(model, kept) for name, model in models.items()}
        base = None if self.modelpool.base_name is None else shared.pop(self.modelpool.base_name)
        rest = f"the {len(kept)} of {len(first)} tensors that all models share are compared"
        return AlignedPool(base, shared, self.seed), (*(str(fault) for fault in faults), rest)

    def _diagnosis(self, pool: AlignedPool) -> Diagnosis | None:
        """The diagnosis on rank zero; ranks look at disjoint parameters."""
        from tqdm import tqdm

        names = list(pool.reference)[self.devices.rank :: self.devices.world]
        seen = Survey()
        shown = self.progress and self.devices.is_zero
        for state in tqdm(survey(pool, names, self.look), "inspect", len(names), leave=False, disable=not shown):
            seen = state
        surveys = self.devices.gather(seen)
        return diagnosis(pool, surveys) if self.devices.is_zero else None

    def _report(
        self, status: str, results: Sequence[ModelResult], start: float, error: str | None = None
    ) -> InspectReport:
        plain = super()._report(status, results, start, error)
        circumstances = (plain.receipt, plain.inputs, plain.seconds, plain.notes, plain.error)
        return InspectReport(status, (), *circumstances, inspection=self.inspection, picture=self.picture)


class _NoTasks(BaseTaskPool):
    """A task pool without tasks."""

    def evaluate(self, model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Nothing."""
        return {}


def _only(model: Checkpoint, names: Sequence[str]) -> Checkpoint:
    return Composed({name: Part(model, name) for name in names}, model.source)
