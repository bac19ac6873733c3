"""Programs with bugs to repair: QuixBugs, python-bugs, and a parity function with one to five bugs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

from fusion_eval.errors import ConfigError, Fault, did_you_mean
from fusion_eval.harness.code import text
from fusion_eval.harness.code.execution import ExecutionTask, document_of, require_pairs
from fusion_eval.harness.code.judge import current_judge
from fusion_eval.harness.code.passing import count, estimates
from fusion_eval.harness.code.source import Source, current_root, documents
from fusion_eval.harness.code.task import Task
from fusion_eval.sandbox import Limits, Program

_EDIT = ("<commit_before>", "<commit_msg>", "<commit_after>", "<|endoftext|>")
_TOP = ("\nclass", "\ndef", "\n#", "\n@", "\nprint", "\nif")
QUIXBUGS = Source(
    "Muennighoff/quixbugs", None, "train", ("quixbugs/train", "quixbugs"), ("name", "buggy_program", "tests")
)
PYTHON_BUGS = Source(
    "Muennighoff/python-bugs", None, "train", ("python-bugs/train", "python-bugs"),
    ("task", "prompt_code", "correct_code"),
)  # fmt: skip
_PAST = {"bin-op": "# Fixed binary operator", "var-misuse": "# Fixed incorrect variable name"}
_BUGS = {
    "prompt": ("#!/usr/bin/python3\n# A buggy implementation\n{code}\n{what}\ndef", "def"),
    "prompt_carper": ("# A buggy implementation\n#!/usr/bin/python3\n{code}\n{what}\ndef", "def"),
    "edit": ("<commit_before>{code}<commit_msg>{what}<commit_after>", ""),
    "diff": ("<NME> parity.py\n<BEF> {code}\n<MSG> {what}", ""),
}
_QUIX = {
    "prompt": ("# Buggy function\n{code}\n# Fixed function\ndef", "def"),
    "prompt_codex": ("### fix the bug in the following function\n{code}\n### fixed function", ""),
    "edit": ("<commit_before>{code}<commit_msg>Fix bug in {name}<commit_after>", ""),
}


def _template(prompt: str, known: Mapping[str, tuple[str, str]], without: tuple[str, ...] = ()) -> tuple[str, str]:
    names = [name for name in known if name not in without]
    if prompt not in names:
        raise ConfigError(Fault("prompt", f"'{prompt}'", f"one of {', '.join(names)}", did_you_mean(prompt, names)))
    return known[prompt]


class QuixBugs(ExecutionTask):
    """Forty classic algorithms with one bug each.

    Args:
        prompt: prompt, prompt_codex or edit.
    """

    max_length_multiplier = 3.0

    def __init__(self, prompt: str = "prompt", source: Source = QUIXBUGS) -> None:
        self.template, self.opening = _template(prompt, _QUIX)
        stops = _EDIT if prompt == "edit" else (*_TOP, "###", "///", "<|endoftext|>")
        super().__init__(source, stops, Limits(cpu=10.0))

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The function with its bug, and the beginning of the right one."""
        return self.template.format(code=doc["buggy_program"], name=doc["name"]).strip()

    def identity(self, doc: Mapping[str, Any], index: int) -> str:
        """The algorithm."""
        return str(doc["name"])

    def tests(self, doc: Mapping[str, Any]) -> str:
        """The algorithm's tests."""
        return str(doc["tests"]).strip()

    def solution(self, doc: Mapping[str, Any]) -> str:
        """The function without the bug."""
        return str(doc.get("solution", ""))

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The repaired function, up to the first stop word."""
        answer = text.completion_of(generation, self.get_prompt(self.documents[idx]))
        return self.opening + text.cut_at(answer, self.stop_words)

    def program(self, candidate: str, reference: str) -> Program:
        """The function with its tests; some pass it graphs and lists of their own."""
        doc = document_of(reference)
        entry = (str(doc["name"]),) if doc else ()
        return Program(candidate, str(reference), entry, objects=True, limits=self.limits)


class PythonBugs(Task):
    """Single-function repairs of wrong operators and variables, by exact match (Muennighoff/python-bugs).

    Args:
        prompt: prompt, prompt_carper or edit.
    """

    max_length_multiplier = 2.25

    def __init__(self, prompt: str = "prompt", source: Source = PYTHON_BUGS) -> None:
        self.template, self.opening = _template(prompt, _BUGS, ("diff",))
        self.source, self.past = source, prompt != "edit"
        super().__init__(["\nclass", "\n#", "\ndef", "\nassert", '\n"', "\nprint", "\nif", *_EDIT], False)

    def get_dataset(self) -> list[dict[str, Any]]:
        """The documents."""
        return documents(self.source, current_root())

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The function with its bug, what is wrong, and the beginning of the right one."""
        what = _PAST[doc["task"]] if self.past else _PAST[doc["task"]].removeprefix("# ").replace("Fixed", "Fix")
        return self.template.format(code=doc["prompt_code"], what=what)

    def get_reference(self, doc: Mapping[str, Any]) -> str:
        """The function without the bug."""
        return str(doc["correct_code"])

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The repaired function, no longer than the right one."""
        doc = self.get_dataset()[idx]
        answer = self.opening + text.completion_of(generation, self.get_prompt(doc))
        return answer[: len(doc["correct_code"])]

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """The mean over problems of the share of samples that equal the right function."""
        require_pairs(generations, references)
        rows = zip(generations, references, strict=True)
        shares = [sum(code == right for code in row) / len(row) for row, right in rows]
        return {"mean exact match": math.fsum(shares) / len(shares)}


class Parity(ExecutionTask):
    """A four-bit parity function with one to five bugs; "Evolution through Large Models" (arXiv 2206.08896).

    Args:
        prompt: prompt, prompt_carper, edit or diff.
    """

    max_length_multiplier = 3.0

    def __init__(self, prompt: str = "prompt") -> None:
        self.template, self.opening = _template(prompt, _BUGS)
        self.what = "Fix bugs" if prompt == "edit" else "Fixed bugs" if prompt == "diff" else "# Fixed bugs"
        super().__init__(Source(""), (*_TOP, *_EDIT))

    @functools.cached_property
    def documents(self) -> list[dict[str, Any]]:
        """One document for each number of bugs."""
        return [{"task_id": f"{n} bugs", "bugs": n} for n in range(1, 6)]

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The function with its bugs, and the beginning of the right one."""
        return self.template.format(code=parity(doc["bugs"]), what=self.what)

    def tests(self, doc: Mapping[str, Any]) -> str:
        """All sixteen inputs."""
        rows = [f"parity{bits} == {sum(bits) % 2}" for bits in itertools.product(range(2), repeat=4)]
        return "\n".join(f"assert {row}" for row in rows)

    def solution(self, doc: Mapping[str, Any]) -> str:
        """The function without bugs."""
        return parity(0)

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The repaired function, up to the first stop word."""
        answer = text.completion_of(generation, self.get_prompt(self.documents[idx]))
        return (self.opening + text.cut_at(answer, self.stop_words)).rstrip()

    def program(self, candidate: str, reference: str) -> Program:
        """The function with its tests."""
        return Program(candidate, str(reference), ("parity",), limits=self.limits)

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """pass@k over the numbers of bugs, and pass@1 of each."""
        require_pairs(generations, references)
        programs = [[self.program(code, ref) for code in row] for row, ref in zip(generations, references, strict=True)]
        counts = [count(row) for row in current_judge().score(programs)]
        names = [document_of(reference)["task_id"] for reference in references]
        single = {f"pass@1/{name}": estimates([row], (1,))["pass@1"] for name, row in zip(names, counts, strict=True)}
        return {**estimates(counts, self.ks), **single}


def parity(bugs: int) -> str:
    """The parity function whose first names, then its modulus, are wrong."""
    names = ["c" if place < bugs else "b" for place in range(4)]
    total = ",".join(f"{name}{place}" for place, name in enumerate(names, 1))
    return (
        'def parity(b1,b2,b3,b4):\n    """Return binary parity of a sequence of input bits.'
        ' Return 0 for even parity, 1 for odd parity."""\n'
        f"    bit_sum = sum([{total}])\n    return bit_sum % {3 if bugs > 4 else 2}"
    )
