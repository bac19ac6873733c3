"""The library's task files, offline, on made-up rows in the hub's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fusion_eval.harness.build import RunOptions
from fusion_eval.harness.catalog import TaskCatalog, picture_library
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.multimodal.dialect import EXTRA_KEYS
from fusion_eval.harness.multimodal.suite import MultimodalSuite, make_multimodal_suite
from fusion_eval.harness.outcome import Outcome
from fusion_eval.harness.suite import evaluate
from fusion_eval.harness.validate import check
from tests.harness.multimodal.library.test_replay import REPLAY
from tests.harness.multimodal.scripted import ScriptedModel, keyed

PLACES = {
    "fe_vqav2": "VQAv2/data/validation", "fe_textvqa": "textvqa/data/validation", "fe_pope": "POPE/data/test",
    "fe_mme": "MME/data/test", "fe_scienceqa": "ScienceQA/ScienceQA-IMG/test", "fe_ai2d": "ai2d/data/test",
    "fe_chartqa": "ChartQA/data/test", "fe_docvqa": "DocVQA/DocVQA/validation", "fe_mmbench": "MMBench/en/dev",
    "fe_mmmu": "MMMU/data/validation",
}  # fmt: skip
OWN = {
    "fe_mmbench": [
        {"index": index, "question": f"q{index % 1_000_000}?", "hint": hint, "answer": answer, "A": a, "B": b,
         "C": None, "D": None, "category": "c"}
        for index, hint, answer, a, b in [
            (1, "look", "A", "cat", "dog"), (2, None, "B", "red", "blue"), (1_000_001, "look", "B", "dog", "cat"),
        ]
    ],
    "fe_mmmu": [
        {"id": "validation_Art_1", "question": "Which is <image 1>?", "options": "['a cat', '<image 2>']",
         "question_type": "multiple-choice", "answer": "A"},
        {"id": "validation_Art_2", "question": "How many?", "options": "[]", "question_type": "open", "answer": "7"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every row has a picture of its own, so that equal questions may have other answers."""
    from datasets import Dataset, Features, disable_progress_bars
    from datasets import Image as Pictures

    disable_progress_bars()
    root = tmp_path_factory.mktemp("hub")
    for place_number, (task, place) in enumerate(PLACES.items()):
        rows = OWN.get(task) or REPLAY[task]["rows"]
        columns = ["image_1", "image_2"] if task == "fe_mmmu" else ["image"]
        pictures = [
            Image.new("RGB", (2, 2), (i, n, place_number)) for i in range(len(rows)) for n in range(len(columns))
        ]
        made: dict[str, list[Any]] = {key: [row[key] for row in rows] for key in rows[0]}
        made |= {name: pictures[n :: len(columns)] for n, name in enumerate(columns)}
        table = Dataset.from_dict(made)
        features = Features({**table.features, **{name: Pictures() for name in columns}})
        folder = root / "lmms-lab" / place
        folder.parent.mkdir(parents=True)
        table.cast(features).to_parquet(f"{folder}-00000-of-00001.parquet")
        if folder.parent.name != "data":
            name, split = folder.parent.name, folder.name
            head = f"---\nconfigs:\n- config_name: {name}\n  data_files:\n"
            files = f"  - split: {split}\n    path: {name}/{split}-*\n---\n"
            (folder.parent.parent / "README.md").write_text(head + files)
    return root


def suite_of(hub: Path, tasks: list[str], cache: Path, **options: Any) -> MultimodalSuite:
    return make_multimodal_suite(
        tasks, include_path=[picture_library()], data=DataSource(hub, offline=True), cache=cache,
        options=RunOptions(**options),
    )  # fmt: skip


def answered(hub: Path, cache: Path, answers: dict[tuple[str, int], str], **options: Any) -> Outcome:
    suite = suite_of(hub, list({task for task, _ in answers}), cache, **options)
    return evaluate(suite, ScriptedModel(keyed(suite, answers)))


