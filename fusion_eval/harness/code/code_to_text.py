"""Saying what a function does: CodeXGLUE's code to text (arXiv 2102.04664), by smoothed sentence BLEU."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.errors import ConfigError, Fault, did_you_mean
from fusion_eval.harness.code.execution import require_pairs
from fusion_eval.harness.code.similarity import grams, tokenizer_13a
from fusion_eval.harness.code.source import Source, current_root, documents
from fusion_eval.harness.code.task import Task

LANGUAGES = ("python", "java", "javascript", "ruby", "php", "go")
_GOAL = "The goal of this function is to:\n"
_OPENINGS = {"python": f'\n""" {_GOAL}', "ruby": f"\n=begin {_GOAL}"}
_QUOTES = ('"""', "'''")
_TINY = 1e-15


class CodeToText(Task):
    """One sentence on a function.

    Args:
        language: a name of LANGUAGES.
        signature_only: for Python, show the signature alone and ask for its docstring.
    """

    def __init__(self, language: str = "python", signature_only: bool = False) -> None:
        if language not in LANGUAGES or (signature_only and language != "python"):
            raise ConfigError(
                Fault("language", f"'{language}'", f"one of {', '.join(LANGUAGES)} (python for signatures)",
                      did_you_mean(language, LANGUAGES))
            )  # fmt: skip
        super().__init__(list(_QUOTES) if language == "python" else ["\n"], requires_execution=False)
        self.language, self.signature_only = language, signature_only
        self.source = Source(
            "code_x_glue_ct_code_to_text", language, "test", (f"code_to_text/{language}",),
            ("code", "docstring", "docstring_tokens"),
        )  # fmt: skip

    def get_dataset(self) -> list[dict[str, Any]]:
        """The documents."""
        return documents(self.source, current_root())

    def get_prompt(self, doc: Mapping[str, Any]) -> str:
        """The function without its docstring, and the beginning of a sentence on it; or its signature."""
        code = str(doc["code"])
        if self.language != "python":
            return code + _OPENINGS.get(self.language, f"\n/* {_GOAL}")
        before, _, after = code.partition(doc["docstring"])
        before = _without_quote(before)
        if self.signature_only:
            return f'{before}"""'
        for quote in _QUOTES:
            after = after.replace(quote, "")
        return before.strip() + after + _OPENINGS["python"]

    def get_reference(self, doc: Mapping[str, Any]) -> str:
        """The docstring's first words as they were tokenised, on one line."""
        said = " ".join(doc["docstring_tokens"]).replace("\n", "")
        return (said[1:] if said.startswith("r") and said[1:2] in "\"' " else said).strip()

    def postprocess_generation(self, generation: str, idx: int) -> str:
        """The first line of the answer."""
        prompt = self.get_prompt(self.get_dataset()[idx])
        answer = generation[len(prompt) :] if generation.startswith(prompt) else generation
        line = answer.strip().partition("\n")[0].strip()
        for quote in _QUOTES:
            line = line.partition(quote)[0]
        return line

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """The mean over documents of the first candidate's smoothed BLEU, 0 to 100."""
        require_pairs(generations, references)
        pairs = zip(generations, references, strict=True)
        split = tokenizer_13a()
        scores = [sentence_bleu(split(_words(row[0])), split(_words(right))) for row, right in pairs]
        return {"bleu": 100 * math.fsum(scores) / len(scores)}


def _without_quote(before: str) -> str:
    """The text before a docstring, without the quote that opens it."""
    for quote in _QUOTES:
        if quote in before:
            return before[: before.index(quote)]
    single = re.search(r"(?<=[^'\"])['\"]\s*$", before)
    return before[: single.start()] if single else before


def _words(line: str) -> str:
    """The part before a tab in lower case, punctuation apart."""
    return " ".join(re.findall(r"\w+|[^\s\w]", line.strip().partition("\t")[0].lower()))


def sentence_bleu(found: Sequence[str], wanted: Sequence[str], max_order: int = 4) -> float:
    """BLEU of one sentence with one added to the counts above unigrams, as CodeXGLUE scores; 0 to 1.

    Lin and Och 2004. The brevity penalty adds one to both lengths.
    """
    total = 0.0
    for order in range(1, max_order + 1):
        own = grams(found, order)
        hits = (own & grams(wanted, order)).total()
        extra = float(order > 1)
        total += math.log(hits + extra + _TINY) - math.log(own.total() + extra + _TINY)
    brevity = min(0.0, 1 - (len(wanted) + 1) / (len(found) + 1))
    return math.exp(total / max_order + brevity)
