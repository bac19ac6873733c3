"""Tasks that ask in rounds: each round's question is made from all answers so far."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.request import Request

MOST_ROUNDS = 64


@dataclass(slots=True)
class Dialogue:
    """What was said about one document.

    Args:
        request: the document's own request, which gets all answers at the end.
        asked: the request of the current round.
        outputs: answers so far, as the hook left them.
        info: whatever the hook keeps between rounds.
    """

    request: Request
    asked: Request
    outputs: list[Any] = field(default_factory=list)
    info: Any = None

    def finish(self) -> None:
        """Give the document's request the answers of all rounds."""
        self.request.resps = [tuple(self.outputs)]


@dataclass(frozen=True, slots=True)
class NextQuestion:
    """What a hook asks after a round."""

    visuals: Any
    text: str
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
    if not isinstance(said, tuple) or len(said) != 5:
        raise DataError(
            Fault("doc_to_text", f"gives {type(said).__name__} in round {number}",
                  "(visuals, text, final, outputs so far, info)")
        )  # fmt: skip
    visuals, text, final, outputs, info = said
    kept = dialogue.outputs if outputs is None else outputs
    return NextQuestion(visuals, text, bool(final), list(kept), info)
