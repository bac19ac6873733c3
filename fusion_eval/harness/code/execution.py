"""What tasks that run generated programs have in common: documents, references that know theirs, pass@k."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.code import text
from fusion_eval.harness.code.judge import current_judge
from fusion_eval.harness.code.passing import KS, count, estimates
from fusion_eval.harness.code.source import Source, current_root, documents
from fusion_eval.harness.code.task import Task
from fusion_eval.sandbox import Limits, Program


class Reference(str):
    """Tests as text, with the document they come from."""

    __slots__ = ("doc",)
    doc: Mapping[str, Any]

    def __new__(cls, tests: str, doc: Mapping[str, Any]) -> Self:
        """The text with its document."""
        made = super().__new__(cls, tests)
        made.doc = doc
        return made


def document_of(reference: str) -> Mapping[str, Any]:
    """The document of a reference, empty for one that was read from a file."""
    return reference.doc if isinstance(reference, Reference) else {}


class ExecutionTask(Task):
    """A task of programs with tests.

    Args:
        source: where its documents are.
        stop_words: texts at which a generation ends.
        limits: what one program may use.
    """

    ks: Sequence[int] = KS

    def __init__(self, source: Source, stop_words: Sequence[str] = (), limits: Limits | None = None) -> None:
        super().__init__(stop_words, requires_execution=True)
        self.source = source
        self.limits = limits or Limits()

    @functools.cached_property
    def documents(self) -> list[dict[str, Any]]:
        """The documents, opened when first asked for."""
        return documents(self.source, current_root())

    def get_dataset(self) -> list[dict[str, Any]]:
        """The documents, in order."""
        return self.documents

    def get_reference(self, doc: Mapping[str, Any]) -> str:
        """The tests of a document."""
        return Reference(self.tests(doc), doc)

    @abstractmethod
    def tests(self, doc: Mapping[str, Any]) -> str:
        """The text of a document's tests."""

    @abstractmethod
    def solution(self, doc: Mapping[str, Any]) -> str:
        """The reference solution as a candidate, for `check_references`."""

    def identity(self, doc: Mapping[str, Any], index: int) -> str:
        """The name of a document in messages and files."""
        return str(doc.get("task_id", doc.get("name", index)))

    def obstacle(self, doc: Mapping[str, Any]) -> str:
        """Why a document cannot be judged on this machine; empty when it can."""
        return ""

    def program(self, candidate: str, reference: str) -> Program:
        """The candidate with its tests; a plain text as reference is the tests' text alone."""
        return Program(candidate, str(reference), limits=self.limits)

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The prompt and its completion up to the first stop word."""
        prompt = self.get_prompt(self.documents[idx])
        if not isinstance(prompt, str):
            return text.cut_at(generation, self.stop_words)
        return prompt + text.cut_at(text.completion_of(generation, prompt), self.stop_words)

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """pass@k over the problems.

        Raises:
            DataError: another number of generations than of references.
            SandboxError: no sandbox is open.
        """
        require_pairs(generations, references)
        programs = [
            [self.program(candidate, reference) for candidate in row]
            for row, reference in zip(generations, references, strict=True)
        ]
        return dict(estimates([count(row) for row in current_judge().score(programs)], self.ks))


def require_pairs(generations: Sequence[Sequence[str]], references: Sequence[Any]) -> None:
    """Refuses generations that do not belong to the references; raises DataError."""
    if len(generations) != len(references):
        raise DataError(
            Fault("generations", f"{len(generations)} problems", f"one list for each of {len(references)} references",
                  "Were they made with another limit, limit_start or task?")
        )  # fmt: skip
    empty = [str(number) for number, row in enumerate(generations) if not row]
    if empty:
        raise DataError(Fault("generations", f"no candidate for problem {', '.join(empty[:5])}", "at least one each"))
