"""A study: methods x seeds trained (or loaded), evaluated on tasks, compared; what is done once is not done again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fusion_eval.build import build
from fusion_eval.errors import ConfigError, EvaluationError, Fault, FusionEvalError, listed
from fusion_eval.log import get_rankzero_logger
from fusion_eval.program.compare.identity import digest, lasting_source
from fusion_eval.program.compare.models import compare
from fusion_eval.program.study.cells import (
    COMPLETED,
    FAILED,
    Cell,
    Record,
    checkpoint_path,
    file_hash,
    is_finished,
    make_folder,
    read_record,
    run_cell,
)
from fusion_eval.report.files import held
from fusion_eval.stats.result import ComparisonResult
from fusion_eval.stats.tasks import TaskComparison, compare_tasks

log = get_rankzero_logger(__name__)

Load = Callable[[Path], nn.Module]
_CHOICES = ("raise", "drop")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A checkpoint that is loaded when its turn comes.

    Args:
        path: the checkpoint.
        load: builds the model from it.
        key: what the model is, for the cache of rows.
    """

    path: Path
    load: Load
    key: str

    def __call__(self) -> nn.Module:
        """The model."""
        return self.load(self.path)


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What a study found.

    Args:
        tasks: the comparison on every task.
        over_tasks: the methods ranked over the tasks by their main metric; None for fewer than two of either.
        failed: cells without a model, which are in no comparison.
    """

    tasks: Mapping[str, ComparisonResult]
    over_tasks: TaskComparison | None = None
    failed: tuple[Record, ...] = ()

    @property
    def result(self) -> ComparisonResult:
        """The comparison of a study on one task."""
        if len(self.tasks) != 1:
            raise ConfigError(Fault("StudyResult.result", f"{len(self.tasks)} tasks", "one", "Use .tasks[name]."))
        return next(iter(self.tasks.values()))


@dataclass(slots=True)
class Study:
    """Methods trained on several seeds and compared on tasks.

    A finished cell is not trained again while its training function and its checkpoint are the same; a model is not
    evaluated again while its weights, the data and the task are the same.

    Args:
        methods: per method a training function (seed) or (seed, folder) -> checkpoint or module, or a node of one with
            `_partial_: true`; or, with `from_checkpoints`, checkpoints.
        load_fn: builds a model from a checkpoint's path.
        seeds: the seeds of every method.
        data: batches for one task, see `compare`.
        task: the task's name, or a Task; with several tasks see `tasks`.
        tasks: several tasks by name, each the keywords of `compare` (data, task, num_classes, ...); replaces `data`.
        folder: where cells, rows and comparisons are kept.
        on_error: "raise" after all cells were tried where one failed, or "drop" its seed for every method.
        options: further keywords of `compare` for every task: num_classes, metrics, test, alpha, ...
    """

    methods: Mapping[str, Any]
    load_fn: Any
    seeds: Sequence[int]
    data: Any = None
    task: Any = "classification"
    tasks: Mapping[str, Mapping[str, Any]] | None = None
    folder: str | Path = "study"
    on_error: str = "raise"
    options: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Mapping[str, Sequence[Path]] | None = None

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        self.load_fn = build(self.load_fn, _key_="load_fn")
        self.seeds = [int(seed) for seed in self.seeds]
        if self.checkpoints is None:
            self.methods = {str(name): build(given, _key_=f"methods.{name}") for name, given in self.methods.items()}
        faults = self._faults()
        if faults:
            raise ConfigError(*faults)

    @classmethod
    def from_checkpoints(
        cls,
        checkpoints: Mapping[str, Sequence[str | Path] | str | Path],
        load_fn: Any,
        data: Any = None,
        **options: Any,
    ) -> Study:
        """A study of models that are trained already: method -> one checkpoint, or one per seed.

        Args:
            checkpoints: the checkpoints.
            load_fn: builds a model from a checkpoint's path.
            data: batches for one task.
            **options: `seeds`, `task`, `tasks`, `folder`, and keywords of `compare`.
        """
        paths = {
            str(name): [Path(given)] if isinstance(given, str | Path) else [Path(path) for path in given]
            for name, given in checkpoints.items()
        }
        counts = {name: len(each) for name, each in paths.items()}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"'{name}' has {count}" for name, count in counts.items())
            raise ConfigError(Fault("checkpoints", f"unequal numbers: {found}", "as many for every method"))
        own = {key: options.pop(key) for key in ("task", "tasks", "folder", "on_error") if key in options}
        seeds = options.pop("seeds", range(max(counts.values(), default=0)))
        return cls({name: name for name in paths}, load_fn, seeds, data, options=options, checkpoints=paths, **own)

    @property
    def cells(self) -> list[Cell]:
        """Every method with every seed."""
        return [Cell(name, seed) for name in self.methods for seed in self.seeds]

    def run(self, only: Sequence[Cell] | None = None) -> StudyResult:
        """Train what is not trained yet, evaluate what is not evaluated yet, compare.

        Args:
            only: train these cells and compare nothing, for one job of many.

        Raises:
            EvaluationError: cells failed, and `on_error` is "raise".
            OutputError: another run works in the folder, or it cannot be written.
        """
        assert isinstance(self.folder, Path)
        make_folder(self.folder)
        with held(self.folder) if only is None else nullcontext():
            return self._run(only)

    def _run(self, only: Sequence[Cell] | None) -> StudyResult:
        records = {cell: self.train(cell) for cell in (self.cells if only is None else only)}
        failed = tuple(record for record in records.values() if record.status == FAILED)
        if failed and (self.on_error == "raise" or only is not None):
            raise EvaluationError(*(self._failure(record) for record in failed))
        if only is not None:
            return StudyResult({})
        return self._compared(records, failed)

    def train(self, cell: Cell) -> Record:
        """The record of a cell, trained now unless it is finished."""
        if self.checkpoints is not None:
            path = self.checkpoints[cell.method][list(self.seeds).index(cell.seed)]
            return Record(cell.method, cell.seed, COMPLETED, str(path.resolve()), file_hash(path))
        folder, function = self._cell_folder(cell), self.methods[cell.method]
        make_folder(folder)
        with held(folder):
            record = read_record(folder)
            if is_finished(folder, record, function):
                assert record is not None
                return record
            log.info("study: training %s", cell)
            return run_cell(cell, folder, function)

    def _compared(self, records: Mapping[Cell, Record], failed: tuple[Record, ...]) -> StudyResult:
        lost = {record.seed for record in failed}
        seeds = [seed for seed in self.seeds if seed not in lost]
        if not seeds:
            raise EvaluationError(*(self._failure(record) for record in failed))
        models = {name: [self._stored(records[Cell(name, seed)]) for seed in seeds] for name in self.methods}
        receipt = {
            "checkpoints": {str(cell): record.checkpoint_hash for cell, record in records.items()},
            "failed": [f"{record.method}, seed {record.seed}: {record.error}" for record in failed],
        }
        assert isinstance(self.folder, Path)
        found = {}
        for name, options in self._tasks().items():
            compared = compare(models, seeds=seeds, cache=self.folder / "rows", receipt=receipt, **options)
            if failed:
                compared = _marked(compared, failed, seeds)
            compared.save(self.folder / "comparison" / f"{name}.json")
            found[name] = compared
        return StudyResult(found, _over(found), failed)

    def _tasks(self) -> dict[str, dict[str, Any]]:
        if self.tasks is None:
            name = self.task if isinstance(self.task, str) else "task"
            return {name: {**self.options, "data": self.data, "task": self.task}}
        return {name: {**self.options, **options} for name, options in self.tasks.items()}

    def _stored(self, record: Record) -> StoredModel:
        path = checkpoint_path(self._cell_folder(Cell(record.method, record.seed)), record)
        return StoredModel(path, self.load_fn, digest(record.checkpoint_hash, lasting_source(self.load_fn)))

    def _cell_folder(self, cell: Cell) -> Path:
        assert isinstance(self.folder, Path)
        return self.folder / "cells" / cell.folder_name

    def _failure(self, record: Record) -> Fault:
        folder = self._cell_folder(Cell(record.method, record.seed))
        do = "Run the study again: only cells that are not finished are trained."
        where = f"study, {record.method}, seed {record.seed}"
        return Fault(where, f"{record.error} ({folder / 'error.txt'})", "a checkpoint", do)

    def _faults(self) -> list[Fault]:
        faults = []
        if not self.methods:
            faults.append(Fault("methods", "no methods", "at least one"))
        if not len(self.seeds) or len(set(self.seeds)) != len(self.seeds):
            faults.append(Fault("seeds", f"{list(self.seeds)}", "at least one, each once"))
        if self.on_error not in _CHOICES:
            faults.append(Fault("on_error", repr(self.on_error), f"one of {listed(_CHOICES)}"))
        if (self.data is None) == (self.tasks is None):
            faults.append(Fault("data", "both data and tasks, or neither", "one of them"))
        if not callable(self.load_fn):
            faults.append(Fault("load_fn", f"a {type(self.load_fn).__name__}", "a function of a checkpoint's path"))
        for name, given in self.methods.items():
            if self.checkpoints is None and not callable(given):
                faults.append(Fault(f"methods.{name}", f"a {type(given).__name__}", "a function of a seed"))
        for name, paths in (self.checkpoints or {}).items():
            gone = [str(path) for path in paths if not path.exists()]
            if gone:
                faults.append(Fault(f"checkpoints.{name}", f"no {listed(gone)}", "checkpoints that exist"))
        return faults


def _marked(found: ComparisonResult, failed: Sequence[Record], seeds: Sequence[int]) -> ComparisonResult:
    from dataclasses import replace

    lost = listed([f"{record.method}, seed {record.seed}" for record in failed])
    warning = (
        f"{len(failed)} runs failed ({lost}); their seeds are left out for every method, {len(seeds)} are compared"
    )
    return replace(found, warnings=(*found.warnings, warning))


def _over(found: Mapping[str, ComparisonResult]) -> TaskComparison | None:
    results = list(found.values())
    if len(results) < 2 or len(results[0].methods) < 2:
        return None
    main = results[0].scores[0]
    if any(result.scores[0].metric != main.metric for result in results):
        return None
    table: dict[str, Any] = {
        method: [float(result.scores[0].values[m].mean()) for result in results]
        for m, method in enumerate(results[0].methods)
    }
    try:
        return compare_tasks(table, higher_is_better=main.higher_is_better, alpha=results[0].alpha)
    except FusionEvalError as error:
        log.warning("study: the methods are not ranked over tasks: %s", error)
        return None
