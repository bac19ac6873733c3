"""From responses to scores: filters, metric values per document, aggregation, standard errors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusion_eval.errors import EvaluationError, FusionEvalError
from fusion_eval.harness.aggregation import Aggregation, bypass
from fusion_eval.harness.build import BuiltTask, RunOptions, document_error, line_of
from fusion_eval.harness.function import installing
from fusion_eval.harness.judge import judged
from fusion_eval.harness.outcome import MetricValue, SampleRow, TaskOutcome
from fusion_eval.harness.randomness import OwnRandomness
from fusion_eval.harness.request import Request
from fusion_eval.harness.stderr import PEER_REPLICATES, compat_stderr, stderr

OnRow = Callable[[SampleRow], None]


def score_task(
    built: BuiltTask, options: RunOptions, iterations: int = PEER_REPLICATES, on_row: OnRow | None = None
) -> TaskOutcome:
    """The outcome of a task whose requests have their responses.

    Args:
        built: the task.
        options: of the run.
        iterations: replicates of the peer's bootstrap, with `compat`; 0 leaves standard errors out.
        on_row: told every row as soon as it is scored.

    Raises:
        FusionEvalError: a document that cannot be scored, with its id and the place in the user's code.
    """
    with OwnRandomness().lent():  # anew for every model
        return _scored(built, options, iterations, on_row)


def _scored(built: BuiltTask, options: RunOptions, iterations: int, on_row: OnRow | None) -> TaskOutcome:
    task = built.task
    asked = len(built.docs) + len(built.unscored)
    outcome = TaskOutcome(built.name, built.spec, task.VERSION, total=built.total, scored=asked)
    outcome.unscored = dict(built.unscored)
    for pipeline in task.filters:
        pipeline.apply(built.requests)
        if pipeline.fallbacks:
            outcome.unmatched[pipeline.name] = pipeline.fallbacks
    by_document = _by_document(built.requests)
    outcome.marks = dict(Counter(mark for request in built.requests for mark in request.marks))
    for name in dict.fromkeys(name for request in built.requests[:1] for name in request.filtered_resps):
        for doc_id, doc in built.docs:
            row = _score_document(built, doc_id, doc, by_document[doc_id], name, outcome, options)
            if row is not None:
                outcome.rows.append(row)
                if on_row:
                    on_row(row)
    if not options.predict_only:
        scored = [doc for doc_id, doc in built.docs if doc_id not in outcome.unscored]
        outcome.remarks = dict(Counter(remark for doc in scored if (remark := task.remark(doc))))
    outcome.directions = dict(_directions(built, options))
    _aggregate(outcome, _aggregations(built, outcome, options), task.unlisted_aggregation, options, iterations)
    return outcome


def _by_document(requests: Sequence[Request]) -> dict[int | None, list[Request]]:
    found: dict[int | None, list[Request]] = defaultdict(list)
    for request in requests:
        found[request.doc_id].append(request)
    for own in found.values():
        own.sort(key=lambda request: request.idx)
    return found


def _score_document(
    built: BuiltTask, doc_id: int, doc: Any, requests: list[Request], pipeline: str, outcome: TaskOutcome,
    options: RunOptions,
) -> SampleRow | None:  # fmt: skip
    filtered = [request.filtered_resps[pipeline] for request in requests]
    try:
        if options.predict_only:
            metrics: Mapping[str, Any] = {"bypass": None} if built.spec.output_type == "generate_until" else {}
        else:
            metrics = judged(built.task.process_results, doc, filtered)
        target = built.task.doc_to_target(doc)
    except Exception as error:
        described = document_error(built.name, doc_id, error)
        if options.on_error == "fail" and not isinstance(error, EvaluationError):
            raise described from error
        outcome.unscored[doc_id] = str(described)
        return None
    return SampleRow(
        doc_id, doc, target, [r.args for r in requests], [r.resps for r in requests], filtered, pipeline,
        dict(metrics), tuple(mark for r in requests for mark in r.marks),
    )  # fmt: skip


def _directions(built: BuiltTask, options: RunOptions) -> Mapping[str, bool]:
    return {"bypass": True} if options.predict_only else built.task.higher_is_better()


def _aggregations(built: BuiltTask, outcome: TaskOutcome, options: RunOptions) -> Mapping[str, Aggregation]:
    """Aggregations of the task; a key that a metric function added inherits the aggregation of that function."""
    if options.predict_only:
        return {"bypass": bypass}
    known = dict(built.task.aggregation())
    bound = getattr(built.task, "_metrics", [])
    produced = {name for row in outcome.rows for name in row.metrics}
    sources = [metric.name for metric in bound if not metric.builtin and metric.name not in produced]
    for name in produced - known.keys() if sources else ():
        source = next((s for s in sources if name.startswith(s)), sources[0])
        known[name] = known[source]
        outcome.directions = {**outcome.directions, name: outcome.directions.get(source, True)}
    return known


def _aggregate(
    outcome: TaskOutcome, aggregations: Mapping[str, Aggregation], unlisted: Aggregation | None, options: RunOptions,
    iterations: int,
) -> None:  # fmt: skip
    collected: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in outcome.rows:
        for metric, value in row.metrics.items():
            collected[metric, row.pipeline].append(value)
    for (metric, pipeline), items in collected.items():
        function = aggregations.get(metric, unlisted)
        if function is None:
            continue
        try:
            value = judged(function, items)
            error = _stderr(function, items, options, iterations)
        except FusionEvalError as fault:
            outcome.failed[f"{metric},{pipeline}"] = str(fault)
            continue
        except Exception as fault:  # noqa: BLE001 - an aggregation of the user's folder; the other metrics go on
            outcome.failed[f"{metric},{pipeline}"] = (
                f"{type(fault).__name__}: {fault}{line_of(fault)}{installing(fault)}"
            )
            continue
        found = MetricValue(metric, pipeline, _plain(value), error, len(items), outcome.directions.get(metric))
        outcome.values[found.key] = found


def _stderr(function: Aggregation, items: list[Any], options: RunOptions, iterations: int) -> float | None:
    if iterations <= 0:
        return None
    if not options.compat:
        return stderr(function, items)
    return compat_stderr(function, items, iterations)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
