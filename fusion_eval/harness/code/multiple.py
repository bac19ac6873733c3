"""MultiPL-E: HumanEval and MBPP in many languages; "MultiPL-E" (arXiv 2208.08227)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.errors import ConfigError, Fault, did_you_mean
from fusion_eval.harness.code import text
from fusion_eval.harness.code.execution import ExecutionTask, document_of
from fusion_eval.harness.code.source import Source
from fusion_eval.sandbox import Limits, Program

# MultiPL-E's name of a language -> the sandbox's.
LANGUAGES = {
    "py": "python", "js": "js", "cpp": "cpp", "java": "java", "sh": "sh", "pl": "pl", "rs": "rs", "go": "go",
    "rb": "rb", "php": "php", "lua": "lua", "r": "r", "ts": "ts",
    "cs": "cs", "d": "d", "rkt": "rkt", "ml": "ml", "elixir": "elixir", "scala": "scala",
}  # fmt: skip
_CPU = {"java": 15.0, "scala": 15.0, "elixir": 10.0, "rs": 5.0, "cpp": 5.0}


class MultiPLE(ExecutionTask):
    """One language of a translated benchmark.

    Args:
        language: as in the data set's configuration, such as "cpp".
        benchmark: "humaneval" or "mbpp".
    """

    def __init__(self, language: str, benchmark: str = "humaneval", source: Source | None = None) -> None:
        if language not in LANGUAGES:
            raise ConfigError(
                Fault("language", f"'{language}'", f"one of {', '.join(LANGUAGES)}", did_you_mean(language, LANGUAGES))
            )
        self.language = LANGUAGES[language]
        name = f"{benchmark}-{language}"
        files = (f"multiple/{name}", f"multipl-e/{name}", name)
        fields = ("name", "prompt", "tests", "stop_tokens")
        source = source or Source("nuprl/MultiPL-E", name, "test", files, fields)
        super().__init__(source, (), Limits(cpu=_CPU.get(self.language, 5.0)))

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The beginning of the function."""
        return str(doc["prompt"]).strip()

    def tests(self, doc: Mapping[str, Any]) -> str:
        """The translated tests."""
        return str(doc["tests"])

    def solution(self, doc: Mapping[str, Any]) -> str:
        """A reference, where the data have one."""
        return f"{self.get_prompt(doc)}{doc.get('canonical_solution', '')}"

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The prompt and its completion up to the document's own stop words."""
        doc = self.documents[idx]
        prompt = self.get_prompt(doc)
        return prompt + text.cut_at(text.completion_of(generation, prompt), [*doc["stop_tokens"], "<file_sep>"])

    def program(self, candidate: str, reference: str) -> Program:
        """Candidate and tests as one source."""
        label = str(document_of(reference).get("name", ""))
        mode = "in_process" if self.language == "python" else "split"
        return Program(candidate, str(reference), mode=mode, language=self.language, limits=self.limits, label=label)
