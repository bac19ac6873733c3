"""An import hook that gives tasks the names of `lm_eval` that they import, whether that package is there or not."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

PEER = "lm_eval"
_TASKS = f"{PEER}.tasks"


@contextmanager
def peer_names(roots: Iterable[Path] = ()) -> Iterator[None]:
    """Inside, `import lm_eval...` gives this package's own implementations; afterwards everything is as before.

    Args:
        roots: folders the user named; `lm_eval.tasks.x.y` is looked for below them.
    """
    finder = _Finder(_task_folders(roots))
    before = {name: module for name, module in sys.modules.items() if _served(name)}
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if _served(n)]:
            del sys.modules[name]
        sys.modules.update(before)


def _served(name: str) -> bool:
    return name == PEER or name.startswith(f"{PEER}.") or name.partition(".")[0] == "evaluate"


def _task_folders(roots: Iterable[Path]) -> list[Path]:
    """The roots, and the task tree around each that lies in one."""
    found: dict[Path, None] = {}
    for root in roots:
        root = root.expanduser().resolve()
        for folder in (root, *root.parents):
            if folder.parts[-2:] == (PEER, "tasks"):
                found[folder] = None
        found[root] = None
    return list(found)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves the modules of `MODULES`, and Python files below the task folders."""

    serves_peer_names = True

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in OTHERS:
            return self._other(fullname, path)
        if fullname in MODULES or fullname == _TASKS:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if not fullname.startswith(f"{_TASKS}."):
            return None
        parts = fullname.split(".")[2:]
        for folder in self.folders:
            place = folder.joinpath(*parts)
            if place.with_suffix(".py").is_file():
                return importlib.util.spec_from_file_location(fullname, place.with_suffix(".py"))
            if place.is_dir():
                return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def _other(self, fullname: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        """Modules of other packages: the installed one where it still exists, except for `evaluate`."""
        if fullname != "evaluate" and path and importlib.machinery.PathFinder.find_spec(fullname, path):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []
        supply = MODULES.get(module.__name__) or OTHERS.get(module.__name__)
        if supply is not None:
            vars(module).update(supply())


def _metrics() -> Mapping[str, Any]:
    from fusion_eval.harness import aggregation, metric

    names = {
        "mean": aggregation.mean, "median": aggregation.median, "nanmean": aggregation.nanmean,
        "perplexity": aggregation.perplexity, "weighted_perplexity": aggregation.weighted_perplexity,
        "weighted_mean": aggregation.weighted_mean, "bits_per_byte": aggregation.bits_per_byte,
        "f1_score": aggregation.f1, "matthews_corrcoef": aggregation.matthews, "bleu": aggregation.bleu,
        "chrf": aggregation.chrf, "ter": aggregation.ter, "brier_score": aggregation.brier_score,
        "exact_match_hf_evaluate": metric.exact_match, "exact_match_fn": metric.exact_match,
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
    from fusion_eval.harness import filter as filters
    from fusion_eval.harness import filter_extract

    return {
        "Filter": filters.Filter, "FilterEnsemble": filters.Pipeline, "RegexFilter": filter_extract.RegexFilter,
        "MultiChoiceRegexFilter": filter_extract.MultiChoiceRegexFilter, "POSFilter": filter_extract.PartOfSpeechFilter,
        "TakeFirstFilter": filters.TakeFirst, "TakeKFilter": filters.TakeFirstK,
        "MajorityVoteFilter": filters.MajorityVote, "LowercaseFilter": filters.Lowercase,
        "UppercaseFilter": filters.Uppercase, "MapFilter": filters.MapValues, "SPANFilter": filter_extract.SpanFilter,
        "register_filter": filters.register_filter, "get_filter": filters.get_filter,
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
