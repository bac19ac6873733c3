"""The program that compares base, experts and merges, or the models of finished runs, task by task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fusion_eval.errors import ConfigError, Fault, FusionEvalError, OutputError, StatisticsError, did_you_mean, listed
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.method.base_method import Method
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.program.base_program import BaseProgram
from fusion_eval.program.compare.finished import read_runs
from fusion_eval.program.compare.items import scores_of
from fusion_eval.program.merged import TaskModels
from fusion_eval.report.values import ModelResult, TaskResult
from fusion_eval.stats.compare import compare_metrics
from fusion_eval.stats.result import ComparisonResult
from fusion_eval.stats.settings import SettingsArguments, settings_among, settings_of
from fusion_eval.stats.tables import verdict_for
from fusion_eval.stats.tasks import TaskComparison, compare_tasks
from fusion_eval.taskpool.base_pool import BaseTaskPool

FOLDER = "comparison"


class CompareProgram(BaseProgram):
    """Evaluate models of a pool and merges of them on every task, and compare each with a reference by items.

    Args:
        modelpool: the models.
        taskpool: the tasks.
        method: the configured merging method, whose merge is called `merged`; left out where `methods` are given.
        methods: further merges by name: names under `config/method`, or nodes; a list of names will do.
        models: names of the pool's models to compare; by default all.
        runs: folders of finished runs, ours or lm-evaluation-harness's with sample files, compared instead; then
            nothing is evaluated.
        reference: the model that all others are compared with; by default the base, else the first; "all" compares
            every pair.
        metrics: names of metrics; by default all that have a form by items.
        statistics: test, alpha, correction, rope and the like, see `stats.Settings`.
        **kwargs: see `BaseProgram`.
    """

    def __init__(
        self,
        modelpool: BaseModelPool,
        taskpool: BaseTaskPool,
        method: Method | None = None,
        *,
        methods: Mapping[str, Any] | Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        runs: Sequence[str] | str | None = None,
        reference: str | None = None,
        metrics: Sequence[str] | None = None,
        statistics: SettingsArguments | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(modelpool, taskpool, **kwargs)
        self.methods: dict[str, Any] = _named(methods, method)
        self.models = modelpool.names if models is None else (models,) if isinstance(models, str) else tuple(models)
        self.runs = [Path(folder) for folder in ([runs] if isinstance(runs, str) else runs or [])]
        self.reference, self.metrics = reference, metrics
        self.statistics: SettingsArguments = statistics or {}

    def faults(self) -> list[Fault]:
        """Models that the pool does not have, methods that cannot be had, statistics that cannot be made."""
        found: list[Fault] = []
        if not self.runs:
            names = self.modelpool.names
            for name in self.models:
                if name not in names:
                    hint = did_you_mean(name, names)
                    found.append(Fault("program.models", f"no model '{name}'", f"some of {listed(names, 20)}", hint))
            known = [*self.models, *self.methods]
            if self.reference not in (None, "all", *known):
                hint = did_you_mean(str(self.reference), known)
                found.append(Fault("program.reference", f"'{self.reference}'", f"one of {listed(known, 20)}", hint))
        for check in (lambda: settings_of(self.statistics), self._build_methods):
            try:
                check()
            except FusionEvalError as error:
                found.extend(error.faults)
        return found

    def work(self) -> Iterator[ModelResult]:
        """Every model's results; the comparisons come last."""
        results: list[ModelResult] = []
        for result in self._stored() if self.runs else self._evaluated():
            results.append(result)
            yield result
        if self.devices.is_zero:
            with self.timed("compare"):
                self._compare(results)

    def _stored(self) -> Iterator[ModelResult]:
        yield from read_runs(self.runs)

    def _evaluated(self) -> Iterator[ModelResult]:
        for name in self.models:
            yield self.evaluate_stored(name, "base" if name == self.modelpool.base_name else "expert")
        for name, method in self.methods.items():
            with self.timed("merge"):
                merged = method.apply(self.modelpool, self.fabric_if_needed(), seed=self.seed)
                model = self._model(merged)
            yield self.evaluate_model(model, name, "merged")

    def _model(self, merged: Any) -> nn.Module | Mapping[str, nn.Module]:
        if isinstance(merged, nn.Module):
            return merged.eval()
        return self.modelpool.build(merged) if isinstance(merged, Checkpoint) else TaskModels(merged, self.modelpool)

    def _build_methods(self) -> None:
        from fusion_eval.build import build, build_option

        faults: list[Fault] = []
        for name, given in self.methods.items():
            method = build_option("method", given) if isinstance(given, str) else build(given, _key_=f"methods.{name}")
            if isinstance(method, Method):
                self.methods[name] = method
                faults.extend(method.faults(self.modelpool) if not self.runs else ())
            else:
                faults.append(Fault(f"program.methods.{name}", f"a {type(method).__name__}", "a merging method"))
        if faults:
            raise ConfigError(*faults)

    def _compare(self, results: Sequence[ModelResult]) -> None:
        tasks = list(dict.fromkeys(task.name for result in results for task in result.tasks))
        measured = list(dict.fromkeys(name for result in results for task in result.tasks for name in task.metrics))
        if faults := settings_of(self.statistics).rope_faults(measured):
            raise StatisticsError(*faults)
        found: dict[str, ComparisonResult] = {}
        for task in tasks:
            by_model = {r.name: t for r in results for t in r.tasks if t.name == task}
            found.update(self._compared(task, by_model, results))
        self.notes.extend(overview(found))
        over_tasks = over(results, tasks, self.statistics.get("alpha", 0.05))
        if over_tasks is not None:
            self.notes.append(ranks_line(over_tasks))
        if self.output is not None and found:
            write_comparisons(self.output / FOLDER, found)

    def _compared(
        self, task: str, by_model: Mapping[str, TaskResult], results: Sequence[ModelResult]
    ) -> dict[str, ComparisonResult]:
        """The comparison on one task; none where fewer than two models, or no metric, can be compared."""
        if len(by_model) < 2:
            self.notes.append(f"task '{task}': not compared, since {len(by_model)} model was evaluated on it")
            return {}
        scores, notes = scores_of(by_model, self.metrics)
        self.notes.extend(f"task '{task}': {note}" for note in notes)
        if not scores:
            return {}
        reference = self._reference(by_model, results)
        settings = settings_among({**self.statistics}, [each.metric for each in scores])
        if reference is not None:
            settings["reference"] = reference
        return {task: compare_metrics(scores, receipt={"task": task}, **settings)}

    def _reference(self, by_model: Mapping[str, TaskResult], results: Sequence[ModelResult]) -> str | None:
        if self.reference == "all":
            return None
        if self.reference is not None:
            return self.reference
        base = next((r.name for r in results if r.role == "base" and r.name in by_model), None)
        return base or next(iter(by_model))


