"""Mercury: programs that are right and fast, beside the run times of known solutions (arXiv 2402.07844)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.code import text
from fusion_eval.harness.code.efficiency import beyond
from fusion_eval.harness.code.execution import ExecutionTask, Reference, document_of, require_pairs
from fusion_eval.harness.code.humaneval import STOP_WORDS
from fusion_eval.harness.code.judge import current_judge
from fusion_eval.harness.code.passing import Counts, count, estimates
from fusion_eval.harness.code.source import Source
from fusion_eval.sandbox import Limits, Program, Verdict

MERCURY = Source(
    "Elfsong/Mercury", None, "eval", ("mercury/eval", "mercury", "Mercury"),
    ("slug_name", "difficulty", "pretty_content", "prompt", "solutions", "convert_offline", "evaluate_offline",
     "entry_point", "test_cases"),
)  # fmt: skip
RUNS = 5
_PRELUDE = """
import re, itertools, collections, heapq, bisect, string, sys, functools, math, copy
from math import floor, ceil, factorial, sqrt, inf
from sys import maxsize, stdin
from bisect import bisect_left, bisect_right
from itertools import permutations, zip_longest
from heapq import heappush, heappop, heapify
from collections import deque, defaultdict, OrderedDict
from typing import List, Optional, Tuple
from functools import lru_cache, cache

class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next

class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right

def print(*args, **options):
    pass
"""
_TEST = """
{convert}
{evaluate}
_solution = Solution()
for _case in {cases}:
    inputs, expected = convert_offline((_case["input"], _case["expected"]))
    outputs = _solution.{entry}(*inputs)
    assert evaluate_offline(inputs, outputs, expected)
"""


class Mercury(ExecutionTask):
    """Methods of a class `Solution`, whose run time counts as well as their answers.

    Run times are seconds of CPU time in the sandbox, the mean of several runs; those of the reference solutions are
    measured in the same scoring, so that machine and load are the same.
    """

    def __init__(self, source: Source = MERCURY) -> None:
        super().__init__(source, STOP_WORDS, Limits(cpu=10.0))

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The problem's text and the beginning of the class."""
        content = doc["pretty_content"]
        told = content if isinstance(content, str) else content[0]
        return f"'''{told}'''\n{doc['prompt']}"

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The class: what was generated, after the beginning that was given where the answer goes on from it."""
        doc = self.documents[idx]
        answer = text.completion_of(generation, self.get_prompt(doc))
        if "class Solution" in text.fenced(answer):
            return text.fenced(answer)
        return f"{doc['prompt']}{text.cut_at(answer, self.stop_words)}"

    def identity(self, doc: Mapping[str, Any], index: int) -> str:
        """The problem's short name."""
        return str(doc["slug_name"])

    def tests(self, doc: Mapping[str, Any]) -> str:
        """A loop over the test cases with the problem's own conversion and comparison."""
        cases = json.loads(doc["test_cases"]) if isinstance(doc["test_cases"], str) else doc["test_cases"]
        return _TEST.format(
            convert=doc["convert_offline"], evaluate=doc["evaluate_offline"], cases=repr(cases),
            entry=doc["entry_point"],
        )  # fmt: skip

    def solution(self, doc: Mapping[str, Any]) -> str:
        """The first known solution."""
        return _solutions(doc)[0]

    def program(self, candidate: str, reference: str, run: int = 0) -> Program:
        """Candidate and test cases in one process, since trees and lists are passed; runs differ by a comment."""
        return Program(
            f"{candidate}\n# run {run}\n", str(reference), helpers=_PRELUDE, mode="in_process", limits=self.limits,
            label=str(document_of(reference).get("slug_name", "")),
        )  # fmt: skip

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """pass@k and beyond@1 over all problems and by difficulty."""
        require_pairs(generations, references)
        verdicts = current_judge().score(
            [[self.program(code, ref) for code in row] for row, ref in zip(generations, references, strict=True)]
        )
        known = [self._known(reference) for reference in references]
        beyonds = [
            [beyond(self._seconds(code, ref, first), times) for code, first in zip(row, firsts, strict=True)]
            for row, firsts, ref, times in zip(generations, verdicts, references, known, strict=True)
        ]
        levels = [str(document_of(reference).get("difficulty", "")).lower() for reference in references]
        return _table([count(row) for row in verdicts], beyonds, levels, self.ks)

    def _known(self, reference: Reference) -> list[float]:
        """Run times of the known solutions that pass; raises DataError where none does."""
        codes = _solutions(document_of(reference))
        ran = current_judge().run([self.program(code, reference, run) for code in codes for run in range(RUNS)])
        rows = [ran[place : place + RUNS] for place in range(0, len(ran), RUNS)]
        times = [_mean([verdict.cpu for verdict in row]) for row in rows if all(v.passed for v in row)]
        if not times:
            name = document_of(reference).get("slug_name")
            raise DataError(Fault(f"references of {name}", "none passes its tests", "at least one"))
        return times

    def _seconds(self, code: str, reference: str, first: Verdict) -> float | None:
        """The mean run time of a candidate, None for one that fails."""
        if not first.passed:
            return None
        further = current_judge().run([self.program(code, reference, run) for run in range(1, RUNS)])
        return _mean([first.cpu, *(verdict.cpu for verdict in further if verdict.passed)])


def _solutions(doc: Mapping[str, Any]) -> list[str]:
    return [item["solution"] if isinstance(item, Mapping) else str(item) for item in doc["solutions"]]


def _table(
    counts: Sequence[Counts], beyonds: Sequence[Sequence[float]], levels: Sequence[str], ks: Sequence[int]
) -> dict[str, float]:
    metrics = {**estimates(counts, ks), "beyond@1": _mean([_mean(row) for row in beyonds])}
    for level in ("easy", "medium", "hard"):
        chosen = [place for place, name in enumerate(levels) if name == level]
        if chosen:
            metrics[f"pass@1/{level}"] = estimates([counts[place] for place in chosen], (1,))["pass@1"]
            metrics[f"beyond@1/{level}"] = _mean([_mean(beyonds[place]) for place in chosen])
    return metrics


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
