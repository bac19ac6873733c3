"""Metrics by name: their default aggregation, their direction, and what generation tasks compute per document."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusion_eval.errors import ConfigError, Fault, did_you_mean
from fusion_eval.harness import aggregation, squad
from fusion_eval.harness.exact_match import exact_match

Compute = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """A registered metric.

    Args:
        aggregation: name of the default aggregation.
        higher_is_better: its direction.
        compute: for generated text: `(references, predictions, **options)`; None where the pair itself is the value.
    """

    aggregation: str = "mean"
    higher_is_better: bool = True
    compute: Compute | None = None


METRICS: dict[str, Metric] = {
    "acc": Metric(),
    "acc_norm": Metric(),
    "acc_bytes": Metric(),
    "acc_mutual_info": Metric(),
    "acc_all": Metric(),
    "brier_score": Metric("brier_score", False),
    "likelihood": Metric(),
    "exact_match": Metric(compute=exact_match),
    "perplexity": Metric("perplexity", False),
    "word_perplexity": Metric("weighted_perplexity", False),
    "byte_perplexity": Metric("weighted_perplexity", False),
    "bits_per_byte": Metric("bits_per_byte", False),
    "mcc": Metric("matthews_corrcoef"),
    "f1": Metric("f1"),
    "bleu": Metric("bleu"),
    "chrf": Metric("chrf"),
    "chrf++": Metric("chrf++"),
    "ter": Metric("ter", False),
    "bypass": Metric("bypass"),
}

DEFAULT_METRICS: dict[str, tuple[str, ...]] = {
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "multiple_choice": ("acc", "acc_norm"),
    "generate_until": ("exact_match",),
}


@dataclass(frozen=True, slots=True)
class BoundMetric:
    """A metric of one task.

    Args:
        name: key of the result.
        call: `(gold, prediction) -> value or mapping of values`; None where the output type decides the value.
        builtin: whether the metric is one of ours rather than a function of the task's folder.
    """

    name: str
    call: Callable[[Any, Any], Any] | None
    options: Mapping[str, Any]
    builtin: bool = True


def document_score(name: str) -> Compute | None:
    """A metric of whole data sets as a score of one document, for files that aggregate it by a mean.

    f1 is the F1 of words (as for SQuAD); bleu, chrf and ter are sentence scores.
    """
    if name == "f1":
        return lambda references, predictions, **_: squad.compute_f1(str(references[0]), str(predictions[0]))
    if name not in ("bleu", "chrf", "chrf++", "ter"):
        return None

    def compute(references: Sequence[Any], predictions: Sequence[Any], **_: Any) -> float:
        golds = [references[0]] if isinstance(references[0], str) else list(references[0])
        return float(aggregation.sacre_metric(name, sentence=True).sentence_score(predictions[0], golds).score)

    return compute


def bind(name: str, function: Any, options: Mapping[str, Any], strict: bool) -> BoundMetric:
    """A metric ready to score generated text.

    Args:
        name: key of the result.
        function: the function of a task's folder, or a registered name.
        options: its keyword arguments.
        strict: an unknown name is an error (it is not where the task computes its own results).

    Raises:
        ConfigError: an unknown name.
    """
    if callable(function):
        return BoundMetric(name, _pairwise(function, dict(options)), options, builtin=False)
    if function in METRICS:
        compute = METRICS[function].compute
        call = _pairwise(compute, dict(options)) if compute else _pair
        return BoundMetric(name, call, options)
    if strict:
        return BoundMetric(name, _evaluate_metric(str(function), dict(options)), options)
    return BoundMetric(name, None, options)


def _pair(gold: Any, prediction: Any) -> Any:
    return [gold, prediction]


def _pairwise(function: Compute, options: dict[str, Any]) -> Callable[[Any, Any], Any]:
    """Call with `references` and `predictions` where the signature has them, else with one list of both."""
    if _takes_keywords(function, options):
        return lambda gold, prediction: function(references=[gold], predictions=[prediction], **options)
    return lambda gold, prediction: function([gold, prediction])


def _takes_keywords(function: Compute, options: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(references=[], predictions=[], **options)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _evaluate_metric(name: str, options: dict[str, Any]) -> Callable[[Any, Any], Any]:
    """A metric of the package `evaluate`, found locally.

    Raises:
        ConfigError: not installed or not found.
    """
    from fusion_eval.harness.peer_metrics import load

    hint = did_you_mean(name, METRICS)
    try:
        loaded = load(name)
    except Exception as error:
        known = f"Known metrics: {', '.join(sorted(METRICS))}; or write `metric: !function utils.my_metric`."
        raise ConfigError(Fault("metric_list", f"no metric is called '{name}'", do=hint or known)) from error
    return lambda gold, prediction: loaded.compute(references=[gold], predictions=[prediction], **options)
