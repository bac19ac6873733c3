"""HumanEval put as instructions: with and without the signature, and in WizardCoder's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.harness.code import text
from fusion_eval.harness.code.humaneval import HUMANEVAL, HumanEval
from fusion_eval.harness.code.source import Source

INSTRUCT = Source(
    "codeparrot/instructhumaneval",
    files=("instructhumaneval/test", "instructhumaneval"),
    fields=("task_id", "prompt", "instruction", "context", "entry_point", "canonical_solution", "test"),
)
_ENDS = ("\nif __name__", "\nprint", "\nclass")
_TALK = ("\n# Example usage", "\nif __name__")
_WIZARD = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n\n"
    "### Instruction:\nCreate a Python script for this problem:\n{problem}\n\n### Response:"
)


class InstructHumanEval(HumanEval):
    """The problem as an instruction.

    Args:
        with_context: give the signature as the beginning of the answer.
    """

    def __init__(self, with_context: bool = True, source: Source = INSTRUCT) -> None:
        super().__init__(source=source)
        self.stop_words = list(_ENDS)
        self.with_context = with_context

    def get_prompt(self, doc: Mapping[str, Any]) -> dict[str, str]:  # type: ignore[override]
        """Instruction and the beginning of the answer."""
        return {"instruction": str(doc["instruction"]), "context": str(doc["context"]) if self.with_context else ""}

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The function with the imports of the published context."""
        doc = self.documents[idx]
        if self.with_context and generation.startswith(doc["context"]):
            body = text.cut_at(generation[len(doc["context"]) :], (*_ENDS, "\n```", "\ndef"))
            return f"{doc['context']}{body}"
        head = str(doc["context"]).partition(f"def {doc['entry_point']}")[0].strip()
        return f"{head}\n{text.cut_at(_with(doc['entry_point'], generation), _ENDS)}"


class WizardHumanEval(HumanEval):
    """The problem as WizardCoder was asked it, tabs for four blanks; "WizardCoder" (arXiv 2306.08568)."""

    def __init__(self, source: Source = HUMANEVAL) -> None:
        super().__init__(strip_prompt=False, source=source)
        self.stop_words = []

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The instruction."""
        return _WIZARD.format(problem=str(doc["prompt"]).replace("    ", "\t"))

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The program of the response, without what shows its use."""
        doc = self.documents[idx]
        answer = text.completion_of(generation, self.get_prompt(doc)).replace("\t", "    ").partition("</s>")[0]
        return text.cut_at(_with(doc["entry_point"], answer), _TALK).strip() + "\n"


def _with(name: str, answer: str) -> str:
    """The fenced block that defines a function, or the answer without a fence around it."""
    block = text.fenced(answer)
    return block if f"def {name}" in block else text.cut_at(answer, ("\n```",))
