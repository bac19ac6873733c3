"""HumanEvalPack: synthesize, fix and explain in six languages; "OctoPack" (arXiv 2308.07124)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusion_eval.errors import ConfigError, Fault, did_you_mean
from fusion_eval.harness.code import text
from fusion_eval.harness.code.execution import ExecutionTask, document_of
from fusion_eval.harness.code.go import go_source
from fusion_eval.harness.code.humaneval import STOP_WORDS
from fusion_eval.harness.code.source import Source
from fusion_eval.sandbox import Limits, Program

KINDS = ("synthesize", "fixtests", "fixdocs", "explainsynthesize")
TEMPLATES = {
    "continue": "{base}",
    "instruct": "{instruction}\n\n{base}",
    "octocoder": "Question: {instruction}\n\nAnswer:\n{base}",
    "codellama": "[INST] {instruction} [/INST] {base}",
    "starchat": "<|system|>\n<|end|>\n<|user|>\n{instruction}<|end|>\n<|assistant|>\n{base}",
    "chat": "",
}
_CPP_HEADERS = (
    *("iostream", "vector", "string", "map", "set", "algorithm", "cmath", "numeric", "climits"),
    *("stdio.h", "stdlib.h", "math.h"),
)
_CPP = "\n".join(f"#include<{name}>" for name in _CPP_HEADERS)
_JAVA = (
    "import java.util.*;\nimport java.lang.*;\nimport java.util.stream.*;\nimport java.security.*;\nimport java.math.*;"
)


@dataclass(frozen=True, slots=True)
class PackLanguage:
    """How one language's problems become programs.

    Args:
        language: its name in the sandbox.
        stop_words: for a continuation.
        depth: braces open where the continuation begins, 0 for languages without.
        preamble: imports that solutions take for granted.
        cpu: seconds of CPU time for a run.
        packages: pattern of uses of packages that no offline toolchain has.
    """

    language: str
    stop_words: Sequence[str]
    depth: int = 1
    preamble: str = ""
    cpu: float = 5.0
    packages: str = ""


LANGUAGES = {
    "python": PackLanguage("python", (*STOP_WORDS, "\nassert"), 0, "", 3.0),
    "js": PackLanguage("js", (), packages=r"require\(['\"]js-md5['\"]\)|\bmd5\("),
    "cpp": PackLanguage("cpp", (), preamble=_CPP),
    "java": PackLanguage("java", (), 2, _JAVA, 10.0),
    "go": PackLanguage("go", ()),
    "rust": PackLanguage("rs-test", (), packages=r"\bthread_rng\b|\bRegex::|\bmd5::|\brand::(?!Rng)"),
}


class HumanEvalPack(ExecutionTask):
    """One kind of task in one language.

    Args:
        language: python, js, cpp, java, go or rust.
        kind: synthesize, fixtests, fixdocs or explainsynthesize.
        prompt: a name of TEMPLATES; "chat" gives instruction and context apart.
        descriptions: for explainsynthesize, a model's own description of each problem.
    """

    def __init__(
        self,
        language: str = "python",
        kind: str = "synthesize",
        prompt: str = "instruct",
        descriptions: Sequence[str] = (),
        source: Source | None = None,
    ) -> None:
        for given, known, where in (
            (language, LANGUAGES, "language"),
            (kind, KINDS, "kind"),
            (prompt, TEMPLATES, "prompt"),
        ):
            if given not in known:
                raise ConfigError(Fault(where, f"'{given}'", f"one of {', '.join(known)}", did_you_mean(given, known)))
        self.rules = LANGUAGES[language]
        self.kind, self.template, self.descriptions = kind, prompt, list(descriptions)
        files = (f"humanevalpack/{language}", f"humanevalpack-{language}")
        fields = ("task_id", "prompt", "declaration", "canonical_solution", "buggy_solution", "test", "entry_point")
        source = source or Source("bigcode/humanevalpack", language, "test", files, fields)
        super().__init__(source, self.rules.stop_words, Limits(cpu=self.rules.cpu))

    def get_prompt(self, doc: Mapping[str, Any]) -> str | dict[str, str]:
        """The instruction and the beginning of the answer, in the chosen template."""
        instruction, base = self._instruction(doc), self.base(doc)
        if self.template == "chat":
            return {"instruction": instruction, "context": base}
        return TEMPLATES[self.template].format(instruction=instruction.strip(), base=base)

    def base(self, doc: Mapping[str, Any]) -> str:
        """The code that a continuation continues."""
        return str(doc["prompt"] if self.kind in ("synthesize", "fixdocs") else doc["declaration"]).rstrip()

    def _instruction(self, doc: Mapping[str, Any]) -> str:
        if self.kind == "synthesize":
            return str(doc.get("instruction", ""))
        if self.kind == "explainsynthesize":
            return self._described(doc)
        name = doc["entry_point"]
        start = doc["prompt"] if self.kind == "fixdocs" else doc["declaration"]
        shown = f"{start}{doc['buggy_solution']}"
        return (
            f"{shown}\n{doc['test']}\nFix bugs in {name}."
            if self.kind == "fixtests"
            else f"{shown}\nFix bugs in {name}."
        )

    def _described(self, doc: Mapping[str, Any]) -> str:
        place = self.documents.index(dict(doc))
        if place >= len(self.descriptions):
            raise ConfigError(
                Fault(
                    "descriptions",
                    f"{len(self.descriptions)} of them",
                    f"one for each of {len(self.documents)} problems",
                    "Run the explain-describe half first and give its generations.",
                )
            )
        return f"{self.descriptions[place]}\nWrite functional code according to the description."

    def tests(self, doc: Mapping[str, Any]) -> str:
        """The published tests."""
        return str(doc["test"])

    def solution(self, doc: Mapping[str, Any]) -> str:
        """Prompt and canonical solution."""
        return f"{doc['prompt']}{doc['canonical_solution']}"

    def buggy(self, doc: Mapping[str, Any]) -> str:
        """Prompt and the solution with a bug, which must not pass."""
        return f"{doc['prompt']}{doc['buggy_solution']}"

    def obstacle(self, doc: Mapping[str, Any]) -> str:
        """Problems whose reference needs a package or a header that is not here."""
        text = f"{doc['canonical_solution']}\n{doc['test']}"
        used = re.search(self.rules.packages, text) if self.rules.packages else None
        if used:
            return f"its reference needs a package ({used.group(0)})"
        headers = re.findall(
            r"#include\s*<((?:boost|openssl)/[\w./]+)>", f"{doc['prompt']}\n{doc['declaration']}\n{text}"
        )
        absent = [name for name in headers if not Path("/usr/include", name).exists()]
        return f"its reference needs the header {absent[0]}" if absent else ""

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The function: fence and prompt removed, cut at a stop word or at the closing brace."""
        doc = self.documents[idx]
        prompt, base = self.get_prompt(doc), self.base(doc)
        answer = text.completion_of(generation, prompt if isinstance(prompt, str) else "")
        whole = "```" in answer and str(doc["entry_point"]) in text.fenced(answer)
        answer = text.fenced(answer) if whole else text.cut_at(answer, ("\n```",))
        if not self.rules.depth:
            return answer if whole else base + text.cut_at(answer, self.stop_words)
        return answer if whole else base + text.until_balanced(answer, self.rules.depth)

    def program(self, candidate: str, reference: str) -> Program:
        """Candidate and tests; in Python the prompt's helpers stand on the tests' side."""
        doc = document_of(reference)
        label = str(doc.get("task_id", ""))
        if self.rules.language == "python":
            entry = (str(doc["entry_point"]),) if doc else ()
            return Program(
                candidate, str(reference), entry, str(doc.get("prompt", "")), limits=self.limits, label=label
            )
        code = self._source(candidate, doc)
        return Program(code, str(reference), language=self.rules.language, limits=self.limits, label=label)

    def _source(self, candidate: str, doc: Mapping[str, Any]) -> str:
        if self.rules.language == "rs-test":
            main = "" if "fn main" in candidate else "fn main(){}\n"
            return main + re.sub(r"(?m)^use (?:rand::Rng|regex::Regex|md5);\n", "", candidate)
        if self.rules.language == "go":
            return go_source(candidate, doc)
        return f"{self.rules.preamble}\n{candidate}"
