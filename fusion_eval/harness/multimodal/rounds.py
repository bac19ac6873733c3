"""Tasks that ask in rounds: each round's question is made from all answers so far.

Of an agentic task the functions of the task's own file are the tools that a model calls in its answers; what counts is
the last output alone.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.request import Request

MOST_ROUNDS = 64
AGENTIC_ROUNDS = 12
"""Rounds of an agentic task whose file does not say `max_agentic_steps`."""

_TOLD = ("cash", "days_elapsed", "inventory", "mobile_data_working")


@dataclass(slots=True)
class Dialogue:
    """What was said about one document.

    Args:
        request: the document's own request, which gets all answers at the end.
        asked: the request of the current round.
        outputs: answers so far, as the hook left them.
        info: whatever the hook keeps between rounds.
        steps: rounds of an agentic task; None for a task whose scores get all answers.
    """

    request: Request
    asked: Request
    outputs: list[Any] = field(default_factory=list)
    info: Any = None
    steps: int | None = None

    def finish(self) -> None:
        """Give the document's request the answers of all rounds, or the outcome of an agentic task."""
        self.request.resps = [tuple(self.outputs) if self.steps is None else outcome_of(self.outputs, self.info)]


def outcome_of(outputs: list[Any], info: Any) -> Any:
    """The last output; where it is no JSON object, one that tells how far an agentic task came before it ended."""
    last = outputs[-1] if outputs else ""
    if info is None or (isinstance(last, str) and last.strip().startswith("{")):
        return last
    told = info if isinstance(info, Mapping) else {}
    state = told.get("state", {})
    calls = told.get("tool_calls", 0)
    found = {
        "success": False, "error": "max_agentic_steps_reached", "tool_calls": float(calls),
        "valid_tool_calls": float(told.get("valid_tool_calls", calls)),
        "invalid_steps": float(told.get("invalid_steps", 0.0)), "state": state, "last_model_output": last,
        "trace": outputs,
    }  # fmt: skip
    kept = {key: state[key] for key in _TOLD if key in state} if isinstance(state, Mapping) else {}
    return json.dumps({**found, **kept}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class NextQuestion:
    """What a hook asks after a round."""

    visuals: Any
    text: str | None
    final: bool
    outputs: list[Any]
    info: Any


def next_question(
    hook: Callable[..., Any], document: Any, kwargs: Any, dialogue: Dialogue, number: int
) -> NextQuestion:
    """The question of round `number`.

    The hook gets `previous_output` (all answers so far), `round_idx` and `previous_round_info`, and returns
    `(visuals, text, final, outputs, info)`; where `final` is true nothing more is asked.

    Raises:
        DataError: another shape, or more than 64 rounds.
    """
    if number > MOST_ROUNDS:
        raise DataError(Fault("doc_to_text", f"asks a {number}th round", f"at most {MOST_ROUNDS}"))
    given = {
        "lmms_eval_specific_kwargs": kwargs, "previous_output": list(dialogue.outputs), "round_idx": number,
        "previous_round_info": dialogue.info,
    }  # fmt: skip
    parameters = inspect.signature(hook).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        given = {name: value for name, value in given.items() if name in parameters}
    said = hook(document, **given)
    if dialogue.steps is not None and not (isinstance(said, tuple) and len(said) == 5):
        return NextQuestion(None, said if isinstance(said, str) else None, not isinstance(said, str),
                            dialogue.outputs, dialogue.info)  # fmt: skip
    if not isinstance(said, tuple) or len(said) != 5:
        raise DataError(
            Fault("doc_to_text", f"gives {type(said).__name__} in round {number}",
                  "(visuals, text, final, outputs so far, info)")
        )  # fmt: skip
    visuals, text, final, outputs, info = said
    kept = dialogue.outputs if outputs is None else outputs
    last = bool(final) or (dialogue.steps is not None and number >= dialogue.steps)
    return NextQuestion(visuals, text, last, list(kept), info)
