"""The task class of code generation, in the shape that BigCode's harness made common."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.harness.code import text
from fusion_eval.harness.code.source import Source, current_root, load

Document = Any
Generations = Sequence[Sequence[str]]


class Task(ABC):
    """One benchmark of generated programs or texts.

    A task of the user's implements the six methods below; `process_results` may call `code_eval` (or
    `evaluate.load("code_eval")`), which runs in the sandbox.

    Args:
        stop_words: texts at which a generation ends.
        requires_execution: whether scoring runs generated code.
    """

    DATASET_PATH: str | None = None
    DATASET_NAME: str | None = None

    def __init__(self, stop_words: Sequence[str] | None = None, requires_execution: bool = True) -> None:
        self.stop_words = list(stop_words or ())
        self.requires_execution = requires_execution

    @functools.cached_property
    def dataset(self) -> Any:
        """The data set's splits by name, opened when first asked for."""
        return load(Source(self.DATASET_PATH or "", self.DATASET_NAME), current_root())

    def fewshot_examples(self) -> Any:
        """Examples to put into prompts; none unless a task has some."""
        return []

    @abstractmethod
    def get_dataset(self) -> Any:
        """The documents, in order."""

    @abstractmethod
    def get_prompt(self, doc: Document) -> str | Mapping[str, str]:
        """The prompt: a text, {"prefix", "suffix"} to fill in, or {"instruction", "context"} for a chat."""

    @abstractmethod
    def get_reference(self, doc: Document) -> Any:
        """The tests, or the text to compare with."""

    @abstractmethod
    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The candidate in a generation, which begins with the prompt."""

    @abstractmethod
    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """The metrics."""

    @staticmethod
    def _stop_at_stop_token(decoded_string: str, stop_tokens: Sequence[str]) -> str:
        return text.cut_at(decoded_string, stop_tokens)
