"""The main program: check, open the data, merge, save, evaluate base, experts and merge, report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from fusion_eval.errors import ConfigError, Fault, FusionEvalError, listed
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.engine import Loop, MergedCheckpoint
from fusion_eval.merge.per_task import TaskCheckpoints
from fusion_eval.merge.sinks import SHARD_BYTES
from fusion_eval.merge.watched import watched
from fusion_eval.method.base_method import Method
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.modelpool.saving import MergeRecord
from fusion_eval.program.base_program import BaseProgram, Subject
from fusion_eval.program.merged import TaskModels
from fusion_eval.program.recalibrate import setting_faults
from fusion_eval.report.report import Report
from fusion_eval.report.values import ModelResult
from fusion_eval.taskpool.base_pool import BaseTaskPool

Experts = Literal["own", "all", "none"]


class FusionProgram(BaseProgram):
    """Merge a pool's models and evaluate the result beside them.

    Args:
        method: how to merge.
        modelpool: the models.
        taskpool: the tasks.
        experts: evaluate each expert on the task it is named after ("own"; on all tasks when it is named after
            none), on "all" tasks, or "none".
        base: evaluate the base model too.
        save: folder for the merged model, or None.
        shard_bytes: the size that a file of it may have.
        recalibrate: data on which running statistics of the merge are estimated anew, see `recalibrated`, or None.
        **kwargs: see `BaseProgram`.
    """

    def __init__(
        self,
        method: Method,
        modelpool: BaseModelPool,
        taskpool: BaseTaskPool,
        *,
        experts: Experts = "own",
        base: bool = True,
        save: str | Path | None = None,
        shard_bytes: int = SHARD_BYTES,
        recalibrate: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(modelpool, taskpool, **kwargs)
        self.shard_bytes, self.recalibrate = shard_bytes, recalibrate
        self.method, self.experts, self.base = method, experts, base
        self.save = None if save is None else Path(save)

    def run(self) -> Report:
        """Check, merge, save, evaluate and report; what was measured goes into the saved model's card too."""
        report = super().run()
        if self.save is not None and self.devices.is_zero and report.status == "complete":
            from fusion_eval.modelpool.saving import note_evaluation
            from fusion_eval.report.markdown import main_table

            if table := main_table(report):
                note_evaluation(self.save, table)
        return report

    def faults(self) -> list[Fault]:
        """What the method lacks, an unknown choice of experts, a place for the merge that is taken."""
        try:
            found = self.method.faults(self.modelpool)
        except FusionEvalError as error:  # a pool that cannot be opened, which the pool's own check tells too
            found = list(error.faults)
        if "merged" in self.modelpool.names:
            found.append(
                Fault("modelpool.experts.merged", "'merged' is what the report calls the merge", "another name")
            )
        if self.experts not in ("own", "all", "none"):
            found.append(Fault("program.experts", f"'{self.experts}'", "own, all or none"))
        found += setting_faults(self.recalibrate)
        if self.recalibrate is not None and not self.modelpool.runnable:
            found.append(Fault("program.recalibrate", "models cannot be run", "a pool with an architecture"))
        if self.shard_bytes < 1:
            found.append(Fault("program.shard_bytes", f"{self.shard_bytes}", "at least 1"))
        if self.save is not None and self.save.is_dir() and any(self.save.iterdir()):
            found.append(Fault("save", f"the folder {self.save} is not empty", do="Choose a new folder."))
        elif self.save is not None and self.save.exists() and not self.save.is_dir():
            found.append(Fault("save", f"{self.save} is a file", "a folder"))
        return found

    def work(self) -> Iterator[ModelResult]:
        """Base, experts, then the merge; the merge is made first, so that its faults come first."""
        for name in self.modelpool.names:
            self.note_input(name)
        with self.timed("merge"):
            merged = self._merged_model()
        if self.base and self.modelpool.base_name is not None:
            yield self.evaluate_stored(self.modelpool.base_name, "base")
        if self.experts != "none":
            for name in self.modelpool.expert_names:
                yield self.evaluate_stored(name, "expert", self.own_tasks(name) if self.experts == "own" else None)
        yield self.evaluate_model(merged, "merged", "merged")

    def _merged_model(self) -> Subject:
        merged = self.method.apply(self.modelpool, self.fabric_if_needed(), seed=self.seed)
        if isinstance(merged, nn.Module):
            if self.save is not None:
                raise ConfigError(
                    Fault(
                        "save",
                        f"{type(self.method).__name__} gives a network, not weights of the pool's architecture",
                        do="Leave save out and evaluate it in memory.",
                    )
                )
            return merged.eval()
        if not isinstance(merged, Checkpoint):
            return TaskModels(merged if self.save is None else self._saved_tasks(merged, self.save), self.modelpool)
        weights = merged if self.recalibrate is None else self._recalibrated(merged, self.recalibrate)
        if self.save is not None:
            subject = self.subject_of(self._saved(weights, self.save))
        elif self.modelpool.runnable:
            with watched(weights, shown=self._bars()) as shown:
                subject = self.subject_of(shown)
        else:
            subject = weights
        self._note_tensors(merged)
        return subject

    def _recalibrated(self, merged: Checkpoint, setting: Mapping[str, Any]) -> Checkpoint:
        from fusion_eval.program.recalibrate import recalibrated

        self.notes.append("running statistics were estimated anew on the data of program.recalibrate: no recipe does")
        return recalibrated(merged, self.modelpool.build(merged), setting, self.devices.device)

    def _bars(self) -> bool:
        """Whether people see progress bars: on rank zero, where the error stream is a terminal."""
        return self.progress and self.devices.is_zero and sys.stderr.isatty()

    def _note_tensors(self, merged: Checkpoint) -> None:
        """Say in the report which tensors were copied though the models differ in them."""
        found = dict(merged.notes) if isinstance(merged, MergedCheckpoint) else {}
        for more in self.devices.gather(found):
            found |= more
        if found:
            names = list(found)
            self.notes.append(f"{len(names)} tensors ({listed(names)}): {found[names[0]]}")

    def _record(self) -> MergeRecord:
        """How the merge is made: it is written beside it."""
        from fusion_eval.program.merge_recipe import own_recipe

        recipe = self.method.recipe(self.seed) or own_recipe(self.settings, self.seed, self._inputs)
        return MergeRecord(type(self.method).__name__, recipe, self._inputs)

    def _saved(self, merged: Checkpoint, folder: Path) -> Checkpoint:
        """The merge on disk: computed once, by all ranks, and evaluated from what was written."""
        from fusion_eval.merge.files import open_checkpoint

        record = self.devices.broadcast(self._record())
        ranks = self.devices.world if merged.key() is not None else 1  # what has no key cannot be shared
        with self.timed("save"):
            if self.devices.rank < ranks:
                details = {"rank": self.devices.rank, "world": ranks, "shard_bytes": self.shard_bytes}
                loop = Loop(progress=self._bars())
                self.modelpool.save(merged, folder, record=record, loop=loop, **details)
            self.devices.barrier()
        self.notes.append(f"the merged model was saved in {folder}")
        return open_checkpoint(folder)

    def _saved_tasks(self, merged: TaskCheckpoints, folder: Path) -> TaskCheckpoints:
        """The tasks' models on disk: encoded once, evaluated from what was written."""
        record, sources = self._record(), {name: found["source"] for name, found in self._inputs.items()}
        with self.timed("save"):
            if self.devices.is_zero:
                merged.save(folder, lambda partial: record.describe(partial, sources, "a model for each task"))
            self.devices.barrier()
        self.notes.append(f"the shared part and the tasks' own parts were saved in {folder}")
        return TaskCheckpoints.load(folder, merged.base)
