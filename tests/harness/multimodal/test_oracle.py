"""Prompts, responses and scores equal those of both peers, except where the peers are wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.harness.build import RunOptions
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.multimodal.suite import MultimodalSuite, make_multimodal_suite
from fusion_eval.harness.outcome import Outcome, TaskOutcome
from fusion_eval.harness.scheduler import Ranks
from fusion_eval.harness.suite import evaluate
from tests.harness.multimodal.conftest import Recorded
from tests.harness.multimodal.scripted import ScriptedModel, keyed

ORDINARY = ("tiny_color", "tiny_ground", "tiny_vqav2")
HUB_TASKS = (
    "vqav2_val", "pope", "mme", "chartqa", "ai2d", "textvqa_val", "docvqa_val", "scienceqa_img", "ocrbench",
)  # fmt: skip


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSource:
    return DataSource(None, tmp_path_factory.mktemp("cache"))


def suite_of(recorded: Recorded, style: str, tasks: Sequence[str], data: DataSource, **more: Any) -> MultimodalSuite:
    return make_multimodal_suite(list(tasks), include_path=[recorded.tasks(style)], data=data, **more)


def numbers(task: TaskOutcome) -> dict[str, Any]:
    return {key: value.value for key, value in task.values.items()}


def wanted(results: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if "stderr" not in key and key != "alias"}


@pytest.mark.parametrize(
    ("run", "style"),
    [("eagle_base", "eagle"), ("eagle_color", "eagle"), ("eagle_ground", "eagle"), ("current_base", "current")],
)
def test_recorded_runs(recorded: Recorded, data: DataSource, tmp_path: Path, run: str, style: str) -> None:
    suite = suite_of(recorded, style, ["tiny"], data, output=tmp_path)
    calls = recorded.calls(run)
    answers = keyed(suite, {key: call["response"] for key, call in calls.items()})
    outcome = evaluate(suite, ScriptedModel(answers, batch_size=4))
    assert tuple(outcome.tasks) == ORDINARY
    for name, task in outcome.tasks.items():
        peer = recorded.run(run)
        scores = {row["doc_id"]: row for row in peer["samples"][name]}
        for row in task.rows:
            asked, call = row.arguments[0][0], calls[name, row.doc_id]
            assert asked["prompt"] == call["prompt"]
            assert len(asked["media"]) == call["images"]
            assert row.resps == [[call["response"]]]
            assert row.target == scores[row.doc_id]["target"]
            assert row.metrics == {metric: scores[row.doc_id][metric] for metric in row.metrics}
        assert numbers(task) == wanted(peer["results"][name])
        for value in task.values.values():
            error = peer["results"][name][f"{value.metric}_stderr,none"]
            assert value.stderr == (None if error == "N/A" else pytest.approx(error, rel=1e-9))
    written = json.loads((tmp_path / "submissions" / "tiny_vqav2.json").read_text())
    assert written == json.loads((recorded.root / "runs" / f"{run}_files" / "tiny_vqav2.json").read_text())


def test_where_the_peers_are_wrong(recorded: Recorded, data: DataSource) -> None:
    def right(asked: Any, text: str) -> float:
        return 0.0 if text == gold[asked.key] else -1.0

    for style in ("eagle", "current"):
        suite = suite_of(recorded, style, ["tiny_red", "tiny_choice"], data)
        with suite.names():
            red, choice = suite.task("tiny_red"), suite.task("tiny_choice")
        assert set(red.eval_docs["answer"]) == {"red"}
        assert len(red.eval_docs) == 4
        gold = {}
        for share in suite.shares(RunOptions(), None, ["tiny_choice"]):
            for request in share["tiny_choice"].requests:
                gold[request.args[0].key] = request.doc["answer"]
        outcome = evaluate(suite, ScriptedModel(lambda asked: "red", right))
        assert outcome.tasks["tiny_red"].values["exact_match,none"].value == 1.0
        assert outcome.tasks["tiny_choice"].values["acc,none"].value == 1.0
        assert len(choice.eval_docs) == 24


def test_two_pictures_of_a_document_keep_their_order(recorded: Recorded, data: DataSource) -> None:
    suite = suite_of(recorded, "eagle", ["tiny_pair"], data)
    shared = next(iter(suite.shares(RunOptions(), None, None)))
    pairs = {tuple(m.digest for m in r.args[0].media) for r in shared["tiny_pair"].requests}
    assert all(len(pair) == 2 for pair in pairs)
    assert len(pairs) == 24
    assert shared["tiny_pair"].requests[0].args[0].text.startswith("Are both shapes of one color?\n")


def test_the_model_of_its_own_block(recorded: Recorded, data: DataSource) -> None:
    suite = suite_of(recorded, "eagle", ["tiny_color"], data, model_names=["tiny_other"])
    shared = next(iter(suite.shares(RunOptions(), None, None)))
    assert shared["tiny_color"].requests[0].args[0].text == "Q: What is the color of the shape? A:"


def same(one: Outcome, other: Outcome) -> None:
    for name, task in one.tasks.items():
        assert numbers(task) == numbers(other.tasks[name])
        assert [row.metrics for row in task.rows] == [row.metrics for row in other.tasks[name].rows]
        assert {k: v.stderr for k, v in task.values.items()} == {
            k: v.stderr for k, v in other.tasks[name].values.items()
        }


def test_alone_together_and_any_batch_are_the_same(recorded: Recorded, data: DataSource, tmp_path: Path) -> None:
    names = [*ORDINARY, "tiny_pair", "tiny_red", "tiny_choice", "no_task_key"]
    model = ScriptedModel(lambda asked: str(asked.key[:3]))
    whole = evaluate(suite_of(recorded, "eagle", names, data, output=tmp_path / "whole"), model)
    for batch in (2, 7, 64):
        model = ScriptedModel(lambda asked: str(asked.key[:3]), batch_size=batch)
        other = evaluate(suite_of(recorded, "eagle", names[::-1], data, output=tmp_path / str(batch)), model)
        same(whole, other)
        assert all(len({a.text.partition("\n")[0] for a in b}) == 1 for b in model.batches), "a batch mixes tasks"
    for name in names:
        model = ScriptedModel(lambda asked: str(asked.key[:3]))
        alone = evaluate(suite_of(recorded, "eagle", [name], data, output=tmp_path / name), model)
        same(Outcome({name: whole.tasks[name]}, {}, whole.options), alone)
    files = [tmp_path / part / "submissions" / "tiny_vqav2.json" for part in ("whole", "2", "7", "64", "tiny_vqav2")]
    assert len({file.read_bytes() for file in files}) == 1


class Meeting:
    """Ranks as threads that exchange objects."""

    def __init__(self, size: int) -> None:
        self.size, self.box = size, [None] * size
        self.barrier = threading.Barrier(size)

    def ranks(self, rank: int) -> Ranks:
        def gather(item: Any) -> list[Any]:
            self.box[rank] = item
            self.barrier.wait()
            found = list(self.box)
            self.barrier.wait()
            return found

        return Ranks(rank, self.size, gather)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_are_the_same(recorded: Recorded, data: DataSource, tmp_path: Path, size: int) -> None:
    names = [*ORDINARY, "tiny_choice"]

    def run(ranks: Ranks, output: Path) -> Outcome:
        model = ScriptedModel(lambda asked: str(asked.key[:3]), batch_size=5)
        return evaluate(suite_of(recorded, "eagle", names, data, output=output), model, ranks=ranks)

    alone = run(Ranks(), tmp_path / "alone")
    meeting, found = Meeting(size), {}
    lock = threading.Lock()

    def work(rank: int) -> None:
        outcome = run(meeting.ranks(rank), tmp_path / f"rank{rank}")
        with lock:
            found[rank] = outcome

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(size))
    for outcome in found.values():
        same(alone, outcome)
    own = tmp_path / "rank0" / "submissions" / "tiny_vqav2.json"
    assert own.read_bytes() == (tmp_path / "alone" / "submissions" / "tiny_vqav2.json").read_bytes()
    assert not (tmp_path / "rank1").exists(), "only rank zero writes"


@pytest.mark.parametrize("name", HUB_TASKS)
def test_tasks_of_the_wheel_unmodified(
    recorded: Recorded, hub: DataSource, wheel_tasks: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    peer = recorded.run("current_hub_scripted")
    calls = recorded.calls("current_hub_scripted")
    suite = make_multimodal_suite(
        [name], include_path=[wheel_tasks], data=hub, model_names=["tiny"], output=tmp_path / "out"
    )
    answers = keyed(suite, {key: call["response"] for key, call in calls.items()})
    task = evaluate(suite, ScriptedModel(answers)).tasks[name]
    assert [row.arguments[0][0]["prompt"] for row in task.rows] == [
        calls[name, row.doc_id]["prompt"] for row in task.rows
    ]
    assert not task.failed
    assert numbers(task) == wanted(peer["results"][name])


@pytest.mark.parametrize(("compat", "run"), [(True, "eagle_hub_scripted"), (False, "current_hub_scripted")])
def test_anls_of_either_peer(recorded: Recorded, hub: DataSource, tmp_path: Path, compat: bool, run: str) -> None:
    (tmp_path / "own.yaml").write_text(
        "task: docvqa_val\ndataset_path: owner/DocVQA\ndataset_name: DocVQA\ntest_split: validation\n"
        "doc_to_visual: image\ndoc_to_text: question\ndoc_to_target: answers\nmetric_list:\n  - metric: anls\n"
        "    aggregation: mean\nmodel_specific_prompt_kwargs:\n  default: {}\n"
    )
    options = RunOptions(compat=compat)
    suite = make_multimodal_suite("docvqa_val", include_path=[tmp_path], data=hub, options=options)
    answers = keyed(suite, {key: call["response"] for key, call in recorded.calls(run).items()})
    task = evaluate(suite, ScriptedModel(answers)).tasks["docvqa_val"]
    assert numbers(task) == wanted(recorded.run(run)["results"]["docvqa_val"])


def test_state_of_the_wheels_tasks_does_not_reach_the_next_model(
    recorded: Recorded, hub: DataSource, wheel_tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = make_multimodal_suite("ocrbench", include_path=[wheel_tasks], data=hub, output=tmp_path)
    calls = recorded.calls("current_hub_scripted")
    model = ScriptedModel(keyed(suite, {key: call["response"] for key, call in calls.items()}))
    first, second = (numbers(evaluate(suite, model).tasks["ocrbench"]) for _ in range(2))
    assert first == second == {"ocrbench_accuracy,none": 0.012}


def test_an_aggregation_that_fails_leaves_the_others(
    hub: DataSource, wheel_tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = RunOptions(limit=7)
    suite = make_multimodal_suite("mme", include_path=[wheel_tasks], data=hub, options=options, output=tmp_path)
    task = evaluate(suite, ScriptedModel(lambda asked: "Yes")).tasks["mme"]
    assert "pairwise" in task.failed["mme_perception_score,none"]
    assert list(numbers(task)) == ["mme_cognition_score,none"]
