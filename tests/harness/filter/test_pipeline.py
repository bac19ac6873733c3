from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from fusion_eval.errors import ConfigError, DataError
from fusion_eval.harness.filter import EachFilter, Pipeline, build_pipeline, filter_names, register_filter
from fusion_eval.harness.request import Request
from fusion_eval.harness.spec import FilterStep, PipelineSpec


def run(responses: Sequence[Sequence[Any]], *steps: tuple[Any, dict[str, Any]], docs: Sequence[Any] = ()) -> list[Any]:
    return run_pipeline(responses, *steps, docs=docs)[0]


def run_pipeline(
    responses: Sequence[Sequence[Any]], *steps: tuple[Any, dict[str, Any]], docs: Sequence[Any] = ()
) -> tuple[list[Any], Pipeline]:
    requests = [
        Request("generate_until", docs[i] if docs else {}, ("", {}), 0, resps=list(r)) for i, r in enumerate(responses)
    ]
    pipeline = build_pipeline(PipelineSpec("p", tuple(FilterStep(name, options) for name, options in steps)))
    pipeline.apply(requests)
    return [request.filtered_resps["p"] for request in requests], pipeline


def test_selections() -> None:
    assert run([["a", "b", "b"]], ("majority_vote", {}), ("take_first", {})) == ["b"]
    assert run([["a", "b"]], ("majority_vote", {}), ("take_first", {})) == ["a"]
    assert run([["a", "b", "c"]], ("take_first_k", {"k": 2})) == [["a", "b"]]
    with pytest.raises(DataError, match="at most 1, the number of repeats"):
        run([["a"]], ("take_first_k", {"k": 2}))


def test_text_filters_and_map() -> None:
    steps = [("remove_whitespace", {}), ("lowercase", {}), ("map", {"mapping_dict": {"a": 1}, "default_value": 0})]
    assert run([[" A ", "b"]], *steps) == [[1, 0]]
    assert run([[" a "]], ("strip_whitespace", {}), ("uppercase", {})) == [["A"]]


def test_a_function_of_all_responses() -> None:
    def joined(resps: Sequence[Any], docs: Sequence[Any]) -> list[Any]:
        return [[own[0] + str(doc)] for own, doc in zip(resps, docs, strict=True)]

    assert run([["a"], ["b"]], ("custom", {"filter_fn": joined}), docs=[1, 2]) == [["a1"], ["b2"]]


def test_a_class_of_the_users_and_a_registered_one() -> None:
    class Twice(EachFilter):
        def one(self, response: Any) -> Any:
            return response * 2

    assert run([["a"]], (Twice, {})) == [["aa"]]
    register_filter("test_twice")(Twice)
    assert "test_twice" in filter_names()
    assert run([["a"]], ("test_twice", {})) == [["aa"]]


def test_failures_name_the_step() -> None:
    with pytest.raises(DataError, match=r"filter_list 'p' step 2 \(Lowercase\): AttributeError"):
        run([[1]], ("take_first_k", {"k": 1}), ("lowercase", {}))
    with pytest.raises(DataError, match="gives 1 items; expected 2"):
        run([["a"], ["b"]], ("custom", {"filter_fn": lambda resps, docs: resps[:1]}))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (("lowercas", {}), "Did you mean 'lowercase'"), (("regex", {"patern": "x"}), "patern"),
        (("regex", {"regex_pattern": "("}), "unterminated"),
    ],
)  # fmt: skip
def test_wrong_steps_are_told_before_anything_runs(step: tuple[str, dict[str, Any]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run([], step)


def test_pipelines_know_whether_lists_stay_lists() -> None:
    assert run_pipeline([["a"]], ("lowercase", {}), ("regex", {"regex_pattern": "(a)"}))[1].keeps_lists
    assert not run_pipeline([["a"]], ("lowercase", {}), ("take_first", {}))[1].keeps_lists


def _generator(resps: Iterable[Any], docs: Sequence[Any]) -> Iterable[Any]:
    yield from resps


def test_generators_are_fine() -> None:
    assert run([["a"]], ("custom", {"filter_fn": _generator}), ("take_first", {})) == ["a"]
