"""MBPP, its sanitized part, and MBPP+."""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fusion_eval.harness.code.execution import ExecutionTask, document_of
from fusion_eval.harness.code.source import Source, current_root, documents, local_file
from fusion_eval.sandbox import Limits, Program

STOP_WORDS = ("\nclass", "\nassert", '\n"""', "\nprint", "\nif", "\n<|/", "\n```")
MBPP = Source("mbpp", "full", files=("mbpp/mbpp", "mbpp"), fields=("task_id", "text", "code", "test_list"))
SANITIZED = Source(
    "mbpp",
    "sanitized",
    files=("mbpp/sanitized-mbpp", "sanitized-mbpp"),
    fields=("task_id", "prompt", "code", "test_list"),
)
MBPP_PLUS = Source(
    "evalplus/mbppplus",
    files=("mbppplus/MbppPlus-OriginFmt", "MbppPlus-OriginFmt"),
    fields=("task_id", "prompt", "code", "test"),
)
TEST_IDS = range(11, 511)
# Problems whose tests build the candidate's own class (367), or look at the match object it returns.
NEED_OBJECTS = frozenset({367, 737, 787, 794})
IN_PROCESS = frozenset({255})  # the additional inputs of MBPP+ make it return a gigabyte, too much to send
SLOW = {599: 60.0}  # its reference needs 15 s of CPU time on the additional inputs


class Mbpp(ExecutionTask):
    """Write a function from a sentence and an example; "Program Synthesis with Large Language Models" (2108.07732).

    Unlike the peers' executor, the set-up code of a problem is run, without which 367 cannot be passed.

    Args:
        sanitized: the 427 problems that were verified by hand.
    """

    def __init__(self, sanitized: bool = False, source: Source | None = None, limits: Limits | None = None) -> None:
        super().__init__(source or (SANITIZED if sanitized else MBPP), STOP_WORDS, limits)

    @property
    def _text_field(self) -> str:
        return "text" if self.source == MBPP else "prompt"

    @functools.cached_property
    def documents(self) -> list[dict[str, Any]]:
        """The test split of the full set, all problems of the others."""
        found = documents(self.source, current_root())
        whole = self.source == MBPP and local_file(self.source, current_root()) is not None
        return [doc for doc in found if not whole or doc["task_id"] in TEST_IDS]

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The description and the first test as a docstring."""
        return f'"""\n{doc[self._text_field]}\n{doc["test_list"][0]}\n"""\n'

    def tests(self, doc: Mapping[str, Any]) -> str:
        """Imports, set-up and asserts."""
        return "\n".join([*doc.get("test_imports", ()), doc.get("test_setup_code", ""), *doc["test_list"]])

    def solution(self, doc: Mapping[str, Any]) -> str:
        """The reference code."""
        return str(doc["code"])

    def program(self, candidate: str, reference: str) -> Program:
        """The functions that the reference defines and the tests name are called in the candidate."""
        doc = document_of(reference)
        if not doc:
            return super().program(candidate, reference)
        number = int(doc["task_id"])
        limits = replace(self.limits, cpu=max(self.limits.cpu, SLOW.get(number, 0.0)), wall=0.0)
        return Program(
            candidate,
            str(reference),
            entry_points(str(doc["code"]), str(reference)),
            mode="in_process" if number in IN_PROCESS and self.source == MBPP_PLUS else "split",
            objects=number in NEED_OBJECTS,
            limits=limits,
            label=f"Mbpp/{number}",
        )


class MbppPlus(Mbpp):
    """MBPP with many more inputs (arXiv 2305.01210), in the hub's layout."""

    def __init__(self, source: Source = MBPP_PLUS) -> None:
        super().__init__(source=source, limits=Limits(cpu=10.0, memory=4 << 30))

    def tests(self, doc: Mapping[str, Any]) -> str:
        """Imports and the published test."""
        return "\n".join([*doc.get("test_imports", ()), doc["test"]])


def entry_points(code: str, tests: str) -> tuple[str, ...]:
    """The top-level functions and classes of a solution that its tests call by name."""
    defined = [
        node.name
        for node in _parsed(code).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    called = {node.id for node in ast.walk(_parsed(tests)) if isinstance(node, ast.Name)}
    return tuple(dict.fromkeys(name for name in defined if name in called))


def _parsed(code: str) -> ast.Module:
    """The syntax tree; published solutions hold escapes such as "\\w", which Python warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        return ast.parse(code)
