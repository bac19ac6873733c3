"""VQA accuracy with ten human answers (Antol et al., 2015; Goyal et al., 2017), for VQAv2 and TextVQA."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_MARKS: Final = ';/[]"{}()=+\\_-><@`,?!'
_ARTICLES: Final = ("a", "an", "the")
_NUMBERS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS: Final = {"none": "0", **{word: str(number) for number, word in enumerate(_NUMBERS)}}
_WITH_APOSTROPHE: Final = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd
    he'd've he's how'd how'll how's i'd've i'm i've isn't it'd it'd've it'll let's ma'am mightn't mightn't've
    might've mustn't must've needn't not've o'clock oughtn't shan't she'd've she's should've shouldn't
    shouldn't've somebody'd somebody'd've somebody'll somebody's someone'd someone'd've someone'll someone's
    something'd something'd've something'll that's there'd there'd've there're there's they'd they'd've they'll
    they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's where'd where's
    where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't wouldn't've y'all
    y'all'll y'all'd've you'd you'd've you'll you're you've
"""
_CONTRACTIONS: Final = {word.replace("'", ""): word for word in _WITH_APOSTROPHE.split()}
_ANNOTATORS: Final = 3  # that many humans make an answer fully right


def normalised(text: str) -> str:
    """An answer as the VQA evaluation compares it.

    Lower case, one line, punctuation off, number words as digits, articles off, apostrophes of contractions put back.
    """
    plain = re.sub(r"\s+", " ", text).strip().lower()
    thousands = re.search(r"\d,\d", plain) is not None
    for mark in _MARKS:
        beside_space = f"{mark} " in plain or f" {mark}" in plain
        plain = plain.replace(mark, "" if beside_space or thousands else " ")
    plain = re.sub(r"\.(?!\d)", "", plain)
    words = (_DIGITS.get(word, word) for word in plain.split())
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def vqa_accuracy(said: str, answers: Sequence[str]) -> float:
    """The mean over all subsets that leave one human out of min(1, humans who said the same / 3)."""
    same = [normalised(answer) == normalised(said) for answer in answers]
    count = sum(same)
    return sum(min(1.0, (count - one) / _ANNOTATORS) for one in same) / len(same)


def answers_of(doc: Mapping[str, Any]) -> list[str]:
    """The humans' answers; none where a split keeps them back."""
    return [answer["answer"] if isinstance(answer, Mapping) else answer for answer in doc.get("answers") or ()]


def results(doc: Mapping[str, Any], responses: Sequence[str]) -> dict[str, float]:
    """`vqa_accuracy` of the response."""
    return {"vqa_accuracy": vqa_accuracy(responses[0], answers_of(doc))}


def target(doc: Mapping[str, Any]) -> str:
    """What most humans said."""
    given = answers_of(doc)
    return doc.get("multiple_choice_answer") or max(given, key=given.count, default="")
