"""The library's metrics on cases computed by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_eval.errors import DataError
from fusion_eval.harness.multimodal.library import choice, mmmu, prompt, text, vqa, yes_no


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("The Red car.", "red car"), ("a  red\ncar", "red car"), ("Two", "2"), ("none", "0"), ("dont", "don't"),
        ("1,000", "1000"), ("red, blue", "red blue"), ("red/blue", "red blue"), ("3.5", "3.5"), ("3.5.", "3.5"),
        ("yes!", "yes"), ("it's", "it's"), ("an apple (green)", "apple green"),
        ("well", "well"), ("t-shirt", "t shirt"), ("- no", "no"),
    ],
)  # fmt: skip
def test_answers_are_normalised(raw: str, plain: str) -> None:
    assert vqa.normalised(raw) == plain


@pytest.mark.parametrize(("same", "score"), [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)])
def test_vqa_accuracy_leaves_one_human_out(same: int, score: float) -> None:
    answers = ["red"] * same + [f"other {i}" for i in range(10 - same)]
    assert vqa.vqa_accuracy("Red.", answers) == pytest.approx(score)


@given(st.lists(st.sampled_from(["red", "blue", "two", "2"]), min_size=2, max_size=10))
def test_vqa_accuracy_is_the_mean_over_subsets(answers: list[str]) -> None:
    plain = ["2" if answer == "two" else answer for answer in answers]
    parts = [min(1, sum(a == "2" for a in subset) / 3) for subset in combinations(plain, len(plain) - 1)]
    assert vqa.vqa_accuracy("2", answers) == pytest.approx(sum(parts) / len(parts))


def test_target_of_a_question_is_the_commonest_answer() -> None:
    assert vqa.target({"answers": ["a", "b", "b"]}) == "b"
    assert vqa.target({"answers": None}) == ""


@pytest.mark.parametrize(
    ("said", "right", "same"),
    [
        ("10.5", "10", True), ("10.51", "10", False), ("9.5", "10", True), ("-9.6", "-10", True), ("10", "-10", False),
        ("45%", "0.45", True), ("47%", "45%", True), ("48%", "45%", False), ("45", "45%", False), ("0", "0", True),
        ("0.01", "0", False), ("Red", "red", True), ("red.", "red", False), ("10 apples", "10", False), ("", "", True),
        ("0.0", "0", True), ("nan", "1", False), ("inf", "1", False),
    ],
)  # fmt: skip
def test_relaxed_accuracy(said: str, right: str, same: bool) -> None:
    assert text.relaxed(said, right) is same


@pytest.mark.parametrize(
    ("said", "answers", "score"),
    [
        ("blue", ["blue", "blue circle"], 1.0), ("BLUE.", ["blue"], 0.8), ("yellow", ["yell", "x"], 4 / 6),
        ("ab", ["ad"], 0.0), ("abc", ["abd"], 2 / 3), ("", ["a"], 0.0), ("", [""], 1.0),
        ("New  York", ["new york"], 1.0), ("x", [], 0.0),
    ],
)  # fmt: skip
def test_anls(said: str, answers: list[str], score: float) -> None:
    assert text.anls(said, answers) == pytest.approx(score)


def test_a_similarity_of_a_half_is_none() -> None:
    """ANLS keeps what is strictly nearer than the threshold: 1 - 1/2 is not."""
    assert text.anls("abcd", ["abxy"]) == 0.0


@given(st.text("ab", max_size=6), st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_distance_is_a_metric(a: str, b: str, c: str) -> None:
    assert text.distance(a, b) == text.distance(b, a)
    assert (text.distance(a, b) == 0) is (a == b)
    assert text.distance(a, c) <= text.distance(a, b) + text.distance(b, c)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Yes", "yes"), ("no.", "no"), ("NO, there is none", "no"), ("Yes, no doubt", "yes"), ("There is: yes", "yes"),
        ("I know nothing", None), ("", None), ("yes or no", "yes"), ("maybe yes, maybe no", None), ("nothing", None),
    ],
)  # fmt: skip
def test_yes_and_no_are_words(said: str, answer: str | None) -> None:
    assert yes_no.said(said) == answer


def test_pope_counts() -> None:
    """TP 2, FN 1 and one unanswered yes, FP 1, TN 1 and one unanswered no."""
    pairs = [("yes", "yes"), ("yes", "yes"), ("yes", "no"), ("yes", None), ("no", "yes"), ("no", "no"), ("no", None)]
    assert yes_no.precision(pairs) == pytest.approx(2 / 3)
    assert yes_no.recall(pairs) == pytest.approx(2 / 4)
    assert yes_no.f1(pairs) == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert yes_no.yes_ratio(pairs) == pytest.approx(3 / 7)
    with pytest.raises(DataError, match="no document was answered by yes"):
        yes_no.precision([("yes", "no")])
    with pytest.raises(DataError, match="expected yes or no"):
        yes_no.gold({"answer": "maybe"})


@pytest.mark.parametrize("metric", [yes_no.precision, yes_no.recall, yes_no.f1, yes_no.yes_ratio])
def test_the_error_of_a_ratio_is_that_of_the_bootstrap(metric: yes_no.Ratio) -> None:
    r = np.random.default_rng(0)
    pairs = [(("yes", "no")[r.integers(2)], ("yes", "no", None)[r.integers(3)]) for _ in range(400)]
    drawn = [metric([pairs[i] for i in r.integers(0, 400, 400)]) for _ in range(400)]
    assert metric.stderr(pairs) == pytest.approx(float(np.std(drawn)), rel=0.12)


def item(category: str, picture: str, right: float) -> dict[str, object]:
    return {"category": category, "picture": picture, "right": right}


def test_mme_sums_accuracy_and_accuracy_plus() -> None:
    items = [item("color", "1", 1), item("color", "1", 1), item("color", "2", 1), item("color", "2", 0)]
    items += [item("count", "1", 0), item("count", "1", 0)]
    assert yes_no.perception(items) == pytest.approx(100 * (3 / 4 + 1 / 2) + 0)
    pairs = [item("color", str(i), float(r)) for i, rights in enumerate([(1, 1), (1, 0), (0, 0)]) for r in rights]
    expected = 100 * np.std([2, 0.5, 0], ddof=1) / math.sqrt(3)
    assert yes_no.perception.stderr(pairs) == pytest.approx(expected)


def test_mme_leaves_a_halved_picture_out() -> None:
    whole = [item("color", "1", 1), item("color", "1", 1)]
    assert yes_no.perception([*whole, item("color", "2", 0)]) == yes_no.perception(whole) == 200
    with pytest.raises(DataError, match="no picture with both"):
        yes_no.cognition([item("code_reasoning", "1", 1)])


TEXTS = ["a red circle", "square", "triangle", "no"]


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("B", "B"), (" b ", "B"), ("B.", "B"), ("(B)", "B"), ("B. square", "B"), ("(C) triangle", "C"), ("D. no", "D"),
        ("The answer is B", "B"), ("the answer is (C).", "C"), ("Answer: D", "D"), ("A red circle", "A"),
        ("a red circle.", "A"), ("Square", "B"), ("It is a triangle", "C"), ("I think (B) is it", "B"),
        ("A square", "B"), ("E", None), ("", None), ("either B. or C.", None), ("a square or a triangle", None),
        ("Answer: option C", "C"), ("B: square", "B"), ("nothing", None), ("B\nbecause", "B"),
        ("I think the answer is B because A is red", "B"), ("Option B", "B"), ("The correct option is B", "B"),
        ("option B is correct", "B"), ("It's B", "B"), ("**B**", "B"), ("\\boxed{B}", "B"), ('The answer is "B"', "B"),
        ("A or B", None), ("A and B", None), ("(A) is wrong, (B) is right", None), ("option B is wrong", None),
        ("Both (A) and (B)", None), ("There is A big thing here", None), ("Since A is out, choose B.", "B"),
    ],
)  # fmt: skip
def test_letters(said: str, letter: str | None) -> None:
    assert choice.chosen(said, TEXTS) == letter


def test_options_in_every_form() -> None:
    assert prompt.options({"options": ["x", "y"]}) == ["x", "y"]
    assert prompt.options({"options": "['x', 'y']"}) == ["x", "y"]
    assert prompt.options({"choices": ["x"]}) == ["x"]
    assert prompt.options({"A": "x", "B": 2, "C": None, "D": "nan"}) == ["x", "2"]
    assert choice.chosen("A", []) is None
    assert prompt.with_options({"question": "q", "hint": "nan", "A": "x"}) == "q\nA. x"
    assert prompt.with_options({"question": "q", "hint": "h", "A": "x"}, {"hint": ""}) == "h\nq\nA. x"


def test_circular_evaluation_turns_the_options() -> None:
    from datasets import Dataset

    rows = Dataset.from_list([
        {"index": 3, "question": "q", "A": "x", "B": "y", "C": "z", "D": None, "answer": "B"},
        {"index": 1_000_003, "question": "q", "A": "y", "B": "z", "C": "x", "D": None, "answer": "A"},
    ])  # fmt: skip
    turned = list(choice.rotations(rows))
    assert [row["index"] for row in turned] == [3, 1_000_003, 2_000_003]
    assert all(prompt.options(row)[ord(row["answer"]) - ord("A")] == "y" for row in turned)
    assert [prompt.options(row) for row in turned] == [["x", "y", "z"], ["y", "z", "x"], ["z", "x", "y"]]
    assert len(choice.first_rows(rows)) == 1


def test_circular_accuracy_needs_every_rotation() -> None:
    row = {"index": 3, "A": "x", "B": "y", "answer": "B"}
    turned = [{"index": 1_000_003, "A": "y", "B": "x", "answer": "A"}, {"index": 4, "A": "x", "B": "y", "answer": "A"}]
    items = [choice.circular_results(doc, ["B"])["circular_accuracy"] for doc in (row, *turned)]
    assert choice.circular_accuracy(items) == 0.0
    items[1]["right"] = True
    assert choice.circular_accuracy(items) == 0.5
    assert choice.circular_accuracy.stderr(items) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("said", "answers", "right"),
    [
        ("The answer is 3.14159", ["3.14"], True), ("x = 1,200", ["1200"], True), ("7\nso 8", ["7"], False),
        ("8", ["7", "8"], True), ("It is the left ventricle.", ["Left Ventricle"], True), ("right", ["left"], False),
        ("about 12 apples", ["12"], True), ("", ["x"], False), ("smart", ["art"], False), ("-2", ["2"], False),
    ],
)  # fmt: skip
def test_open_answers(said: str, answers: list[str], right: bool) -> None:
    assert mmmu.open_right(said, answers) is right


def test_mmmu_documents() -> None:
    from PIL import Image

    one, two = Image.new("L", (2, 2)), Image.new("RGB", (3, 3))
    doc = {
        "question": "Is <image 2> larger?", "options": "['<image 1>', 'no']", "question_type": "multiple-choice",
        "answer": "B", "image_1": one, "image_2": two, "image_3": None,
    }  # fmt: skip
    assert [picture.size for picture in mmmu.images(doc)] == [(3, 3), (2, 2)]
    assert mmmu.images(doc)[1].mode == "RGB"
    assert mmmu.prompt(doc, {"multiple_choice_prompt": "Letter."}) == (
        "Is <image 2> larger?\nA. <image 1>\nB. no\n\nLetter."
    )
    assert mmmu.results(doc, ["(B)"]) == {"accuracy": 1.0}
    assert mmmu.results(doc, ["who knows"]) == {"accuracy": 0.0}
    assert mmmu.right_answers({"answer": "['1', '2']"}) == ["1", "2"]
    assert prompt.image({"image": None}) == []
