"""DS-1000: short completions on top of scientific libraries (arXiv 2211.11501)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.code import text
from fusion_eval.harness.code.execution import ExecutionTask, document_of
from fusion_eval.harness.code.source import Source
from fusion_eval.sandbox import Limits, Program

DS1000 = Source(
    "xlangai/DS-1000", None, "test", ("ds1000/test", "ds1000"), ("prompt", "code_context", "reference_code")
)
_GAP = "[insert]"
STOP_WORDS = ("</code>", "# SOLUTION END")


class DS1000Task(ExecutionTask):
    """Problems of one library or all; the data set's own test functions judge them.

    These tests put the candidate into their own program, so verdicts are `in_process`.

    Args:
        library: such as "Pandas"; None for all.
        insertion: fill in at the mark [insert] of prompts that have one.
    """

    def __init__(
        self,
        library: str | None = None,
        source: Source = DS1000,
        limits: Limits | None = None,
        insertion: bool = False,
    ) -> None:
        super().__init__(source, STOP_WORDS, limits or Limits(cpu=30.0, memory=4 << 30))
        self.library, self.insertion = library, insertion

    def get_dataset(self) -> list[dict[str, Any]]:
        """The documents of the library."""
        if self.library is None:
            return self.documents
        return [doc for doc in self.documents if doc.get("metadata", {}).get("library") == self.library]

    def get_prompt(self, doc: Mapping[str, Any]) -> str | dict[str, str]:
        """The question with the code before the gap, and in an insertion what follows it."""
        before, mark, after = str(doc["prompt"]).partition(_GAP)
        if not self.insertion:
            return before + mark + after
        if not mark:
            where = f"ds1000 problem {doc.get('metadata', {}).get('problem_id', '')}"
            expected = f"a prompt with {_GAP}, as in the benchmark's own files for insertion"
            raise DataError(Fault(where, "a prompt for completion", expected, "Use the task without -insertion."))
        return {"prefix": before, "suffix": after}

    def tests(self, doc: Mapping[str, Any]) -> str:
        """The program with the test functions."""
        return str(doc["code_context"])

    def solution(self, doc: Mapping[str, Any]) -> str:
        """The reference code."""
        return str(doc["reference_code"])

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The completion alone, as the tests insert it."""
        prompt = "" if self.insertion else str(self.get_dataset()[idx]["prompt"])
        return text.cut_at(text.completion_of(generation, prompt), self.stop_words)

    def program(self, candidate: str, reference: str) -> Program:
        """The data set's test functions applied to the candidate's text."""
        checks = [f"test_execution({candidate!r})"]
        if "def test_string(" in reference:
            checks.append(f"test_string({candidate!r})")
        label = str(document_of(reference).get("metadata", {}).get("problem_id", ""))
        return Program("", "\n".join([str(reference), *checks]), mode="in_process", limits=self.limits, label=label)
