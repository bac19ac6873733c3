"""The first half of HumanEvalPack's explaining: descriptions of code, which the second half turns into code again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.harness.code import text
from fusion_eval.harness.code.humanevalpack import TEMPLATES, HumanEvalPack


class Describe(HumanEvalPack):
    """Describes each problem's reference solution in no more characters than its docstring; nothing is executed.

    Its generations are the `descriptions` of the kind "explainsynthesize".
    """

    def __init__(self, language: str = "python", prompt: str = "instruct") -> None:
        super().__init__(language, "explainsynthesize", prompt)
        self.requires_execution = False
        self.stop_words = ["\n```"]

    def get_prompt(self, doc: Mapping[str, Any]) -> str | dict[str, str]:
        """The code and the request to describe it."""
        length = len(str(doc["docstring"]))
        code = f"{doc['declaration']}{doc['canonical_solution']}".strip()
        ask = f"Provide a concise natural language description of the code using at most {length} characters."
        if self.template == "chat":
            return {"instruction": f"{code}\n{ask}", "context": ""}
        return TEMPLATES[self.template].format(instruction=f"{code}\n{ask}", base="").rstrip()

    def get_reference(self, doc: Mapping[str, Any]) -> str:
        """The docstring, which nothing is compared with."""
        return str(doc["docstring"])

    def obstacle(self, doc: Mapping[str, Any]) -> str:
        """Nothing is in the way of a description."""
        return ""

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The description, no longer than the docstring."""
        doc = self.documents[idx]
        prompt = self.get_prompt(doc)
        answer = text.completion_of(generation, prompt if isinstance(prompt, str) else "").strip()
        return text.cut_at(answer, self.stop_words)[: len(str(doc["docstring"]))]

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """The share of problems with a description."""
        return {"described": sum(bool(row[0]) for row in generations) / len(references)}
