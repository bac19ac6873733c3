"""The library's scores on recorded responses, against those of two peers where these are right.

`tests/assets/multimodal_library/replay.json.gz` was written by `scripts/record_multimodal_library`.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.harness.multimodal.library import choice, prompt, text, vqa, yes_no

ASSET = Path(__file__).parents[3] / "assets" / "multimodal_library" / "replay.json.gz"
REPLAY: dict[str, Any] = {entry["task"]: entry for entry in json.loads(gzip.decompress(ASSET.read_bytes()))}
SHORT = {"post_prompt": "\nAnswer the question using a single word or phrase."}
LETTER = {"post_prompt": "\nAnswer with the option's letter from the given choices directly."}
TASKS = {
    "fe_vqav2": (prompt.question, SHORT, vqa.results, "vqa_accuracy", "exact_match"),
    "fe_textvqa": (prompt.question_with_text, SHORT, vqa.results, "vqa_accuracy", "exact_match"),
    "fe_scienceqa": (prompt.with_options, LETTER, choice.results, "accuracy", "exact_match"),
    "fe_ai2d": (prompt.with_options, LETTER, choice.results, "accuracy", "exact_match"),
    "fe_chartqa": (
        prompt.question, {"post_prompt": "\nAnswer the question with a single word."},
        text.chart_results, "relaxed_accuracy", "relaxed_overall",
    ),
    "fe_docvqa": (prompt.question, SHORT, text.document_results, "anls", "anls"),
}  # fmt: skip


def replayed(task: str, results: Any, tree: str) -> list[dict[str, Any]]:
    entry = REPLAY[task]
    return [results(row, [said]) for row, said in zip(entry["rows"], entry[tree]["responses"], strict=True)]


@pytest.mark.parametrize("tree", ["eagle", "current"])
@pytest.mark.parametrize("task", TASKS)
def test_prompts_and_scores(task: str, tree: str) -> None:
    entry, (asks, settings, results, own, theirs) = REPLAY[task], TASKS[task]
    given = {**settings, "ocr": task == "fe_textvqa" and tree == "eagle"}
    assert [asks(row, given) for row in entry["rows"]] == entry[tree]["prompts"]
    scores = replayed(task, results, tree)
    other = [
        (entry[tree]["responses"][i], score[own], peer[theirs])
        for i, (score, peer) in enumerate(zip(scores, entry[tree]["scores"], strict=True))
        if score[own] != pytest.approx(peer[theirs])
    ]
    for said, score, peer in other:
        if task in ("fe_scienceqa", "fe_ai2d"):  # the right option's text in place of its letter
            assert (score, peer) == (1.0, 0.0)
            assert said in ("yes", "no", "yellow", "triangle")
        else:  # Eagle takes any similarity to one of several answers for 1
            assert (task, tree, peer) == ("fe_docvqa", "eagle", 1.0)
            assert 0.5 < score < 1
    assert len(other) == {"fe_scienceqa": 5, "fe_ai2d": 1}.get(task, 3 * (tree == "eagle" and task == "fe_docvqa"))


def test_chartqa_by_part() -> None:
    scores, entry = replayed("fe_chartqa", text.chart_results, "current"), REPLAY["fe_chartqa"]["current"]["results"]
    for part in ("human", "augmented"):
        values = [s[f"relaxed_accuracy_{part}"] for s in scores if f"relaxed_accuracy_{part}" in s]
        assert sum(values) / len(values) == pytest.approx(entry[f"relaxed_{part}_split,none"])


@pytest.mark.parametrize("tree", ["eagle", "current"])
def test_mme(tree: str) -> None:
    entry = REPLAY["fe_mme"]
    assert [prompt.yes_no_question(row, SHORT) for row in entry["rows"]] == entry[tree]["prompts"]
    scores = replayed("fe_mme", yes_no.mme_results, tree)
    for name, score in (("perception", yes_no.perception), ("cognition", yes_no.cognition)):
        peer = next(v for k, v in entry[tree]["results"].items() if name[:5] in k.replace("percetion", "perception"))
        assert score([s[name] for s in scores if name in s]) == pytest.approx(peer)


@pytest.mark.parametrize("tree", ["eagle", "current"])
def test_pope(tree: str) -> None:
    """The peers read `YES.` as no answer, leave no answers out of recall, and take the targets' share of yes."""
    entry = REPLAY["fe_pope"]
    scores = replayed("fe_pope", yes_no.pope_results, tree)
    exact = [s for s, said in zip(scores, entry[tree]["responses"], strict=True) if said not in ("YES.", "NO.")]
    results = entry[tree]["results"]
    assert sum(s["accuracy"] for s in exact) / len(scores) == pytest.approx(results["pope_accuracy,none"])
    assert yes_no.precision([s["precision"] for s in exact]) == pytest.approx(results["pope_precision,none"])
    answered = [s["recall"] for s in exact if s["recall"][1] is not None]
    assert yes_no.recall(answered) == pytest.approx(results["pope_recall,none"])
    assert yes_no.f1(answered) == pytest.approx(results["pope_f1_score,none"])
    assert yes_no.yes_ratio([(said, gold) for gold, said in (s["f1"] for s in scores)]) == pytest.approx(
        results["pope_yes_ratio,none"]
    )
