"""A request to a model: what is asked, for which document, and what came back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    """One question to the model; repeated `repeats` times.

    Args:
        request_type: loglikelihood, loglikelihood_rolling or generate_until.
        doc: the document it belongs to.
        arguments: (context, continuation), (text,) or (context, generation settings), and media where there are some.
        idx: its position among the document's requests.
        metadata: (task name, document id, repeats).
        resps: one response per repeat.
        filtered_resps: pipeline name -> what the scorer sees.
        marks: what is noteworthy about its tokens, for instance "context truncated".
    """

    request_type: str
    doc: Any
    arguments: Any
    idx: int
    metadata: tuple[str | None, int | None, int | None] = (None, None, None)
    resps: list[Any] = field(default_factory=list)
    filtered_resps: dict[str, Any] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    task_name: str | None = field(init=False, default=None)
    doc_id: int | None = field(init=False, default=None)
    repeats: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.task_name, self.doc_id, self.repeats = self.metadata

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments as a tuple."""
        return self.arguments if isinstance(self.arguments, tuple) else (self.arguments,)


class RollingScore(float):
    """The log-likelihood of a text that also knows how many tokens it sums over."""

    __slots__ = ("tokens",)
    tokens: int

    def __new__(cls, value: float, tokens: int) -> RollingScore:
        """A float with a count."""
        score = super().__new__(cls, value)
        score.tokens = tokens
        return score

    def __reduce__(self) -> tuple[Any, ...]:
        return RollingScore, (float(self), self.tokens)
