from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import DataError
from fusion_eval.harness.instruction import VERIFIERS, follows, loosened

pytest.importorskip("langdetect")


def test_verdicts_are_the_peers(assets_dir: Path) -> None:
    rows = json.loads((assets_dir / "harness" / "ifeval.json").read_text(encoding="utf-8"))
    seen = set()
    for row in rows:
        asked = list(zip(row["kinds"], row["given"], strict=True))
        variants = loosened(row["response"])
        assert [follows(row["response"], *own) for own in asked] == row["strict"], row
        assert [any(follows(text, *own) for text in variants) for own in asked] == row["loose"], row
        seen.update(row["kinds"])
    assert seen == set(VERIFIERS)


@pytest.mark.parametrize(
    ("kind", "given", "right", "wrong"),
    [
        ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
         "Section 1 a Section 2 b", "Section 1 a"),
        ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, " say IT. Well", "Well, say it."),
        ("keywords:letter_frequency", {"letter": "!", "let_frequency": 2, "let_relation": "at least"}, "a! b!", "a!"),
        ("keywords:existence", {"keywords": ["cat", "dog"]}, "Dogs and CATS", "cat"),
        ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "concatenate", "a Cat."),
        ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "less than"},
         "Mr. Smith went, e.g. to Rome. He is back.", "One. Two. Three."),
        ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "a-b c", "a b"),
        ("length_constraints:nth_paragraph_first_word",
         {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"}, "First\n\n'Then, it", "Then\n\nfirst"),
        ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye\nP. S. more", "Bye PS"),
        ("language:response_language", {"language": "de"}, "Das ist ein ganz normaler deutscher Satz.",
         "This is quite an ordinary sentence."),
        ("change_case:english_capital", {}, "THIS IS AN ORDINARY SENTENCE IN ENGLISH", "This is not"),
        ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "less than"},
         "ONE two", "ONE TWO"),
    ],
)  # fmt: skip
def test_verifiers(kind: str, given: dict[str, Any], right: str, wrong: str) -> None:
    assert follows(right, kind, given)
    assert not follows(wrong, kind, given)
    assert not follows(" \n", kind, given)


def test_what_cannot_be_verified_is_told() -> None:
    with pytest.raises(DataError, match="Did you mean 'punctuation:no_comma'"):
        follows("a", "punctuation:no_commas", {})
    with pytest.raises(DataError, match="arguments of 'keywords:existence'"):
        follows("a", "keywords:existence", {"keywords": None})
    with pytest.raises(DataError, match="'at most'; expected less than or at least"):
        follows("a", "length_constraints:number_words", {"num_words": 1, "relation": "at most"})


def test_loose_variants() -> None:
    assert loosened("a*\nb\nc") == ["a*\nb\nc", "a\nb\nc", "b\nc", "b\nc", "a*\nb", "a\nb", "b", "b"]
