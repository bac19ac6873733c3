"""PAL: word problems answered by a program; "PAL: Program-aided Language Models" (arXiv 2211.10435)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.code import text
from fusion_eval.harness.code.execution import ExecutionTask, require_pairs
from fusion_eval.harness.code.judge import current_judge
from fusion_eval.harness.code.source import Source, current_root
from fusion_eval.sandbox import Limits, Program, Verdict

GSM8K = Source("gsm8k", "main", "test", ("gsm8k/test", "gsm8k"), ("question", "answer"))
GSM_HARD = Source("reasoning-machines/gsm-hard", None, "train", ("gsm_hard/gsmhardv2", "gsm-hard"), ("input", "target"))
_SHOTS = ("bigcode_fixtures/few_shot/gsm8k_few_shot_prompts", "gsm8k_few_shot_prompts")
_HEAD = "# solution in Python:"
_GAP = "\n\n\n\n\n\n"
_TOLERANCE = 1e-3


class Pal(ExecutionTask):
    """Grade-school problems; the answer is what the generated program prints.

    Args:
        hard: the problems with large numbers.
        vote: the most common answer of the samples instead of the first that ran.
        shots: examples as {"questions": [...], "solutions": [...]} with function bodies; by default the data folder's.
    """

    def __init__(
        self, hard: bool = False, vote: bool = False, shots: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        super().__init__(GSM_HARD if hard else GSM8K, ("\n\n\n",), Limits(cpu=3.0))
        self.hard, self.vote = hard, vote
        self._shots = shots

    def fewshot_examples(self) -> Mapping[str, Sequence[str]]:
        """The worked examples; raises ConfigError where there are none."""
        if self._shots is None:
            root = current_root()
            for name in _SHOTS:
                if root is not None and (path := root / f"{name}.json").is_file():
                    self._shots = read_shots(path)
                    break
            else:
                raise ConfigError(
                    Fault("shots", "none given", "worked examples with questions and solutions",
                          f"Put {_SHOTS[-1]}.json into data_root, or give `shots`.")
                )  # fmt: skip
        return self._shots

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The worked examples and the question."""
        shots = self.fewshot_examples()
        pairs = zip(shots["questions"], shots["solutions"], strict=True)
        parts = [_example(question, body) for question, body in pairs]
        question = doc["input"] if self.hard else doc["question"]
        return _GAP.join([*parts, f"Q: {question}\n\n{_HEAD}\n\n\n"])

    def tests(self, doc: Mapping[str, Any]) -> str:
        """The right number, as text."""
        return str(doc["target"] if self.hard else str(doc["answer"]).rpartition("####")[2].strip().replace(",", ""))

    def get_reference(self, doc: Mapping[str, Any]) -> Any:
        """The right number."""
        return float(self.tests(doc))

    def solution(self, doc: Mapping[str, Any]) -> str:
        """The program of the data, or one that prints the answer."""
        return f"{doc['code']}\nprint(solution())" if "code" in doc else f"print({self.tests(doc)})"

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The last program in the text, followed by the call that prints its answer."""
        answer = generation.rpartition(_HEAD)[2] if _HEAD in generation else generation
        return text.cut_at(answer.strip(), ("Q:", *self.stop_words)).strip() + "\nprint(solution())"

    def program(self, candidate: str, reference: str) -> Program:
        """A script whose output is read."""
        return Program(candidate, mode="output", limits=self.limits)

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """Accuracy, and how many programs gave no number."""
        require_pairs(generations, references)
        verdicts = current_judge().score([[self.program(code, "") for code in row] for row in generations])
        answers = [[number_of(verdict) for verdict in row] for row in verdicts]
        chosen = [majority(row) if self.vote else next((a for a in row if a is not None), None) for row in answers]
        right = sum(is_close(a, float(r)) for a, r in zip(chosen, references, strict=True))
        failed = sum(answer is None for row in answers for answer in row)
        return {"accuracy": right / len(references), "num_failed_execution": failed}


def _example(question: str, body: str) -> str:
    return f'Q: {question}\n\n{_HEAD}\n\n\ndef solution():\n    """{question}"""\n{body}'


def read_shots(path: Path) -> Mapping[str, Sequence[str]]:
    """The worked examples of a file; raises ConfigError where it has none."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not {"questions", "solutions"} <= set(found):
        raise ConfigError(Fault(str(path), "no questions and solutions", '{"questions": [...], "solutions": [...]}'))
    return {key: list(found[key]) for key in ("questions", "solutions")}


def number_of(verdict: Verdict) -> float | None:
    """The number on the last line of the output, None where the program failed or printed something else."""
    lines = verdict.stdout.strip().splitlines()
    if not verdict.passed or not lines:
        return None
    try:
        number = float(lines[-1])
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def majority(answers: Sequence[float | None]) -> float | None:
    """The most common answer, the earliest of equally common ones; None where no sample gave one."""
    given = [answer for answer in answers if answer is not None]
    return Counter(given).most_common(1)[0][0] if given else None


def is_close(answer: float | None, expected: float) -> bool:
    """Whether an answer lies within 0.001 of the right one."""
    return answer is not None and abs(answer - expected) < _TOLERANCE
