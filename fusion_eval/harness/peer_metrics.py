"""Metrics that tasks load by name from the package `evaluate`, computed here without a download.

`load` is what `evaluate.load` becomes while task modules run; names that are not here go on to the installed package.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fusion_eval.errors import EvaluationError, Fault, MissingDependencyError, missing_dependency
from fusion_eval.harness import squad
from fusion_eval.harness.exact_match import exact_match

CodeRunner = Callable[[Sequence[str]], Sequence[bool]]
_RUNNER: ContextVar[CodeRunner | None] = ContextVar("fusion_eval_code_runner", default=None)


@contextmanager
def code_runner(runner: CodeRunner | None) -> Any:
    """Inside, `code_eval` runs programs with `runner`: texts of Python -> whether each ran without an error."""
    token = _RUNNER.set(runner)
    try:
        yield
    finally:
        _RUNNER.reset(token)


@dataclass(frozen=True, slots=True)
class LoadedMetric:
    """A metric as `evaluate.load` gives it."""

    name: str
    function: Callable[..., Any]

    def compute(self, predictions: Any = None, references: Any = None, **options: Any) -> Any:
        """The metric over all pairs."""
        return self.function(predictions=predictions, references=references, **options)


def load(name: str, *args: Any, **options: Any) -> Any:
    """The metric of a name.

    Raises:
        MissingDependencyError: neither known here nor to an installed `evaluate`.
    """
    if name in FUNCTIONS:
        return LoadedMetric(name, FUNCTIONS[name])
    real = _installed()
    if real is None:
        raise MissingDependencyError(
            Fault(f"evaluate.load('{name}')", "the package 'evaluate' is not installed",
                  f"one of {', '.join(sorted(FUNCTIONS))}, which need no package", "Run: pip install evaluate")
        )  # fmt: skip
    return real.load(name, *args, **options)


def _installed() -> Any:
    """The real package, past the import hook."""
    ours = sys.modules.pop("evaluate", None)
    hooks = [finder for finder in sys.meta_path if getattr(finder, "serves_peer_names", False)]
    for hook in hooks:
        sys.meta_path.remove(hook)
    try:
        return importlib.import_module("evaluate")
    except ImportError:
        return None
    finally:
        sys.meta_path[:0] = hooks
        if ours is not None:
            sys.modules["evaluate"] = ours


def _sklearn(name: str) -> Callable[..., Any]:
    def compute(predictions: Any, references: Any, labels: Any = None, pos_label: Any = 1, average: Any = "binary",
                sample_weight: Any = None, **_: Any) -> dict[str, Any]:  # fmt: skip
        metrics = importlib.import_module("sklearn.metrics")
        function = getattr(metrics, f"{name}_score")
        score = function(
            references, predictions, labels=labels, pos_label=pos_label, average=average, sample_weight=sample_weight
        )
        return {name: float(score) if getattr(score, "size", 1) == 1 else score}

    return compute


def accuracy(
    predictions: Sequence[Any], references: Sequence[Any], normalize: bool = True, **_: Any
) -> dict[str, float]:
    """The share (or number) of equal pairs."""
    right = sum(p == r for p, r in zip(predictions, references, strict=True))
    return {"accuracy": right / len(references) if normalize else float(right)}


def rouge(
    predictions: Sequence[str], references: Sequence[Any], rouge_types: Sequence[str] | None = None,
    use_aggregator: bool = True, use_stemmer: bool = False, tokenizer: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """ROUGE F-measures (Lin, 2004) by the package rouge_score: means, or a list per type."""
    try:
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise missing_dependency("rouge-score", "language", "the metric rouge") from error
    types = list(rouge_types or ("rouge1", "rouge2", "rougeL", "rougeLsum"))
    options = {} if tokenizer is None else {"tokenizer": _Tokens(tokenizer)}
    scorer = rouge_scorer.RougeScorer(types, use_stemmer=use_stemmer, **options)
    rows = [
        scorer.score_multi(truth, found) if isinstance(truth, (list, tuple)) else scorer.score(truth, found)
        for truth, found in zip(references, predictions, strict=True)
    ]
    scores = {kind: [row[kind].fmeasure for row in rows] for kind in types}
    return {kind: sum(values) / len(values) for kind, values in scores.items()} if use_aggregator else scores


@dataclass(frozen=True, slots=True)
class _Tokens:
    function: Callable[[str], list[str]]

    def tokenize(self, text: str) -> list[str]:
        return self.function(text)


def bleu(
    predictions: Sequence[str], references: Sequence[Any], tokenizer: Callable[[str], list[str]] | None = None,
    max_order: int = 4, smooth: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """BLEU (Papineni et al., 2002) between 0 and 1, with its parts; words by the tokenizer 13a."""
    split = tokenizer or _words_13a()
    matches, possible = [0] * max_order, [0] * max_order
    found_length = truth_length = 0
    for found, truths in zip(predictions, references, strict=True):
        words = split(found)
        golds = [split(truth) for truth in ([truths] if isinstance(truths, str) else truths)]
        truth_length += min(map(len, golds))
        found_length += len(words)
        for order in range(1, max_order + 1):
            grams = _grams(words, order)
            best: Counter[tuple[str, ...]] = Counter()
            for gold in golds:
                best |= _grams(gold, order)
            matches[order - 1] += sum((grams & best).values())
            possible[order - 1] += max(0, len(words) - order + 1)
    precisions = [_precision(m, p, smooth) for m, p in zip(matches, possible, strict=True)]
    ratio = found_length / truth_length if truth_length else 0.0
    brevity = 1.0 if ratio > 1.0 else math.exp(1 - 1.0 / ratio) if ratio > 0 else 0.0
    mean = math.exp(sum(math.log(p) for p in precisions) / max_order) if min(precisions) > 0 else 0.0
    return {
        "bleu": mean * brevity, "precisions": precisions, "brevity_penalty": brevity, "length_ratio": ratio,
        "translation_length": found_length, "reference_length": truth_length,
    }  # fmt: skip


def _precision(matched: int, possible: int, smooth: bool) -> float:
    if smooth:
        return (matched + 1.0) / (possible + 1.0)
    return matched / possible if possible else 0.0


def _grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def _words_13a() -> Callable[[str], list[str]]:
    try:
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    except ImportError as error:
        raise missing_dependency("sacrebleu", "language", "the metric bleu") from error
    tokenizer: Any = Tokenizer13a()  # type: ignore[no-untyped-call]
    return lambda text: str(tokenizer(text)).split()


def _sacre(name: str) -> Callable[..., Any]:
    def compute(predictions: Any, references: Any, **_: Any) -> dict[str, float]:
        from fusion_eval.harness.aggregation import AGGREGATIONS

        return {"score": AGGREGATIONS[name](list(zip(references, predictions, strict=True)))}

    return compute


def wer(predictions: Sequence[str], references: Sequence[str], **_: Any) -> float:
    """Word error rate: edits over words of the references."""
    pairs = [(truth.split(), found.split()) for truth, found in zip(references, predictions, strict=True)]
    return sum(_edits(truth, found) for truth, found in pairs) / max(1, sum(len(truth) for truth, _ in pairs))


def _edits(one: Sequence[str], other: Sequence[str]) -> int:
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        previous, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (left != right))
    return row[-1]


def code_eval(
    predictions: Sequence[Sequence[str]], references: Sequence[str], k: Sequence[int] = (1, 10, 100), **_: Any
) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
    """pass@k (Chen et al., 2021) of programs that must run without an error, and what happened to each.

    Raises:
        EvaluationError: nobody allowed generated code to run.
    """
    runner = _RUNNER.get()
    if runner is None:
        raise EvaluationError(
            Fault("code_eval", "would run generated code", "your consent", "Set confirm_run_unsafe_code=true.")
        )
    programs = [f"{code}\n{test}" for codes, test in zip(predictions, references, strict=True) for code in codes]
    verdicts = iter(runner(programs))
    rows: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for task, codes in enumerate(predictions):
        rows[task] = []
        for number in range(len(codes)):
            passed = bool(next(verdicts))
            detail = {
                "task_id": task,
                "passed": passed,
                "result": "passed" if passed else "failed",
                "completion_id": number,
            }
            rows[task].append((number, detail))
    counts = [(len(row), sum(detail["passed"] for _, detail in row)) for row in rows.values()]
    wanted = [k] if isinstance(k, int) else k
    scores = {
        f"pass@{size}": sum(pass_at(n, right, size) for n, right in counts) / len(counts)
        for size in wanted
        if counts and all(n >= size for n, _ in counts)
    }
    return scores, rows


def pass_at(n: int, right: int, k: int) -> float:
    """The chance that one of k programs drawn from n, of which `right` pass, passes."""
    return 1.0 if n - right < k else 1.0 - math.prod(1.0 - k / i for i in range(n - right + 1, n + 1))


def _squad_v2(predictions: Any, references: Any, no_answer_threshold: float = 1.0, **_: Any) -> Mapping[str, float]:
    return squad.squad_v2(predictions, references, no_answer_threshold)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "accuracy": accuracy, "bleu": bleu, "chrf": _sacre("chrf"), "code_eval": code_eval, "exact_match": exact_match,
    "f1": _sklearn("f1"), "precision": _sklearn("precision"), "recall": _sklearn("recall"), "rouge": rouge,
    "sacrebleu": _sacre("bleu"), "squad": squad.squad, "squad_v2": _squad_v2, "ter": _sacre("ter"), "wer": wer,
}  # fmt: skip
