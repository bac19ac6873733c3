"""Programming contests: APPS (stdin-stdout and call-based) and CodeContests."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusion_eval.errors import ConfigError, DataError, Fault, did_you_mean
from fusion_eval.harness.code import text
from fusion_eval.harness.code.execution import ExecutionTask, document_of, require_pairs
from fusion_eval.harness.code.judge import current_judge
from fusion_eval.harness.code.passing import Counts, estimates
from fusion_eval.harness.code.source import Source
from fusion_eval.sandbox import Limits, Program, Verdict, encode

LEVELS = ("introductory", "interview", "competition", "all")
STOP_WORDS = ("\nQUESTION", "\n---", "\nANSWER")
APPS = Source("codeparrot/apps", "all", "test", ("apps/test", "apps"), ("question", "input_output"))
CONTESTS = Source("deepmind/code_contests", None, "test", ("code_contests/test", "code_contests"), ("description",))
_RELATIVE, _ABSOLUTE = 1e-5, 1e-8


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of one problem.

    Args:
        inputs: standard inputs, or argument lists where there is a function.
        outputs: what is expected.
        function: name of the function to call, empty for programs that read standard input.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    function: str = ""


class Apps(ExecutionTask):
    """ "Measuring Coding Challenge Competence With APPS" (arXiv 2105.09938).

    Args:
        level: introductory, interview, competition or all.
    """

    def __init__(self, level: str = "all", source: Source = APPS, limits: Limits | None = None) -> None:
        if level not in LEVELS:
            raise ConfigError(Fault("level", f"'{level}'", f"one of {', '.join(LEVELS)}", did_you_mean(level, LEVELS)))
        super().__init__(source, STOP_WORDS, limits or Limits(cpu=4.0))
        self.level = level

    def get_dataset(self) -> list[dict[str, Any]]:
        """The documents of the level."""
        if self.level == "all":
            return self.documents
        found = [doc for doc in self.documents if doc.get("difficulty") == self.level]
        if not found:
            raise DataError(Fault(self.source.path, f"no document of difficulty '{self.level}'", "at least one"))
        return found

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """Question, starter code and how the answer is called."""
        starter = doc.get("starter_code") or ""
        kind = "Call-Based" if self.cases(doc).function else "Standard Input"
        return f"\nQUESTION:\n{doc['question']}\n{starter}\nUse {kind} format\nANSWER:\n"

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The completion alone: the prompt is no program."""
        return text.cut_at(text.completion_of(generation, self.get_prompt(self.get_dataset()[idx])), self.stop_words)

    def cases(self, doc: Mapping[str, Any]) -> Cases:
        """The cases of a document; raises DataError where it has none."""
        raw = doc["input_output"]
        table = json.loads(raw) if isinstance(raw, str) and raw else raw
        if not table or not table.get("inputs"):
            raise DataError(Fault(f"problem {doc.get('problem_id', '?')}", "no cases", "inputs and outputs"))
        name = table.get("fn_name") or ""
        outputs = [o[0] if name and isinstance(o, list) and len(o) == 1 else o for o in table["outputs"]]
        return Cases(tuple(table["inputs"]), tuple(outputs), name)

    def tests(self, doc: Mapping[str, Any]) -> str:
        """The cases as JSON."""
        raw = doc["input_output"]
        return raw if isinstance(raw, str) else json.dumps(raw)

    def solution(self, doc: Mapping[str, Any]) -> str:
        """The first published solution."""
        raw = doc["solutions"]
        return str((json.loads(raw) if isinstance(raw, str) else raw)[0])

    def programs(self, candidate: str, cases: Cases) -> list[Program]:
        """One program for each case."""
        if not cases.function:
            shown = [value if isinstance(value, str) else "\n".join(map(str, value)) for value in cases.inputs]
            return [Program(candidate, mode="output", stdin=value, limits=self.limits) for value in shown]
        entry = f"Solution.{cases.function}" if "class Solution" in candidate else cases.function
        test = "def accept(inputs, expected, output):\n    return plain(output) == plain(expected)\n" + _PLAIN
        return [
            Program(
                candidate, test, (entry,), inputs=(encode(list(value)),), expected=(encode(output),), limits=self.limits
            )
            for value, output in zip(cases.inputs, cases.outputs, strict=True)
        ]

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """pass@k over whole problems (strict), and the mean share of cases that pass (average accuracy)."""
        require_pairs(generations, references)
        cases = [self.cases(document_of(reference) or {"input_output": str(reference)}) for reference in references]
        groups = [(case, candidate) for case, row in zip(cases, generations, strict=True) for candidate in row]
        verdicts = iter(current_judge().score([self.programs(candidate, case) for case, candidate in groups]))
        counts, shares = [], []
        for case, row in zip(cases, generations, strict=True):
            results = [case_results(case, next(verdicts)) for _ in row]
            scored = [result for result in results if None not in result]
            counts.append(Counts(len(scored), sum(map(all, scored)), len(results) - len(scored)))
            shares += [sum(map(bool, result)) / len(result) for result in scored]
        found = dict(estimates(counts, self.ks))
        return {**found, "strict_accuracy": found["pass@1"], "average_accuracy": math.fsum(shares) / len(shares)}


