"""An import hook that gives tasks the names of `lm_eval` that they import, whether that package is there or not."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

PEER = "lm_eval"
Supply = Mapping[str, Callable[[], Mapping[str, Any]]]
"""Modules that are supplied: name -> what gives its contents when it is imported."""

_LOCK = threading.RLock()


@contextmanager
def peer_names(roots: Iterable[Path] = ()) -> Iterator[None]:
    """Inside, `import lm_eval...` gives this package's own implementations; afterwards everything is as before.

    Args:
        roots: folders the user named; `lm_eval.tasks.x.y` is looked for below them.
    """
    with serving(NameFinder(PEER, roots, MODULES, OTHERS, ("evaluate",))):
        yield


@contextmanager
def serving(finder: NameFinder) -> Iterator[None]:
    """Inside, imports ask the finder first; what it serves hides installed packages until the end."""
    with _LOCK:
        before = {name: module for name, module in sys.modules.items() if finder.serves(name)}
        for name in before:
            del sys.modules[name]
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with _LOCK:
            sys.meta_path.remove(finder)
            for name in [n for n, module in sys.modules.items() if finder.serves(n) or _made_by(finder, module)]:
                del sys.modules[name]
            sys.modules.update(before)


def _made_by(finder: NameFinder, module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "loader", None) is finder


def task_folders(roots: Iterable[Path], package: str = PEER) -> list[Path]:
    """The roots, and the task tree `<package>/tasks` around each that lies in one."""
    found: dict[Path, None] = {}
    for root in roots:
        root = root.expanduser().resolve()
        for folder in (root, *root.parents):
            if folder.parts[-2:] == (package, "tasks"):
                found[folder] = None
        found[root] = None
    return list(found)


class NameFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves modules of a package that tasks import: Python files of the task folders, and what this package supplies.

    Args:
        package: the name that tasks import from.
        roots: folders whose files are `<package>.tasks.x.y`.
        modules: modules of the package that are supplied; a file of a task folder goes before them.
        others: modules of other packages, supplied where the installed package does not have them.
        hidden: those of the others that are supplied even where they are installed.
    """

    serves_peer_names = True

    def __init__(
        self, package: str, roots: Iterable[Path], modules: Supply, others: Supply, hidden: Sequence[str] = ()
    ) -> None:
        self.package, self.tasks = package, f"{package}.tasks"
        self.folders = task_folders(roots, package)
        self.modules, self.others, self.hidden = modules, others, tuple(hidden)

    def serves(self, name: str) -> bool:
        """Whether a module of this name is this finder's alone."""
        return name.partition(".")[0] in (self.package, *self.hidden)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's place: a task folder, or this package."""
        if fullname in self.others:
            return self._other(fullname, path)
        if fullname.startswith(f"{self.tasks}.") and (found := self._in_folders(fullname)):
            return found
        if fullname in self.modules or fullname == self.tasks:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def _in_folders(self, fullname: str) -> importlib.machinery.ModuleSpec | None:
        parts = fullname.split(".")[2:]
        for folder in self.folders:
            own = [parts[1:]] if parts[0] == folder.name else []  # the user named the task's own folder
            for tail in (parts, *own):
                place = folder.joinpath(*tail)
                if not tail:
                    return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
                if (file := place.with_name(f"{place.name}.py")).is_file():
                    return importlib.util.spec_from_file_location(fullname, file)
                if (start := place / "__init__.py").is_file():
                    return importlib.util.spec_from_file_location(fullname, start, submodule_search_locations=[])
                if place.is_dir():
                    return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def _other(self, fullname: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        """Modules of other packages: the installed one where it still exists, except for those that are hidden."""
        if fullname not in self.hidden and importlib.machinery.PathFinder.find_spec(fullname, path):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """An ordinary module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module with what is supplied."""
        module.__path__ = []
        supply = self.modules.get(module.__name__) or self.others.get(module.__name__)
        if supply is not None:
            vars(module).update(supply())


def _metrics() -> Mapping[str, Any]:
    from fusion_eval.harness import aggregation
    from fusion_eval.harness.exact_match import exact_match

    names = {
        "mean": aggregation.mean, "median": aggregation.median, "nanmean": aggregation.nanmean,
        "perplexity": aggregation.perplexity, "weighted_perplexity": aggregation.weighted_perplexity,
        "weighted_mean": aggregation.weighted_mean, "bits_per_byte": aggregation.bits_per_byte,
        "f1_score": aggregation.f1, "matthews_corrcoef": aggregation.matthews, "bleu": aggregation.bleu,
        "chrf": aggregation.chrf, "ter": aggregation.ter, "brier_score": aggregation.brier_score,
        "exact_match_hf_evaluate": exact_match, "exact_match_fn": exact_match,
    }  # fmt: skip
    return {**names, "metric_max_over_ground_truths": metric_max_over_ground_truths}


def metric_max_over_ground_truths(metric_fn: Callable[..., Any], prediction: Any, ground_truths: Sequence[Any]) -> Any:
    """The best score of a prediction over several truths."""
    return max(metric_fn(prediction, truth) for truth in ground_truths)


def _task() -> Mapping[str, Any]:
    from fusion_eval.harness import spec, task, yaml_task

    return {"Task": task.Task, "ConfigurableTask": yaml_task.ConfigurableTask, "TaskConfig": spec.TaskSpec}


def _instance() -> Mapping[str, Any]:
    from fusion_eval.harness.request import Request

    return {"Instance": Request, "OutputType": str}


def _filter() -> Mapping[str, Any]:
    from fusion_eval.harness.filter import base, extract, pipeline, simple

    return {
        "Filter": base.Filter, "FilterEnsemble": pipeline.Pipeline, "RegexFilter": extract.RegexFilter,
        "MultiChoiceRegexFilter": extract.MultiChoiceRegexFilter, "POSFilter": extract.PartOfSpeechFilter,
        "TakeFirstFilter": simple.TakeFirst, "TakeKFilter": simple.TakeFirstK,
        "MajorityVoteFilter": simple.MajorityVote, "LowercaseFilter": simple.Lowercase,
        "UppercaseFilter": simple.Uppercase, "MapFilter": simple.MapValues, "SPANFilter": extract.SpanFilter,
        "register_filter": base.register_filter, "get_filter": pipeline.get_filter,
    }  # fmt: skip


def _registry() -> Mapping[str, Any]:
    from fusion_eval.harness.aggregation import AGGREGATIONS, get_aggregation
    from fusion_eval.harness.metric import METRICS, Metric

    def register_aggregation(name: str) -> Callable[[Any], Any]:
        return lambda function: AGGREGATIONS.setdefault(name, function)

    def register_metric(metric: str, higher_is_better: bool = True, aggregation: str = "mean", **_: Any) -> Any:
        def decorate(function: Any) -> Any:
            METRICS.setdefault(metric, Metric(aggregation, higher_is_better, function))
            return function

        return decorate

    filters = _filter()
    return {
        "register_filter": filters["register_filter"], "get_filter": filters["get_filter"],
        "register_metric": register_metric, "register_aggregation": register_aggregation,
        "get_aggregation": get_aggregation, "AGGREGATION_REGISTRY": AGGREGATIONS,
    }  # fmt: skip


def _samplers() -> Mapping[str, Any]:
    from fusion_eval.harness import fewshot

    return {
        "ContextSampler": fewshot.ContextSampler, "FirstNSampler": fewshot.FirstNSampler,
        "get_sampler": fewshot.sampler_class,
    }  # fmt: skip


def _group() -> Mapping[str, Any]:
    from fusion_eval.harness.plan import GroupPlan
    from fusion_eval.harness.spec import GroupSpec

    return {"Group": GroupPlan, "ConfigurableGroup": GroupPlan, "GroupConfig": GroupSpec}


def _utils() -> Mapping[str, Any]:
    from fusion_eval.harness import peer_utils

    names = ("weighted_f1_score", "general_detokenize", "handle_non_serializable", "make_table", "softmax",
             "regex_replace", "apply_template", "hash_string")  # fmt: skip
    found = {name: getattr(peer_utils, name) for name in names}
    return {**found, "logging": logging, "eval_logger": logging.getLogger("lm_eval")}


def _yaml() -> Mapping[str, Any]:
    from fusion_eval.harness import peer_utils

    return {"load_yaml": peer_utils.load_yaml}


def _evaluate() -> Mapping[str, Any]:
    from fusion_eval.harness import peer_metrics

    return {"load": peer_metrics.load, "__version__": "0.4"}


def _squad() -> Mapping[str, Any]:
    from fusion_eval.harness import squad

    return {name: getattr(squad, name) for name in ("normalize_answer", "get_tokens", "compute_exact", "compute_f1")}


def _nothing() -> Mapping[str, Any]:
    return {}


MODULES: dict[str, Callable[[], Mapping[str, Any]]] = {
    PEER: _nothing,
    f"{PEER}.api": _nothing,
    f"{PEER}.config": _nothing,
    f"{PEER}.filters": _filter,
    f"{PEER}.utils": _utils,
    f"{PEER}.api.task": _task,
    f"{PEER}.api.instance": _instance,
    f"{PEER}.api.filter": _filter,
    f"{PEER}.api.registry": _registry,
    f"{PEER}.api.metrics": _metrics,
    f"{PEER}.api.samplers": _samplers,
    f"{PEER}.api.group": _group,
    f"{PEER}.config.task": _task,
    f"{PEER}.config.group": _group,
    f"{PEER}.filters.extraction": _filter,
    f"{PEER}.filters.selection": _filter,
    f"{PEER}.filters.transformation": _filter,
    f"{PEER}.filters.custom": _filter,
    f"{PEER}.tasks._yaml_loader": _yaml,
}

OTHERS: dict[str, Callable[[], Mapping[str, Any]]] = {
    "evaluate": _evaluate,
    "transformers.data.metrics": _nothing,
    "transformers.data.metrics.squad_metrics": _squad,
}
