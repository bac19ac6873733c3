from __future__ import annotations

from typing import Any

import pytest

from fusion_eval.errors import ConfigError
from fusion_eval.harness.exact_match import exact_match
from fusion_eval.harness.metric import bind


@pytest.mark.parametrize(
    ("options", "left", "right", "score"),
    [
        ({}, ["a", "b"], ["a", "c"], 0.5),
        ({"ignore_case": True}, ["A"], ["a"], 1.0),
        ({"ignore_punctuation": True}, ["a."], ["a"], 1.0),
        ({"ignore_punctuation": True}, ["a¿"], ["a"], 0.0),
        ({"ignore_numbers": True}, ["a1"], ["a"], 1.0),
        ({"regexes_to_ignore": [",", r"\$"]}, ["$1,000"], ["1000"], 1.0),
        ({"regexes_to_ignore": ["A"], "ignore_case": True}, ["Ab"], ["ab"], 0.0),
    ],
)
def test_exact_match(options: dict[str, Any], left: list[str], right: list[str], score: float) -> None:
    assert exact_match(left, right, **options)["exact_match"] == score


def test_signatures_decide_how_a_function_is_called() -> None:
    def by_name(predictions: list[str], references: list[str], k: int = 1) -> str:
        return f"{references[0]}{predictions[0]}{k}"

    def by_list(items: list[str]) -> str:
        return "|".join(items)

    assert bind("m", by_name, {"k": 3}, True).call("g", "p") == "gp3"  # type: ignore[misc]
    assert bind("m", by_list, {}, True).call("g", "p") == "g|p"  # type: ignore[misc]


def test_a_type_error_inside_a_metric_is_not_hidden() -> None:
    def broken(predictions: Any, references: Any) -> Any:
        return 1 + "x"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        bind("m", broken, {}, True).call("g", "p")  # type: ignore[misc]


def test_names() -> None:
    assert bind("bleu", "bleu", {}, True).call("g", "p") == ["g", "p"]  # type: ignore[misc]
    assert bind("accuracy", "accuracy", {}, True).call("g", "g") == {"accuracy": 1.0}  # type: ignore[misc]
    assert bind("anything", "anything", {}, False).call is None
    with pytest.raises(ConfigError, match="Did you mean 'exact_match'"):
        bind("exactmatch", "exactmatch", {}, True)
