"""What programs share: components that are checked before work starts, models evaluated one at a time, a report."""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from fusion_eval.errors import ConfigError, Fault, FusionEvalError, listed
from fusion_eval.evaluation.devices import Devices
from fusion_eval.log import get_rankzero_logger
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.mixins import BaseYAMLSerializable, LightningFabricMixin
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.report.files import held
from fusion_eval.report.receipt import receipt
from fusion_eval.report.report import Report
from fusion_eval.report.values import ModelResult
from fusion_eval.taskpool.base_pool import BaseTaskPool

log = get_rankzero_logger(__name__)

Subject = nn.Module | Mapping[str, nn.Module] | Checkpoint
"""What is evaluated: a model, a model per task, or weights of which a task pool only counts the parameters."""


class BaseProgram(LightningFabricMixin, BaseYAMLSerializable):
    """A program over a model pool and a task pool.

    Args:
        modelpool: the models.
        taskpool: the tasks.
        output: folder of the report, or None to write nothing.
        seed: the run's seed.
        limit: evaluate only the first items of each task.
        fast_dev_run: evaluate one batch of each task.
        dry_run: check everything and open the data, then stop.
        hash_inputs: fingerprint every checkpoint that is read, for the report.
        keep_items: write per-item predictions beside the report.
        progress: show progress bars on rank zero.
        config: the run's plain configuration, for the report.
        overrides: the run's command-line overrides, for the report.
    """

    _config_key = "program"
    given_by_launch: ClassVar[tuple[str, ...]] = ("method", "modelpool", "taskpool")
    """Constructor arguments that are groups of their own in the configuration."""

    def __init__(
        self,
        modelpool: BaseModelPool,
        taskpool: BaseTaskPool,
        *,
        output: str | Path | None = None,
        seed: int = 0,
        limit: int | None = None,
        fast_dev_run: bool = False,
        dry_run: bool = False,
        hash_inputs: bool = True,
        keep_items: bool = True,
        progress: bool = True,
        config: Mapping[str, Any] | None = None,
        overrides: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.modelpool, self.taskpool = modelpool, taskpool
        self.output = None if output is None else Path(output)
        self.seed, self.limit, self.fast_dev_run, self.dry_run = seed, limit, fast_dev_run, dry_run
        self.hash_inputs, self.keep_items, self.progress = hash_inputs, keep_items, progress
        self.settings, self.overrides = dict(config or {}), tuple(overrides)
        self.devices = Devices()
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []
        self._inputs: dict[str, dict[str, Any]] = {}

    @abstractmethod
    def work(self) -> Iterator[ModelResult]:
        """The results, in the order of the report."""

    def faults(self) -> list[Fault]:
        """What is wrong with the components, found before a weight is read."""
        return []

    def run(self) -> Report:
        """Check, open the data, work, and write the report; a failed run leaves a report of its failure.

        Raises:
            FusionEvalError: what the user can put right; all faults of the check in one ConfigError.
        """
        if self.output is None or not self.devices.is_zero:
            return self._run()
        if faults := self._output_faults():
            raise ConfigError(*faults)
        with held(self.output):
            return self._run()

    def _run(self) -> Report:
        start = time.perf_counter()
        results: list[ModelResult] = []
        try:
            self._prepare()
            if self.dry_run:
                self.notes.append(self.plan())
            else:
                self._clear_items()
                for result in self.work():
                    results.append(result)
                    self._write(self._report("running", results, start))
        except Exception as error:
            self._write(self._report("failed", results, start, f"{type(error).__name__}: {error}"))
            raise
        report = self._report("dry run" if self.dry_run else "complete", results, start)
        self._write(report)
        return report

    def plan(self) -> str:
        """What a run that is no dry run would work on."""
        tasks = getattr(self.taskpool, "task_names", ())
        return (
            f"dry run: every target, model and data set can be had: {len(self.modelpool.names)} models "
            f"({listed(self.modelpool.names)}), {len(tasks)} tasks ({listed(tasks)}); nothing was merged or evaluated"
        )

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent inside to a phase of the report."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def evaluate_model(self, model: Subject, name: str, role: str, tasks: Sequence[str] | None = None) -> ModelResult:
        """One model's results; its memory is the caller's to free."""
        with self.timed("evaluate"):
            result = self.taskpool.results(model, name, role, tasks)
        if self.keep_items and self.output is not None and self.devices.is_zero:
            from fusion_eval.report.items import write_items

            write_items(self.output / "items", result)
        return result

    def evaluate_stored(self, name: str, role: str, tasks: Sequence[str] | None = None) -> ModelResult:
        """Load a model of the pool, evaluate it and let it go."""
        self.note_input(name)
        with self.timed("load"):
            model = self.modelpool.load(name) if self.modelpool.runnable else self.modelpool.checkpoint(name)
        return self.evaluate_model(model, name, role, tasks)  # and let go: no other reference is kept

    def subject_of(self, checkpoint: Checkpoint) -> Subject:
        """What the task pool is given: a model with these weights, or the weights where no model can be built."""
        return self.modelpool.build(checkpoint) if self.modelpool.runnable else checkpoint

    def note_input(self, name: str) -> None:
        """Put a model's source and fingerprint into the report."""
        if name in self._inputs:
            return
        checkpoint = self.modelpool.checkpoint(name)
        self._inputs[name] = {"source": checkpoint.source}
        if self.hash_inputs and self.devices.is_zero:
            with self.timed("hash inputs"):
                self._inputs[name]["fingerprint"] = checkpoint.fingerprint()

    def own_tasks(self, expert: str) -> Sequence[str] | None:
        """The task that an expert is named after, or None for all tasks."""
        return (expert,) if expert in getattr(self.taskpool, "task_names", ()) else None

    def _prepare(self) -> None:
        with self.timed("check"):
            found = [
                *self._skeleton_faults(),
                *self.modelpool.faults(),
                *self.taskpool.faults(),
                *self.faults(),
            ]
            if found:
                raise ConfigError(*dict.fromkeys(found))
            self.notes.extend(self.modelpool.notes())
        with self.timed("open data"):
            self.taskpool.restrict(self.limit, self.fast_dev_run)
            self.taskpool._program = self
            self.taskpool.progress = self.taskpool.progress and self.progress
            self.taskpool.use_heads(self.modelpool.head)
            self.taskpool.setup()

    def _skeleton_faults(self) -> list[Fault]:
        if self.modelpool.runnable or self.taskpool.counts_only:
            return []
        do = "Give a node such as {_target_: torchvision.models.resnet18}, or merge and save only: taskpool=dummy."
        return [Fault("modelpool.skeleton", "none, so no model can be run", "an architecture", do)]

    def _output_faults(self) -> list[Fault]:
        """Whether the report's folder can be written, found before anything is computed."""
        assert self.output is not None
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.output):
                return []
        except OSError as error:
            return [Fault("output", f"{self.output} cannot be written ({error.strerror})", do="Choose another folder.")]

    def _clear_items(self) -> None:
        """Remove predictions of an earlier run with the same output."""
        if self.output is not None and self.devices.is_zero:
            shutil.rmtree(self.output / "items", ignore_errors=True)

    def _report(self, status: str, results: Sequence[ModelResult], start: float, error: str | None = None) -> Report:
        seconds = {**self.seconds, "total": time.perf_counter() - start}
        devices = {
            "processes": self.devices.world,
            "device": str(self.devices.device),
            "name": device_name(self.devices),
        }
        circumstances = receipt(self.settings, self.overrides, {**devices, "seed": self.seed})
        return Report(status, tuple(results), circumstances, self._inputs, seconds, tuple(self.notes), error)

    def _write(self, report: Report) -> None:
        if self.output is None or not self.devices.is_zero:
            return
        if self.dry_run and (self.output / "report.json").exists():
            return  # what was measured there counts more than what could be
        try:
            report.write(self.output)
        except FusionEvalError as error:
            if report.status != "failed":
                raise
            log.error("%s", error)


def device_name(devices: Devices) -> str:
    """The device as its vendor calls it."""
    import platform

    if devices.device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(devices.device)
    return platform.processor() or platform.machine()
