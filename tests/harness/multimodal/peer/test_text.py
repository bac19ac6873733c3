from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_eval.harness.multimodal.peer.text import (
    EvalAIAnswerProcessor,
    anls,
    generate_submission_file,
    levenshtein_distance,
    strip_reasoning_tags,
)


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("Two cats, and the dog?", "2 cats and dog"),
        ("dont", "don't"),
        ("Couldnt've", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("3,000", "3000"),
        ("red/blue", "red blue"),
        ("red / blue", "red blue"),
        ("1.5", "1.5"),
        ("U.S.A.", "usa"),
        ("none", "0"),
        ("a\nb\tc", "b c"),
        ("it's", "it 's"),
        ("somebody'd", "somebodyd"),
    ],
)
def test_answers_as_the_challenge_compares_them(answer: str, plain: str) -> None:
    assert EvalAIAnswerProcessor()(answer) == plain


def test_the_table_of_contractions_is_the_published_one() -> None:
    table = EvalAIAnswerProcessor.CONTRACTIONS
    assert len(table) == 120
    assert {
        "maam": "ma'am",
        "oclock": "o'clock",
        "ow's'at": "'ow's'at",
        "y'alld've": "y'all'd've",
    }.items() <= table.items()
    assert "shes" not in table


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_edits_are_a_distance(one: str, other: str, third: str) -> None:
    assert (levenshtein_distance(one, other) == 0) == (one == other)
    assert levenshtein_distance(one, other) == levenshtein_distance(other, one)
    assert levenshtein_distance(one, third) <= levenshtein_distance(one, other) + levenshtein_distance(other, third)


def test_similarity_of_the_nearest_answer() -> None:
    assert anls(["kitten", "dog"], ["sitten"])["anls"] == pytest.approx(5 / 6)
    assert anls(["dog"], [["house"]])["anls"] == 0.0
    assert anls(["Two  Words"], ["two words"])["anls"] == 1.0


def test_thoughts_are_left_out() -> None:
    assert strip_reasoning_tags("<think>a</think> b <think>c</think>d") == "b d"
    assert strip_reasoning_tags("thought</think>answer") == "answer"
    assert strip_reasoning_tags("<think>never closed") == "<think>never closed"


def test_submission_files_lie_below_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = generate_submission_file("a.json", Namespace(output_path=str(tmp_path / "out")), "sub")
    assert Path(found) == tmp_path / "out" / "sub" / "a.json"
    assert Path(found).parent.is_dir()
    assert Path(generate_submission_file("b.json", None)) == tmp_path / "submissions" / "b.json"