class CodeContests(Apps):
    """ "Competition-Level Code Generation with AlphaCode" (arXiv 2203.07814): programs that read standard input."""

    def __init__(self, source: Source = CONTESTS, limits: Limits | None = None) -> None:
        super().__init__("all", source, limits)

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The description."""
        return f"\nQUESTION:\n{doc['description']}\nUse Standard Input format\nANSWER:\n"

    def cases(self, doc: Mapping[str, Any]) -> Cases:
        """Public, private and generated cases together."""
        groups = [doc.get(f"{kind}_tests") or {} for kind in ("public", "private", "generated")]
        inputs = tuple(value for group in groups for value in group.get("input", ()))
        outputs = tuple(value for group in groups for value in group.get("output", ()))
        if not inputs:
            raise DataError(Fault(f"problem {doc.get('name', '?')}", "no cases", "public_tests or private_tests"))
        return Cases(inputs, outputs)

    def tests(self, doc: Mapping[str, Any]) -> str:
        """Nothing: the cases are in the document."""
        return ""

    def solution(self, doc: Mapping[str, Any]) -> str:
        """The first Python 3 solution."""
        found = doc["solutions"]
        languages = found.get("language", [])
        for language, code in zip(languages, found["solution"], strict=True):
            if language in (3, "PYTHON3"):
                return str(code)
        raise DataError(Fault(f"problem {doc.get('name', '?')}", "no Python solution", "one to check with"))


_PLAIN = """
def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
"""


def case_results(cases: Cases, verdicts: Sequence[Verdict]) -> list[bool | None]:
    """Whether each case passed; None for one that could not be judged."""
    if cases.function:
        return [verdict.passed if verdict.scored else None for verdict in verdicts]
    return [
        (verdict.passed and same_output(verdict.stdout, output)) if verdict.scored else None
        for verdict, output in zip(verdicts, cases.outputs, strict=True)
    ]


def same_output(found: str, expected: str | Sequence[Any]) -> bool:
    """Equality by lines without trailing blanks, else word by word with numbers within 1e-5."""
    wanted = expected if isinstance(expected, str) else "\n".join(map(str, expected))
    if [line.rstrip() for line in found.strip().splitlines()] == [
        line.rstrip() for line in wanted.strip().splitlines()
    ]:
        return True
    left, right = found.split(), wanted.split()
    return len(left) == len(right) and all(map(_same_word, left, right))


def _same_word(left: str, right: str) -> bool:
    if left == right:
        return True
    try:
        return math.isclose(float(left), float(right), rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    except ValueError:
        return False
