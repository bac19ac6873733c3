"""The multimodal task pool with a tiny model, from Python and from the command line; pools joined in one report."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fusion_eval.errors import ConfigError
from fusion_eval.taskpool import JoinedTaskPool, MultimodalTaskPool
from tests.harness.engine.tiny_vlm import tiny_llava
from tests.program.running import run

COLORS = ("red", "green", "blue", "white")


@pytest.fixture(scope="module")
def llava() -> tuple[Any, Any]:
    return tiny_llava()


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    root = tmp_path / "tasks"
    root.mkdir()
    rows = []
    for i, name in enumerate(COLORS):
        Image.new("RGB", (32, 32), name).save(root / f"{name}.png")
        rows.append({"picture": str(root / f"{name}.png"), "question": "What is the color?", "answer": i})
    (root / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    base = "dataset_path: data.jsonl\ntest_split: test\ndoc_to_visual: picture\ndoc_to_text: question\n"
    (root / "pick.yaml").write_text(
        base + "task: pick\noutput_type: multiple_choice\ndoc_to_choice: [red, green, blue, white]\n"
        "doc_to_target: answer\nmetric_list:\n  - metric: acc\n", encoding="utf-8",
    )  # fmt: skip
    (root / "write.yaml").write_text(
        base + "task: write\ndoc_to_target: answer\ngeneration_kwargs: {max_new_tokens: 3}\n"
        "process_results: !function utils.results\nmetric_list:\n  - metric: length\n    aggregation: mean\n"
        "  - metric: file\n    aggregation: !function utils.submit\n"
        "model_specific_prompt_kwargs:\n  default: {end: ''}\n  llava: {end: ' Say it.'}\n",
        encoding="utf-8",
    )  # fmt: skip
    (root / "utils.py").write_text(
        "import os\n\ndef results(doc, results):\n    return {'length': len(results[0]), 'file': results[0]}\n\n"
        "def submit(results, args):\n    folder = os.path.join(args.output_path, 'submissions')\n"
        "    os.makedirs(folder, exist_ok=True)\n    with open(os.path.join(folder, 'x.txt'), 'w') as file:\n"
        "        file.write(repr(results))\n", encoding="utf-8",
    )  # fmt: skip
    return root


def pool(tasks: Path, names: Any, processor: Any, **more: Any) -> MultimodalTaskPool:
    return MultimodalTaskPool(
        names, include_path=str(tasks), data_root=str(tasks), tokenizer=processor, answers=None, progress=False, **more
    )


def test_a_report_with_two_kinds_of_tasks(tasks: Path, llava: tuple[Any, Any], tmp_path: Path) -> None:
    model, processor = llava
    own = pool(tasks, ["pick", "write"], processor, output_dir=str(tmp_path / "out"))
    assert own.faults() == []
    own.setup()
    result = own.results(model)
    assert [task.name for task in result.tasks] == ["pick", "write"]
    assert result.tasks[0].n == 4
    assert "file has no number" in result.tasks[1].notes[0]
    assert ast.literal_eval((tmp_path / "out" / "submissions" / "x.txt").read_text()) == [
        row.filtered[0] for row in own.outcome(model, "model", "merged", ["write"]).tasks["write"].rows
    ]
    nested = own.evaluate(model)
    assert nested["pick"] == {"acc": result.tasks[0].metrics["acc"].value}
    assert set(nested) == {"model_info", "pick", "write", "average"}


def test_the_architectures_family_names_the_model(tasks: Path, llava: tuple[Any, Any]) -> None:
    model, processor = llava
    text = (tasks / "write.yaml").read_text(encoding="utf-8").replace("question", "!function utils.text", 1)
    (tasks / "write.yaml").write_text(text, encoding="utf-8")
    with (tasks / "utils.py").open("a", encoding="utf-8") as file:
        file.write("\ndef text(doc, kwargs):\n    return doc['question'] + kwargs['end']\n")
    rows = pool(tasks, "write", processor).outcome(model, "merged", "merged", None).tasks["write"].rows
    assert rows[0].arguments[0][0]["prompt"] == "What is the color? Say it."


def test_limit_batches_and_answers_that_are_kept(tasks: Path, llava: tuple[Any, Any], tmp_path: Path) -> None:
    model, processor = llava
    kept = str(tmp_path / "answers")
    whole = pool(tasks, "write", processor, batch_size=1)
    rows = whole.outcome(model, "m", "merged", None).tasks["write"].rows
    for size in (2, 4):
        again = pool(tasks, "write", processor, batch_size=size).outcome(model, "m", "merged", None)
        assert [row.resps for row in again.tasks["write"].rows] == [row.resps for row in rows]
    part = pool(tasks, "write", processor, limit=2)
    part._answers = kept
    assert part.results(model).tasks[0].partial
    rest = pool(tasks, "write", processor)
    rest._answers = kept
    outcome = rest.outcome(model, "m", "merged", None)
    assert [row.resps for row in outcome.tasks["write"].rows] == [row.resps for row in rows]


def test_pools_with_tasks_of_one_name(tasks: Path, llava: tuple[Any, Any]) -> None:
    model, processor = llava
    pools = {"seen": pool(tasks, "pick", processor), "again": pool(tasks, "pick", processor), "none": None}
    (fault,) = JoinedTaskPool(pools).faults()
    assert "pick" in fault.found
    joined = JoinedTaskPool(pools, prefix=True)
    assert joined.faults() == []
    assert [task.name for task in joined.results(model).tasks] == ["seen/pick", "again/pick"]
    assert [task.name for task in joined.results(model, tasks=["again/pick"]).tasks] == ["again/pick"]
    with pytest.raises(ConfigError, match="pools"):
        JoinedTaskPool({})


def test_language_and_pictures_in_one_report(tasks: Path, llava: tuple[Any, Any]) -> None:
    model, processor = llava
    (tasks / "say.yaml").write_text(
        f"task: say\ndataset_path: {tasks / 'data.jsonl'}\ndoc_to_text: question\ndoc_to_target: answer\n"
        f"doc_to_choice: {list(COLORS)}\noutput_type: multiple_choice\nmetric_list: [{{metric: acc}}]\n",
        encoding="utf-8",
    )
    language = {
        "_target_": "fusion_eval.taskpool.LanguageModelTaskPool", "tasks": [str(tasks / "say.yaml")], "answers": None,
        "progress": False,
    }  # fmt: skip
    joined = JoinedTaskPool({"language": language, "pictures": pool(tasks, ["pick"], processor)}, progress=False)
    joined.pools["language"]._maker.tokenizer = processor.tokenizer  # type: ignore[attr-defined]
    assert joined.faults() == []
    joined.restrict(3, False)
    joined.setup()
    nested = joined.evaluate(model)
    assert nested.keys() == {"model_info", "say", "pick", "average"}
    assert nested["average"]["acc"] == (nested["say"]["acc"] + nested["pick"]["acc"]) / 2


def test_from_the_command_line(tasks: Path, llava: tuple[Any, Any], tmp_path: Path) -> None:
    model, processor = llava
    for name in ("base", "expert"):
        model.save_pretrained(tmp_path / name)
        processor.save_pretrained(tmp_path / name)
    report = run(
        tmp_path / "out", "method=simple_average", "modelpool=huggingface", f"modelpool.base={tmp_path / 'base'}",
        f"modelpool.experts={{one: {tmp_path / 'expert'}}}", "modelpool.auto_class=AutoModelForImageTextToText",
        "taskpool=multimodal/default", "taskpool.tasks=[write,pick]", f"taskpool.include_path={tasks}",
        f"taskpool.data_root={tasks}", "taskpool.log_samples=true", "taskpool.answers=null",
    )  # fmt: skip
    merged = next(result for result in report.models if result.role == "merged")
    assert [task.name for task in merged.tasks] == ["write", "pick"]
    out = tmp_path / "out"
    assert (out / "submissions" / "x.txt").is_file()
    assert (out / "models" / "base" / "submissions" / "x.txt").is_file()
    rows = [json.loads(line) for line in (out / "lmms_eval" / "samples_write.jsonl").read_text().splitlines()]
    assert [row["doc_id"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["prompt"] == "What is the color?"
    assert len({row["media"][0][1] for row in rows}) == 4


def test_wrong_settings(tasks: Path) -> None:
    with pytest.raises(ConfigError, match="eagle, current"):
        MultimodalTaskPool("pick", style="eagel")
    with pytest.raises(ConfigError, match="on_error"):
        _ = pool(tasks, "pick", None, on_error="ignore").suite
    (tasks / "cot.yaml").write_text(
        "include: write.yaml\ntask: cot\noutput_type: generate_visual_cot\n", encoding="utf-8"
    )
    (fault,) = pool(tasks, "cot", None).faults()
    assert "generate_visual_cot" in fault.found
