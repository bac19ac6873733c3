"""Instructions that a program can verify: the 25 kinds of IFEval (Zhou et al., 2023, arXiv 2311.07911).

A verifier takes the response and the instruction's own arguments and says whether the response follows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusion_eval.errors import DataError, Fault, did_you_mean
from fusion_eval.harness.instruction_text import language, sentences, tokens

Verifier = Callable[..., bool]
RELATIONS = ("less than", "at least")
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_PARAGRAPH_MARK, _RESPONSE_MARK = re.compile(r"\s?\*\*\*\s?"), "******"
_FENCE_OPENINGS = ("```json", "```Json", "```JSON", "```")
_POSTSCRIPTS = {"P.P.S": r"\s*p\.\s?p\.\s?s.*$", "P.S.": r"\s*p\.\s?s\..*$"}


def _compared(count: int, relation: str, bound: int) -> bool:
    if relation not in RELATIONS:
        raise DataError(Fault("an instruction's relation", f"'{relation}'", " or ".join(RELATIONS)))
    return count < bound if relation == RELATIONS[0] else count >= bound


def _keywords(text: str, keywords: Sequence[str]) -> bool:
    return all(re.search(word, text, re.IGNORECASE) for word in keywords)


def _keyword_frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return _compared(len(re.findall(keyword.strip(), text, re.IGNORECASE)), relation, frequency)


def _forbidden(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in forbidden_words)


def _letters(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _compared(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


def _language(text: str, **given: str) -> bool:
    return language(text) in (given["language"], None)


def _sentences(text: str, num_sentences: int, relation: str) -> bool:
    return _compared(len(sentences(text)), relation, num_sentences)


def _words(text: str, num_words: int, relation: str) -> bool:
    return _compared(len(re.findall(r"\w+", text)), relation, num_words)


def _filled(parts: Sequence[str]) -> list[str] | None:
    """Parts without empty ones at the two ends; None where one in the middle is empty."""
    if any(not part.strip() for part in parts[1:-1]):
        return None
    return [part for part in parts if part.strip()]


def _paragraphs(text: str, num_paragraphs: int) -> bool:
    parts = _filled(_PARAGRAPH_MARK.split(text))
    return parts is not None and len(parts) == num_paragraphs


def _first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = text.split("\n\n")
    count = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if nth_paragraph > count or not paragraphs[nth_paragraph - 1].strip():
        return False
    word = paragraphs[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    return count == num_paragraphs and re.split(r"[.,?!'\"]", word)[0].lower() == first_word.lower()


def _placeholders(text: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[.*?\]", text)) >= num_placeholders


def _postscript(text: str, postscript_marker: str) -> bool:
    marker = postscript_marker.strip()
    return re.search(_POSTSCRIPTS.get(marker, rf"\s*{marker.lower()}.*$"), text.lower(), re.MULTILINE) is not None


def _bullets(text: str, num_bullets: int) -> bool:
    found = re.findall(r"^\s*\*[^\*].*$", text, re.MULTILINE) + re.findall(r"^\s*-.*$", text, re.MULTILINE)
    return len(found) == num_bullets


def _answer(text: str) -> bool:
    return any(answer in text for answer in _ANSWERS)


def _highlights(text: str, num_highlights: int) -> bool:
    single = [found.strip("*") for found in re.findall(r"\*[^\n\*]*\*", text)]
    double = [found[2:-2] for found in re.findall(r"\*\*[^\n\*]*\*\*", text)]
    return sum(bool(found.strip()) for found in (*single, *double)) >= num_highlights


def _sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.split(rf"\s?{section_spliter.strip()}\s?\d+\s?", text)) - 1 >= num_sections


def _json(text: str) -> bool:
    inner = text.strip()
    for opening in _FENCE_OPENINGS:
        inner = inner.removeprefix(opening)
    try:
        json.loads(inner.removesuffix("```").strip())
    except ValueError:
        return False
    return True


def _title(text: str) -> bool:
    return any(found.lstrip("<").rstrip(">").strip() for found in re.findall(r"<<[^\n]+>>", text))


def _two_responses(text: str) -> bool:
    parts = _filled(text.split(_RESPONSE_MARK))
    return parts is not None and len(parts) == 2 and parts[0].strip() != parts[1].strip()


def _repeats(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def _ends(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def _capital_words(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return _compared(sum(token.isupper() for token in tokens(text)), capital_relation, capital_frequency)


def _capitals(text: str) -> bool:
    return text.isupper() and language(text) in ("en", None)


def _lowercase(text: str) -> bool:
    return text.islower() and language(text) in ("en", None)


def _no_comma(text: str) -> bool:
    return "," not in text


def _quoted(text: str) -> bool:
    inner = text.strip()
    return len(inner) > 1 and inner[0] == inner[-1] == '"'


VERIFIERS: Mapping[str, Verifier] = {
    "keywords:existence": _keywords, "keywords:frequency": _keyword_frequency, "keywords:forbidden_words": _forbidden,
    "keywords:letter_frequency": _letters, "language:response_language": _language,
    "length_constraints:number_sentences": _sentences, "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_words": _words, "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": _placeholders, "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets, "detectable_format:constrained_response": _answer,
    "detectable_format:number_highlighted_sections": _highlights, "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json, "detectable_format:title": _title,
    "combination:two_responses": _two_responses, "combination:repeat_prompt": _repeats, "startend:end_checker": _ends,
    "change_case:capital_word_frequency": _capital_words, "change_case:english_capital": _capitals,
    "change_case:english_lowercase": _lowercase, "punctuation:no_comma": _no_comma, "startend:quotation": _quoted,
}  # fmt: skip


def follows(text: str, instruction: str, given: Mapping[str, Any]) -> bool:
    """Whether a response follows an instruction; an empty one follows none.

    Args:
        text: the response.
        instruction: its kind, such as "punctuation:no_comma".
        given: its arguments; those without a value are left out.

    Raises:
        DataError: an unknown kind, or arguments that are missing or of no use.
    """
    verifier = VERIFIERS.get(instruction)
    if verifier is None:
        raise DataError(Fault("instruction_id_list", f"'{instruction}'", do=did_you_mean(instruction, VERIFIERS)))
    if not text.strip():
        return False
    try:
        return verifier(text, **{key: value for key, value in given.items() if value is not None})
    except (TypeError, KeyError, re.error) as error:
        raise DataError(Fault(f"the arguments of '{instruction}'", f"{dict(given)} ({error})")) from error


def loosened(text: str) -> list[str]:
    """The response, without its first line, last line or both, each with and without asterisks."""
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [variant for own in cut for variant in (own, own.replace("*", ""))]
