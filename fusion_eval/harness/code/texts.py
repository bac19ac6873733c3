"""Tasks without execution: BLEU on CoNaLa, Concode and CodeXGLUE, exact match on filling in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.code import text
from fusion_eval.harness.code.execution import require_pairs
from fusion_eval.harness.code.similarity import evaluate_bleu, exact_match, sacrebleu_score
from fusion_eval.harness.code.source import Source, current_root, documents
from fusion_eval.harness.code.task import Task


@dataclass(frozen=True, slots=True)
class TextBenchmark:
    """What a BLEU task asks and compares.

    Args:
        source: where its documents are.
        head: the sentence before the examples.
        question: field with the question, and what stands before it.
        answer: field with the answer, and what stands before it.
        shots: name of the file with two examples, and their keys' stems.
        part: key of the examples within that file.
    """

    source: Source
    head: str
    question: tuple[str, str]
    answer: tuple[str, str]
    shots: str
    stems: tuple[str, str] = ("instruction", "solution")
    part: str = ""


def _translation(code: str, language: str) -> TextBenchmark:
    source = Source(
        "code_x_glue_tt_text_to_text", code, "test", (f"codexglue_text_to_text/{code}",), ("source", "target")
    )
    head = f"Translate the following documentation from {language} to English:"
    question, answer = ("source", f"{language}:"), ("target", "English:")
    stems = ("source", "target")
    return TextBenchmark(source, head, question, answer, "codexglue_text_to_text", stems, language.lower())


BENCHMARKS = {
    "conala": TextBenchmark(
        Source("neulab/conala", None, "test", ("conala/test", "conala"), ("intent", "snippet")),
        "Answer the following instructions in one line of Python code:",
        ("rewritten_intent", "Instruction:"),
        ("snippet", "Solution:"),
        "conala",
    ),
    "concode": TextBenchmark(
        Source("code_x_glue_tc_text_to_code", None, "validation", ("concode/validation", "concode"), ("nl", "code")),
        "Answer the following instructions in a one line of Java code:",
        ("nl", "Instruction:"),
        ("code", "Solution:"),
        "concode",
    ),
    "codexglue_text_to_text-da_en": _translation("da_en", "Danish"),
    "codexglue_text_to_text-zh_en": _translation("zh_en", "Chinese"),
    "codexglue_text_to_text-no_en": _translation("no_en", "Norwegian"),
    "codexglue_text_to_text-lv_en": _translation("lv_en", "Latvian"),
}


class TextTask(Task):
    """One question after two worked examples, answered on one line, compared by BLEU.

    Args:
        benchmark: a name of BENCHMARKS.
        shots: the examples as [(question, answer), ...]; by default those of the data folder.
    """

    def __init__(self, benchmark: str, shots: Sequence[tuple[str, str]] | None = None) -> None:
        if benchmark not in BENCHMARKS:
            raise ConfigError(Fault("benchmark", f"'{benchmark}'", f"one of {', '.join(BENCHMARKS)}"))
        super().__init__(["\n"], requires_execution=False)
        self.rules = BENCHMARKS[benchmark]
        self._shots = shots

    def get_dataset(self) -> list[dict[str, Any]]:
        """The documents."""
        return documents(self.rules.source, current_root())

    def fewshot_examples(self) -> Sequence[tuple[str, str]]:
        """The worked examples; raises ConfigError where there are none."""
        if self._shots is None:
            root, name = current_root(), f"{self.rules.shots}_few_shot_prompts.json"
            folders = [] if root is None else [root, root / "bigcode_fixtures" / "few_shot"]
            path = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if path is None:
                raise ConfigError(
                    Fault("shots", "none given", "two examples", f"Put {name} into data_root, or give `shots`.")
                )
            found = json.loads(path.read_text(encoding="utf-8"))
            found = found[self.rules.part] if self.rules.part else found
            question, answer = self.rules.stems
            self._shots = [(found[f"{question}{i}"], found[f"{answer}{i}"]) for i in (1, 2)]
        return self._shots

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """Head, examples and the question."""
        (field, ask), (_, say) = self.rules.question, self.rules.answer
        question = str(doc.get(field) or doc.get("intent")).strip()
        blocks = [f"{ask}\n{asked}\n{say}\n{said}" for asked, said in self.fewshot_examples()]
        return "\n".join([self.rules.head, *blocks, f"{ask}\n{question}\n{say}\n"])

    def get_reference(self, doc: Mapping[str, Any]) -> str:
        """The right answer."""
        return str(doc[self.rules.answer[0]])

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The first line of the answer."""
        answer = generation.rpartition(f"{self.rules.answer[1]}\n")[2]
        return text.cut_at(answer.lstrip("\n"), self.stop_words).strip()

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """BLEU of the first candidates as `evaluate` (smoothed) and as sacrebleu compute it."""
        require_pairs(generations, references)
        first, wanted = [row[0] for row in generations], [[reference] for reference in references]
        return {"bleu": evaluate_bleu(first, wanted, smooth=True)["bleu"], "sacrebleu": sacrebleu_score(first, wanted)}


FIM = Source(
    "bigcode/santacoder-fim-task", None, "train", ("santacoder-fim-task/train", "santacoder-fim-task"),
    ("prompt", "suffix", "canonical_solution", "language"),
)  # fmt: skip


class FillIn(Task):
    """The line between a prefix and a suffix, by exact match; "SantaCoder" (arXiv 2301.03988)."""

    def __init__(self, source: Source = FIM) -> None:
        super().__init__([], requires_execution=False)
        self.source = source

    def get_dataset(self) -> list[dict[str, Any]]:
        """The documents."""
        return documents(self.source, current_root())

    def get_prompt(self, doc: Mapping[str, Any]) -> dict[str, str]:
        """Prefix and suffix; the engine puts them between the tokenizer's own marks."""
        return {"prefix": str(doc["prompt"]), "suffix": str(doc["suffix"])}

    def get_reference(self, doc: Mapping[str, Any]) -> tuple[str, str]:
        """The missing text and its language."""
        return str(doc["canonical_solution"]), str(doc["language"])

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """What was filled in."""
        return generation.strip()

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """Exact match by language and over all."""
        require_pairs(generations, references)
        first = [row[0] for row in generations]
        languages = dict.fromkeys(language for _, language in references)
        found: dict[str, Any] = {}
        for language in languages:
            places = [i for i, (_, other) in enumerate(references) if other == language]
            found[f"{language} exact match"] = exact_match(
                [first[i] for i in places], [references[i][0] for i in places]
            )
        return {**found, "exact_match": exact_match(first, [wanted for wanted, _ in references])}
