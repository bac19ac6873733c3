"""What task pools of declarative tasks share, whether language models or models that see are asked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fusion_eval.cache import cache_folder
from fusion_eval.errors import ConfigError, Fault, FusionEvalError
from fusion_eval.evaluation.devices import Devices
from fusion_eval.harness.catalog import peer_tasks
from fusion_eval.harness.engine.protocol import LanguageModel
from fusion_eval.harness.outcome import Outcome
from fusion_eval.harness.scheduler import Ranks
from fusion_eval.harness.suite import Suite, evaluate
from fusion_eval.harness.validate import readable_faults
from fusion_eval.report.values import TaskResult
from fusion_eval.taskpool.language_report import task_results
from fusion_eval.taskpool.typed_pool import Measurements, TypedTaskPool, model_info

_DEV_DOCUMENTS = 4


class HarnessTaskPool(TypedTaskPool):
    """Tasks described by YAML files.

    A pool of this kind sets `_options` (keywords of `RunOptions`), `_answers` (a folder, "cache" or None) and
    `_show_members`, and says how its suite is made and a model asked.
    """

    _options: dict[str, Any]
    _answers: str | None = None
    _show_members: bool = False
    _suite: Suite | None = None
    _kind: str = ""
    _bar: Any = None

    @abstractmethod
    def make_suite(self) -> Suite:
        """The tasks that were asked for, read but not loaded.

        Raises:
            ConfigError: whatever cannot be found or read, all at once.
        """

    @abstractmethod
    def outcome(self, model: nn.Module, name: str, role: str, names: list[str] | None) -> Outcome:
        """What a model scores on the named tasks; its files are written."""

    @property
    def suite(self) -> Suite:
        """The tasks, read once."""
        if self._suite is None:
            self._suite = self.make_suite()
        return self._suite

    @property
    def output(self) -> Path | None:
        """The folder of the run, where there is one."""
        found = getattr(self._program, "output", None)
        return None if found is None else Path(found)

    @property
    def model_pool(self) -> Any:
        """The run's model pool, where there is one."""
        return getattr(self._program, "modelpool", None)

    @property
    def task_names(self) -> tuple[str, ...]:
        """Tasks and groups that were asked for."""
        grouped = {name for group in self.suite.selection.groups for name in group.leaves()}
        groups = [group.name for group in self.suite.selection.groups]
        return (*groups, *(name for name in self.suite.selection.tasks if name not in grouped))

    def restrict(self, limit: int | None, fast_dev_run: bool) -> None:
        """Evaluate only the first documents of each task."""
        sizes = [size for size in (limit, self._options["limit"]) if size is not None]
        if fast_dev_run:
            sizes.append(_DEV_DOCUMENTS)
        if sizes:
            whole = [size for size in sizes if size >= 1]
            self._options["limit"] = min(whole) if whole else min(sizes)
            self._suite = None

    def faults(self) -> list[Fault]:
        """What is wrong with the task files, found without running their Python."""
        try:
            selection = self.suite.selection
            return readable_faults(selection, self.suite.reader)
        except FusionEvalError as error:
            return list(error.faults)

    def setup(self) -> None:
        """Open every task's data, once."""
        self.suite.load()

    def _measured(
        self, model: nn.Module | Mapping[str, nn.Module], name: str, role: str, tasks: Sequence[str] | None
    ) -> Measurements:
        found: list[TaskResult] = []
        info: dict[str, float] = {}
        for current, names in self._shares(model, tasks):
            info = info or model_info(current)
            found += task_results(self.outcome(current, name, role, names), self._show_members)
        return info, found

    def evaluated(self, engine: LanguageModel, names: Sequence[str] | None, chat: bool = False) -> Outcome:
        """What an engine scores on the named tasks, on all ranks together."""
        devices = self.devices
        return evaluate(
            self.suite, engine, chat=chat, store=self._store(),
            ranks=Ranks(devices.rank, devices.world, lambda item: everywhere(devices, item)),
            seed=int(getattr(self._program, "seed", 0)), only=names,
            progress=self._progress if self.progress and devices.is_zero else None,
        )  # fmt: skip

    def _shares(
        self, model: nn.Module | Mapping[str, nn.Module], tasks: Sequence[str] | None
    ) -> list[tuple[nn.Module, list[str] | None]]:
        if not isinstance(model, Mapping):
            return [(model, None if tasks is None else self._leaves(tasks))]
        wanted = self.task_names if tasks is None else tasks
        missing = [task for task in wanted if task not in model]
        if missing:
            raise ConfigError(Fault("model", f"no model for {', '.join(missing)}", "one per task"))
        return [(model[task], self._leaves([task])) for task in wanted]

    def _leaves(self, names: Sequence[str]) -> list[str]:
        """The tasks that names of tasks and groups stand for."""
        groups = {group.name: group.leaves() for group in self.suite.selection.all_groups()}
        return [leaf for name in names for leaf in groups.get(name, [name])]

    def _store(self) -> Path | None:
        if self._answers is None:
            return None
        return cache_folder() / "answers" if self._answers == "cache" else Path(self._answers)

    def _progress(self, kind: str, done: int, total: int) -> None:
        from tqdm import tqdm

        bar: Any = self._bar
        if bar is None or self._kind != kind or done <= bar.n:
            self._kind, bar = kind, tqdm(total=total, desc=kind, leave=False, disable=None)
            self._bar = bar
        bar.update(done - bar.n)
        if done == total:
            bar.close()
            self._bar = None


def everywhere(devices: Devices, item: Any) -> list[Any]:
    """All ranks' items, on every rank."""
    return devices.broadcast(devices.gather(item))


def listed_paths(value: str | Sequence[str] | None) -> list[Path]:
    """One path or several."""
    return [Path(item) for item in ([value] if isinstance(value, str) else value or ())]


def folders_of(packages: str | Sequence[str] | None) -> list[Path]:
    """Task folders of installed packages."""
    return [peer_tasks(str(package)) for package in listed_paths(packages)]


def plain(value: Any) -> Any:
    """Configuration nodes as plain Python."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
