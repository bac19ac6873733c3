"""Functions on texts that tasks import: EvalAI's normalisation of answers, edit distance, ANLS, tags of reasoning."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Final

TAG_PAIRS: Final = (("<think>", "</think>"), ("<thinking>", "</thinking>"))

_CONTRACTED: Final = """
ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd how'd how'll how's I'm I've isn't
it'd it'll ma'am mightn't might've mustn't must've needn't not've o'clock oughtn't shan't should've shouldn't
someone'd someone'll someone's something'd something'll that's there'd there're there's they'd they'll they're they've
'twas wasn't we've weren't what'll what're what's what've when's where'd where's where've who'd who'll who's who've
why'll why're why's won't would've wouldn't y'all you'd you'll you're you've somebody'll somebody's
"""
_TWICE: Final = """
couldn't've hadn't've he'd've I'd've it'd've mightn't've 'ow's'at she'd've shouldn't've somebody'd've someone'd've
something'd've there'd've they'd've we'd've who'd've wouldn't've y'all'll y'all'd've you'd've
"""
_SINGULAR: Final = {"hes": "he's", "somebody'd": "somebodyd", "let's": "let's", "she's": "she's"}

_DIGITS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def _contractions() -> dict[str, str]:
    """Words without (one of) their apostrophes, and the words."""
    found = {word.replace("'", ""): word for word in _CONTRACTED.split()}
    for word in _TWICE.split():
        found.update({word[:i] + word[i + 1 :]: word for i, letter in enumerate(word) if letter == "'"})
    return {**found, **_SINGULAR}


class EvalAIAnswerProcessor:
    """An answer as the VQA challenge compares it: lower case, no punctuation, no articles, digits, apostrophes.

    The rules are those of VQA's published evaluation (Antol et al., 2015, arXiv:1505.00468), its oddities included.
    """

    CONTRACTIONS: Final = _contractions()
    NUMBER_MAP: Final = {
        word: str(digit)
        for digit, word in enumerate(_DIGITS)
    } | {"none": "0"}  # fmt: skip
    ARTICLES: Final = ["a", "an", "the"]
    PUNCTUATIONS: Final = list(';/[]"{}()=+\\_-><@`,?!')
    PERIOD_STRIP: Final = re.compile(r"(?!<=\d)(\.)(?!\d)")
    COMMA_STRIP: Final = re.compile(r"(?<=\d)(\,)+(?=\d)")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def word_tokenize(self, word: str) -> str:
        """Lower case, without commas and question marks, the possessive apart."""
        return word.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()

    def process_punctuation(self, in_text: str) -> str:
        """Punctuation left out where a space stands beside it or a number holds a comma, else replaced by a space."""
        grouped = self.COMMA_STRIP.search(in_text) is not None
        text = in_text
        for mark in self.PUNCTUATIONS:
            apart = f"{mark} " in in_text or f" {mark}" in in_text or grouped
            text = text.replace(mark, "" if apart else " ")
        return self.PERIOD_STRIP.sub("", text, count=int(re.UNICODE))  # the published code gives the flag as the count

    def process_digit_article(self, in_text: str) -> str:
        """Numbers as digits, no articles, apostrophes put back."""
        words = [self.NUMBER_MAP.get(word, word) for word in in_text.lower().split()]
        return " ".join(self.CONTRACTIONS.get(word, word) for word in words if word not in self.ARTICLES)

    def __call__(self, item: str) -> str:
        """The normalised answer."""
        text = self.word_tokenize(item).replace("\n", " ").replace("\t", " ").strip()
        return self.process_digit_article(self.process_punctuation(text))


def generate_submission_file(file_name: str, args: Any, subpath: str = "submissions") -> str:
    """The absolute path of a file to hand in, below the run's folder (`args.output_path`); its folder is made."""
    output = None if args is None else args.output_path
    folder = subpath if output is None else os.path.join(output, subpath)
    os.makedirs(folder, exist_ok=True)
    return os.path.abspath(os.path.join(folder, file_name))


def levenshtein_distance(s1: Sequence[Any], s2: Sequence[Any]) -> int:
    """How many letters (or other items) to insert, delete or replace (Levenshtein, 1966)."""
    if len(s1) > len(s2):
        s1, s2 = s2, s1
    row = list(range(len(s1) + 1))
    for i, right in enumerate(s2, 1):
        above, row[0] = row[0], i
        for j, left in enumerate(s1, 1):
            above, row[j] = row[j], above if left == right else 1 + min(above, row[j], row[j - 1])
    return row[-1]


def anls(references: Sequence[str], predictions: Sequence[Any], thresh_hold: float = 0.5) -> dict[str, float]:
    """The similarity of a prediction with the nearest truth (ANLS, Biten et al., 2019, arXiv:1905.13648)."""
    found = predictions[0] if isinstance(predictions[0], str) else predictions[0][0]
    score = max(_similarity(truth, found) for truth in references)
    return {"anls": score if score >= thresh_hold else 0.0}


def _similarity(truth: str, found: str) -> float:
    """1 - edits / length, of texts in lower case with single spaces; the length is that of the texts as they came."""
    plain, other = (" ".join(text.strip().lower().split()) for text in (truth, found))
    length = max(len(truth.upper()), len(found.upper()))
    return 1.0 - (levenshtein_distance(plain, other) / length if length else 0.0)


def strip_reasoning_tags(text: str, tag_pairs: Sequence[Sequence[str]] = TAG_PAIRS) -> str:
    """The text without what stands between tags; where only the closing tag is there, what follows the last one."""
    for opening, closing in tag_pairs:
        while (start := text.find(opening)) >= 0 and (end := text.find(closing, start)) >= 0:
            text = text[:start] + text[end + len(closing) :]
        if closing in text and opening not in text:
            text = text.rpartition(closing)[2]
    return text.strip()