def test_every_file_passes_the_check(tmp_path: Path) -> None:
    found = check(
        TaskCatalog([picture_library()], tmp_path, extra_keys=EXTRA_KEYS, peer="lmms_eval"),
        run_python=[picture_library()],
    )
    assert [str(fault) for fault in (*found.faults, *found.notes)] == []


def test_the_group_has_the_ten_benchmarks(hub: Path, tmp_path: Path) -> None:
    suite = suite_of(hub, ["fe_multimodal"], tmp_path)
    assert list(suite.selection.tasks) == list(PLACES)
    assert set(suite.load()) == set(PLACES)


@pytest.mark.parametrize("tree", ["eagle", "current"])
def test_recorded_answers(hub: Path, tmp_path: Path, tree: str) -> None:
    tasks = [task for task in REPLAY if task not in OWN]
    answers = {(task, i): said for task in tasks for i, said in enumerate(REPLAY[task][tree]["responses"])}
    found = answered(hub, tmp_path, answers).tasks
    peer = {task: REPLAY[task][tree]["results"] for task in tasks}
    value = {task: {k.partition(",")[0]: v.value for k, v in found[task].values.items()} for task in tasks}
    error = {task: {k.partition(",")[0]: v.stderr for k, v in found[task].values.items()} for task in tasks}
    assert value["fe_vqav2"]["vqa_accuracy"] == pytest.approx(peer["fe_vqav2"]["exact_match,none"])
    assert value["fe_textvqa"]["vqa_accuracy"] == pytest.approx(peer["fe_textvqa"]["exact_match,none"])
    assert value["fe_docvqa"]["anls"] == pytest.approx(REPLAY["fe_docvqa"]["current"]["results"]["anls,none"])
    for own, theirs in (("relaxed_accuracy", "overall"), ("relaxed_accuracy_human", "human_split")):
        assert value["fe_chartqa"][own] == pytest.approx(peer["fe_chartqa"][f"relaxed_{theirs},none"])
    assert value["fe_mme"]["perception"] == pytest.approx(250)
    assert value["fe_mme"]["cognition"] == pytest.approx(50)
    assert value["fe_pope"]["f1"] == pytest.approx(2 / 3)
    assert error["fe_pope"]["f1"] == pytest.approx(0.1213375, abs=1e-6)
    assert error["fe_mme"]["perception"] == pytest.approx(61.237244, abs=1e-5)


def test_an_odd_limit_keeps_mme(hub: Path, tmp_path: Path) -> None:
    answers = {("fe_mme", i): "yes" for i in range(24)}
    found = answered(hub, tmp_path, answers, limit=5).tasks["fe_mme"]
    values = {key.partition(",")[0]: value for key, value in found.values.items()}
    assert values["perception"].value == pytest.approx(100)
    assert values["accuracy"].value == pytest.approx(3 / 5)
    assert "no picture with both of its questions" in found.failed["cognition,none"]


def test_mmbench_and_its_rotations(hub: Path, tmp_path: Path) -> None:
    plain = answered(hub, tmp_path, {("fe_mmbench", 0): "A", ("fe_mmbench", 1): "red"}).tasks["fe_mmbench"]
    assert plain.values["accuracy,none"].value == 0.5
    answers = dict(enumerate(["A", "B. cat", "B", "(B)"]))
    turned = answered(hub, tmp_path, {("fe_mmbench_circular", i): said for i, said in answers.items()})
    found = turned.tasks["fe_mmbench_circular"].values
    assert found["circular_accuracy,none"].value == 0.5
    assert set(found) == {"circular_accuracy,none"}


def test_mmmu(hub: Path, tmp_path: Path) -> None:
    found = answered(hub, tmp_path, {("fe_mmmu", 0): "The answer is A.", ("fe_mmmu", 1): "There are 8."})
    assert found.tasks["fe_mmmu"].values["accuracy,none"].value == 0.5