def _named(methods: Any, method: Method | None) -> dict[str, Any]:
    if methods is None:
        return {} if method is None else {"merged": method}
    if isinstance(methods, str):
        methods = [methods]
    return dict(methods) if isinstance(methods, Mapping) else {str(name): name for name in methods}


def overview(found: Mapping[str, ComparisonResult]) -> list[str]:
    """Per model, on how many tasks it is better or worse than the reference by the tasks' main metric."""
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for result in found.values():
        reference, main = result.reference_of(), result.metrics[0]
        for comparison in result.comparisons:
            if comparison.metric != main or reference not in (comparison.method_a, comparison.method_b):
                continue
            model = comparison.method_a if comparison.method_b == reference else comparison.method_b
            key = (main, model, reference)
            counts.setdefault(key, Counter())[verdict_for(comparison, model)] += 1
    return [
        f"{metric}: {model} against {reference}: "
        + ", ".join(f"{verdict} on {count}" for verdict, count in tally.most_common())
        + f" of {tally.total()} tasks, for these checkpoints"
        for (metric, model, reference), tally in counts.items()
    ]


def over(results: Sequence[ModelResult], tasks: Sequence[str], alpha: float) -> TaskComparison | None:
    """The models ranked over tasks by their main metric; None for fewer than two of either."""
    complete = [r for r in results if [t.name for t in r.tasks] == list(tasks)]
    if len(tasks) < 2 or len(complete) < 2:
        return None
    main = [next(iter(task.metrics)) for task in complete[0].tasks]
    if len(set(main)) != 1 or any(main[0] not in task.metrics for r in complete for task in r.tasks):
        return None
    table = {r.name: [task.metrics[main[0]].value for task in r.tasks] for r in complete}
    better = complete[0].tasks[0].metrics[main[0]].higher_is_better is not False
    return compare_tasks(table, higher_is_better=better, alpha=alpha)


def ranks_line(found: TaskComparison) -> str:
    """The mean ranks, and what may be said about other tasks."""
    order = sorted(range(len(found.methods)), key=lambda m: found.mean_ranks[m])
    ranks = ", ".join(f"{found.methods[m]} {found.mean_ranks[m]:.2f}" for m in order)
    text = (
        f"mean ranks over {found.n_tasks} tasks: {ranks}; ranks {found.critical_difference:.2f} apart differ (Nemenyi)"
    )
    return "; ".join([text, *found.warnings])


def write_comparisons(folder: Path, found: Mapping[str, ComparisonResult]) -> None:
    """Per task a JSON file with arrays beside it, and Markdown, LaTeX, HTML and CSV.

    Raises:
        OutputError: the folder cannot be written.
    """
    from fusion_eval.report.files import write_text

    for task, result in found.items():
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in task)
        try:
            result.save(folder / f"{name}.json")
        except OSError as error:
            raise OutputError(Fault(str(folder), f"cannot be written ({error.strerror})", "a folder")) from error
        exports = {"md": result.to_markdown, "tex": result.to_latex, "html": result.to_html, "csv": result.to_csv}
        for suffix, export in exports.items():
            write_text(folder / f"{name}.{suffix}", export())
