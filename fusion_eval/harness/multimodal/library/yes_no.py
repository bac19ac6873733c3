"""Questions answered by yes or no: POPE (Li et al., 2023) and MME (Fu et al., 2023)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.multimodal.library.estimate import Ratio

Document = Mapping[str, Any]
Pair = tuple[str, str | None]
"""(right answer, what was said)."""

COGNITION: Final = ("code_reasoning", "commonsense_reasoning", "numerical_calculation", "text_translation")
"""MME's categories of cognition; all others are of perception."""


def said(response: str) -> str | None:
    """The answer in a response: its first word, else the one of yes and no that is in it; None for neither."""
    words: list[str] = re.findall(r"[a-z]+", response.lower())
    if words[:1] in (["yes"], ["no"]):
        return words[0]
    found = {word for word in words if word in ("yes", "no")}
    return found.pop() if len(found) == 1 else None


def gold(doc: Document) -> str:
    """The right answer, in lower case.

    Raises:
        DataError: it is neither yes nor no.
    """
    answer = str(doc["answer"]).strip().lower()
    if answer not in ("yes", "no"):
        raise DataError(Fault("column 'answer'", repr(doc["answer"]), "yes or no"))
    return answer


def pope_results(doc: Document, responses: Sequence[str]) -> dict[str, Any]:
    """`accuracy`, and the answer given beside the right one for the metrics that need all documents."""
    pair: Pair = (gold(doc), said(responses[0]))
    whole = dict.fromkeys(("precision", "recall", "f1", "yes_ratio"), pair)
    return {"accuracy": float(pair[0] == pair[1]), **whole}


def _hit(pair: Pair) -> bool:
    return tuple(pair) == ("yes", "yes")


precision = Ratio("precision", lambda pair: (_hit(pair), pair[1] == "yes"), "was answered by yes")
recall = Ratio("recall", lambda pair: (_hit(pair), pair[0] == "yes"), "has the right answer yes")
f1 = Ratio(
    "f1", lambda pair: (2 * _hit(pair), (pair[0] == "yes") + (pair[1] == "yes")), "has or was given the answer yes"
)
yes_ratio = Ratio("yes_ratio", lambda pair: (pair[1] == "yes", 1), "is there")


def mme_results(doc: Document, responses: Sequence[str]) -> dict[str, Any]:
    """`accuracy`, and under `perception` or `cognition` whether the question of a picture was answered rightly."""
    right = float(said(responses[0]) == gold(doc))
    category = str(doc["category"])
    kind = "cognition" if category in COGNITION else "perception"
    return {"accuracy": right, kind: {"category": category, "picture": str(doc["question_id"]), "right": right}}


@final
@dataclass(frozen=True, slots=True)
class MmeScore:
    """MME's score: over all categories the sum of accuracy and accuracy+, 100 each.

    accuracy+ is the share of pictures of which every question was answered rightly. A picture of which a question is
    missing (by `limit`) is left out.
    """

    name: str

    def __call__(self, items: Sequence[Document]) -> float:
        """The score.

        Raises:
            DataError: no picture has both questions.
        """
        categories = self._categories(items)
        if not categories:
            do = "Take an even number of documents."
            raise DataError(Fault(f"metric {self.name}", "no picture with both of its questions", "at least one", do))
        return float(sum(100 * values.mean() for values in categories.values()))

    def stderr(self, items: Sequence[Document]) -> float | None:
        """Pictures are independent; the questions of one are not."""
        found = list(self._categories(items).values())
        if not found or any(len(values) < 2 for values in found):
            return None
        return 100 * float(np.sqrt(sum(values.var(ddof=1) / len(values) for values in found)))

    def _categories(self, items: Sequence[Document]) -> dict[str, Any]:
        """By category, for each complete picture: the share of right answers plus whether all are right."""
        pictures: dict[tuple[str, str], list[float]] = defaultdict(list)
        for item in items:
            pictures[item["category"], item["picture"]].append(item["right"])
        found: dict[str, list[float]] = defaultdict(list)
        for (category, _), right in pictures.items():
            if len(right) >= 2:
                found[category].append(sum(right) / len(right) + float(all(right)))
        return {category: np.asarray(values) for category, values in found.items()}


perception = MmeScore("perception")
cognition = MmeScore("cognition")
