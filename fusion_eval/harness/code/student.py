"""StudentEval: prompts that beginners wrote, by whether they worked when they were written (arXiv 2306.04556)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from fusion_eval.harness.code.execution import ExecutionTask, document_of, require_pairs
from fusion_eval.harness.code.judge import current_judge
from fusion_eval.harness.code.passing import count, estimates
from fusion_eval.harness.code.source import Source
from fusion_eval.sandbox import Limits, Program

STUDENT = Source(
    "wellesley-easel/StudentEval",
    files=("studenteval/test", "studenteval", "StudentEval"),
    fields=("problem", "entrypoint", "prompt", "assertions"),
)
GROUPS = ("first_success", "last_success", "first_failure", "last_failure")


class StudentEval(ExecutionTask):
    """Prompts that were a student's first or last try, successful or not."""

    def __init__(self, source: Source = STUDENT) -> None:
        super().__init__(source, ("\ndef", "\nclass", "\nif", "\nprint"), Limits(cpu=15.0))

    @functools.cached_property
    def documents(self) -> list[dict[str, Any]]:
        """The prompts that belong to a group."""
        return [doc for doc in super().documents if group_of(doc)]

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The student's signature and description."""
        return str(doc["prompt"]).rstrip()

    def identity(self, doc: Mapping[str, Any], index: int) -> str:
        """Problem, group and place."""
        return f"{doc['problem']}/{group_of(doc)}/{index}"

    def tests(self, doc: Mapping[str, Any]) -> str:
        """The problem's assertions."""
        found = doc["assertions"]
        return found if isinstance(found, str) else "\n".join(found)

    def solution(self, doc: Mapping[str, Any]) -> str:
        """A completion that was right when it was recorded, of this prompt or another one of the problem."""
        worked = [other for other in [doc, *self.documents] if _is_worked(other, doc["problem"])]
        best = worked[0] if worked else doc
        return f"{best['prompt']}{best.get('completion', '')}"

    def program(self, candidate: str, reference: str) -> Program:
        """The candidate with the assertions."""
        doc = document_of(reference)
        entry = (str(doc["entrypoint"]),) if doc else ()
        return Program(candidate, str(reference), entry, objects=True, limits=self.limits)

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """pass@k over all prompts, and pass@1 of each group."""
        require_pairs(generations, references)
        programs = [[self.program(code, ref) for code in row] for row, ref in zip(generations, references, strict=True)]
        counts = [count(row) for row in current_judge().score(programs)]
        metrics = dict(estimates(counts, self.ks))
        groups = [group_of(document_of(reference)) for reference in references]
        for name in GROUPS:
            chosen = [row for row, group in zip(counts, groups, strict=True) if group == name]
            if chosen:
                metrics[f"pass@1/{name}"] = estimates(chosen, (1,))["pass@1"]
        return metrics


def group_of(doc: Mapping[str, Any]) -> str:
    """The group of a prompt; empty for one in between."""
    return next((name for name in GROUPS if doc.get(f"is_{name}")), "")


def _is_worked(doc: Mapping[str, Any], problem: str) -> bool:
    return doc["problem"] == problem and "success" in group_of(doc)
