"""What hooks get, what may come back, and what happens when they fail."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import ConfigError, DataError, FusionEvalError
from fusion_eval.harness.multimodal.dialect import ModelNames
from fusion_eval.harness.multimodal.setting import Setting
from tests.harness.multimodal.conftest import BASE, Folder
from tests.harness.multimodal.scripted import ScriptedModel

Task = Callable[..., Folder]


def values(outcome: Any, name: str = "mine") -> dict[str, Any]:
    return {key.removesuffix(",none"): value.value for key, value in outcome.tasks[name].values.items()}


def scored(metric: str, aggregation: str = "mean") -> str:
    entry = f"metric_list:\n  - metric: {metric}\n    aggregation: {aggregation}\n"
    return f"process_results: !function utils.results\n{entry}"


def prompts(folder: Folder, **kwargs: Any) -> list[str]:
    outcome = folder.run("mine", **kwargs)
    return [row.arguments[0][0]["prompt"] for row in outcome.tasks["mine"].rows]


def test_the_least_task(task: Task) -> None:
    outcome = task().run("mine")
    assert values(outcome) == {"exact_match": 1.0}
    assert outcome.tasks["mine"].rows[0].arguments[0][1] == {"do_sample": False, "max_new_tokens": 8, "until": []}


@pytest.mark.parametrize(
    ("key", "names", "expected"),
    [
        ("model_specific_prompt_kwargs", None, "default"),
        ("model_specific_prompt_kwargs", ["mine"], "own"),
        ("model_specific_prompt_kwargs", ["another", "mine"], "own"),
        ("lmms_eval_specific_kwargs", None, "default"),
        ("lmms_eval_specific_kwargs", ["mine"], "own"),
    ],
)
def test_prompt_settings_by_model(task: Task, key: str, names: Any, expected: str) -> None:
    folder = task(
        f"{key}:\n  default: {{pre: default}}\n  mine: {{pre: own}}\ndoc_to_text: !function utils.text\n",
        "def text(doc, whatever=None):\n    return whatever['pre'] + ' ' + doc['question']\n",
    )
    assert prompts(folder, model_names=names)[0] == f"{expected} Say red"


def test_without_settings_a_hook_gets_the_document_alone(task: Task) -> None:
    text = "def text(doc, kwargs=None):\n    return str(kwargs)\n"
    assert prompts(task("doc_to_text: !function utils.text", text))[0] == "None"
    more = "model_specific_prompt_kwargs:\n  other: {a: 1}\ndoc_to_text: !function utils.text"
    assert prompts(task(more, text))[0] == "None"


def test_current_settings_lie_over_the_whole_mapping(task: Task) -> None:
    more = "lmms_eval_specific_kwargs:\n  default: {a: 1}\n  other: {a: 2}\ndoc_to_text: !function utils.text"
    text = "def text(doc, kwargs=None):\n    return str(sorted(kwargs))\n"
    assert prompts(task(more, text))[0] == "['a', 'default', 'other']"
    flat = "lmms_eval_specific_kwargs: {a: 1}\ndoc_to_text: !function utils.text"
    assert prompts(task(flat, text))[0] == "['a']"


def test_plain_strings_for_targets(task: Task) -> None:
    folder = task(
        "model_specific_target_kwargs:\n  default: mc\n  own: abc\ndoc_to_target: !function utils.target\n",
        "def target(doc, kind):\n    return kind\n",
    )
    rows = folder.run("mine").tasks["mine"].rows
    assert {row.target for row in rows} == {"mc"}
    assert {row.target for row in folder.run("mine", model_names=["own"]).tasks["mine"].rows} == {"abc"}


def test_generation_settings(task: Task) -> None:
    folder = task("model_specific_generation_kwargs:\n  own: {max_new_tokens: 3, temperature: 0}\n")
    own = folder.run("mine", model_names=["own"]).tasks["mine"].rows[0].arguments[0][1]
    assert (own["max_new_tokens"], own["temperature"]) == (3, 0.0)
    given = Setting(ModelNames("own"), gen_kwargs={"max_new_tokens": 5, "until": ["."]})
    run = folder.run("mine", setting=given).tasks["mine"].rows[0].arguments[0][1]
    assert (run["max_new_tokens"], run["until"]) == (5, ["."])
    odd = task("generation_kwargs: {num_beams: 1, image_aspect_ratio: pad, top_p: null, stop_sequences: ['x']}\n")
    settings = odd.run("mine").tasks["mine"].rows[0].arguments[0][1]
    assert settings == {"do_sample": False, "until": ["x"], "max_new_tokens": 1024}
    bare = folder.write(bare__yaml="task: bare\n" + BASE.partition("generation_kwargs")[0])
    assert bare.run("bare").tasks["bare"].rows[0].arguments[0][1]["max_new_tokens"] == 1024


def test_no_pictures_and_several(task: Task) -> None:
    visual = """
        def visual(doc):
            return [doc["path"]] * doc["id"]
        """
    rows = task("doc_to_visual: !function utils.visual", visual).run("mine").tasks["mine"].rows
    assert [len(row.arguments[0][0]["media"]) for row in rows] == [0, 1, 2, 3, 4, 5]


def test_eagle_gets_responses_as_they_are_and_current_stripped(task: Task) -> None:
    results = "def results(doc, results):\n    return {'length': len(results[0])}\n"
    more = "process_results: !function utils.results\nmetric_list:\n  - metric: length\n    aggregation: mean\n"
    said = ScriptedModel(lambda asked: " ab ")
    current = task(more + "    higher_is_better: null\nlmms_eval_specific_kwargs: {default: {}}\n", results)
    assert values(current.run("mine", said)) == {"length": 2.0}
    eagle = task(more + "model_specific_prompt_kwargs: {default: {}}\nmetadata:\n  - version: 0.0\n", results)
    assert values(eagle.run("mine", said)) == {"length": 4.0}


def test_metrics_of_any_type_omitted_and_unlisted(task: Task) -> None:
    utils = """
        def results(doc, results):
            found = {"all": {"id": doc["id"]}, "logged": "text"}
            if doc["id"] < 2:
                found["some"] = 1.0
            doc["answer"] = "changed"
            return found
        def none(items): return None
        def pair(items): return (len(items), 2)
        def table(items): return {"n": len(items), "nested": {"x": 1}}
        def broken(items): raise ZeroDivisionError("odd number")
        """
    listed = "".join(
        f"  - metric: {name}\n    aggregation: {how}\n    higher_is_better: null\n"
        for name, how in (("some", "mean"), ("all", "!function utils.table"), ("never", "mean"))
    )
    folder = task(f"process_results: !function utils.results\nmetric_list:\n{listed}", utils)
    outcome = folder.run("mine").tasks["mine"]
    assert {key: v.value for key, v in outcome.values.items()} == {
        "some,none": 1.0, "all,none": {"n": 6, "nested": {"x": 1}},
    }  # fmt: skip
    assert outcome.values["some,none"].n == 2
    assert outcome.failed == {"never,none": "no document gave a value"}
    assert outcome.rows[0].metrics["logged"] == "text"
    assert outcome.rows[0].target == "red", "the task's own function wrote into a copy"
    for name, expected in (("none", None), ("pair", (6, 2))):
        again = task(
            "process_results: !function utils.results\nmetric_list:\n  - metric: all\n"
            f"    aggregation: !function utils.{name}\n", utils,
        )  # fmt: skip
        assert values(again.run("mine")) == {"all": expected}
    failing = task(
        "process_results: !function utils.results\nmetric_list:\n  - metric: all\n    aggregation: !function "
        "utils.broken\n  - metric: some\n    aggregation: mean\n", utils,
    )  # fmt: skip
    outcome = failing.run("mine").tasks["mine"]
    assert "ZeroDivisionError: odd number" in outcome.failed["all,none"]
    assert outcome.values["some,none"].value == 1.0


@pytest.mark.parametrize(
    "signature", ["results, args", "items, args=None", "records, args, **more", "results, *, args"]
)
def test_aggregations_that_want_arguments(task: Task, tmp_path: Path, signature: str) -> None:
    first = signature.partition(",")[0]
    folder = task(
        scored("x", "!function utils.write"),
        f"""
        import os
        def results(doc, result):
            return {{"x": doc["id"]}}
        def write({signature}):
            os.makedirs(args.output_path, exist_ok=True)
            with open(os.path.join(args.output_path, "x.txt"), "w") as file:
                file.write(str({first}))
        """,
    )
    folder.run("mine", output=tmp_path / "out")
    assert (tmp_path / "out" / "x.txt").read_text() == "[0, 1, 2, 3, 4, 5]", "in the order of documents"


def test_a_failing_scorer_names_task_document_and_line(task: Task) -> None:
    folder = task(
        scored("x"),
        "def results(doc, results):\n    if doc['id'] == 3:\n        return doc['nothing']\n    return {'x': 1.0}\n",
    )
    with pytest.raises(DataError, match=r"task 'mine', document 3: KeyError: 'nothing' at .*utils.py:3"):
        folder.run("mine")
    outcome = folder.run("mine", options={"on_error": "unscored"}).tasks["mine"]
    assert list(outcome.unscored) == [3]
    assert outcome.values["x,none"].n == 5


def test_what_is_no_mapping_is_an_error(task: Task) -> None:
    folder = task(
        scored("x"),
        "def results(doc, results):\n    return 1.0\n",
    )
    with pytest.raises(DataError, match=r"gives 1.0 \(float\); expected a mapping"):
        folder.run("mine")


def test_a_missing_picture_names_its_document(task: Task) -> None:
    folder = task()
    (folder.root / "blue.png").unlink()
    with pytest.raises(DataError, match=r"document 2, doc_to_visual\[0\]: the file .*blue.png does not exist"):
        folder.run("mine")
    outcome = folder.run("mine", options={"on_error": "unscored"}).tasks["mine"]
    assert list(outcome.unscored) == [2]
    assert outcome.values["exact_match,none"].n == 5


def test_process_docs_counts_for_questions_and_scores(task: Task) -> None:
    folder = task(
        "process_docs: !function utils.half",
        "def half(docs):\n    return docs.filter(lambda d: d['id'] % 2 == 1)\n",
    )
    outcome = folder.run("mine").tasks["mine"]
    assert [row.target for row in outcome.rows] == ["green", "white", "yellow"]
    assert values(folder.run("mine")) == {"exact_match": 1.0}
    as_list = task(
        "process_docs: !function utils.half", "def half(docs):\n    return [d for d in docs if d['id'] == 1]\n"
    )
    assert [row.target for row in as_list.run("mine").tasks["mine"].rows] == ["green"]


def test_failing_process_docs_names_its_line(task: Task) -> None:
    folder = task("process_docs: !function utils.half", "def half(docs):\n    return docs['nothing']\n")
    with pytest.raises(DataError, match=r"task 'mine' \(process_docs\): .*nothing.* at .*utils.py:2"):
        folder.suite("mine").load()


def test_a_hook_that_writes_into_its_document_changes_nothing(task: Task) -> None:
    folder = task(
        "doc_to_text: !function utils.text\ndoc_to_choice: choices\ndoc_to_target: gold\noutput_type: multiple_choice\n"
        "generation_kwargs: null\n",
        "def text(doc):\n    doc['choices'].append('none of these')\n    return str(len(doc['choices']))\n",
    )
    rows = folder.run("mine").tasks["mine"].rows
    assert {row.arguments[0][0]["prompt"] for row in rows} == {"7"}
    assert {len(row.arguments) for row in rows} == {6}


def test_full_docs(task: Task) -> None:
    folder = task(
        "full_docs: true\n" + scored("n"),
        "def results(doc, results, full_docs=None):\n    return {'n': len(full_docs)}\n",
    )
    assert values(folder.run("mine")) == {"n": 6.0}


def test_choices_and_a_continuation(task: Task) -> None:
    def right(asked: Any, text: str) -> float:
        return float(asked.text.endswith(text.strip()))

    base = BASE.replace("generate_until", "multiple_choice").replace("doc_to_target: answer", "doc_to_target: gold")
    base = base.partition("generation_kwargs")[0] + "doc_to_choice: choices\n"
    assert values(task(base=base).run("mine", ScriptedModel(str, right))) == {"acc": 1.0, "acc_norm": 1.0}
    one = BASE.replace("generate_until", "loglikelihood").partition("generation_kwargs")[0]
    found = values(task(base=one).run("mine", ScriptedModel(str, lambda asked, text: -0.5)))
    assert found["perplexity"] == pytest.approx(1.6487212707)


def test_reasoning_is_taken_away(task: Task) -> None:
    thoughts = ScriptedModel(lambda asked: f"<think>red or blue</think> {asked.text.split()[-1]}")
    assert values(task().run("mine", thoughts)) == {"exact_match": 0.0}
    assert values(task("auto_strip_thinking: true").run("mine", thoughts)) == {"exact_match": 1.0}
    tags = Setting(reasoning_tags=[["<think>", "</think>"]])
    assert values(task().run("mine", thoughts, setting=tags)) == {"exact_match": 1.0}
    assert values(task("reasoning_tags: none").run("mine", thoughts, setting=tags)) == {"exact_match": 0.0}


def test_rounds(task: Task) -> None:
    folder = task(
        "output_type: generate_until_multi_round\ndoc_to_text: !function utils.text\nprocess_results: !function "
        "utils.results\nmetric_list:\n  - metric: said\n    aggregation: !function utils.keep\n",
        """
        def text(doc, lmms_eval_specific_kwargs=None, previous_output=None, round_idx=None, previous_round_info=None):
            if round_idx is None:
                return f"first {doc['id']}"
            if round_idx > doc["id"] % 3:
                return None, None, True, previous_output, None
            return [doc["path"]], f"{previous_output[-1]}+{round_idx}", False, previous_output, round_idx
        def results(doc, results):
            return {"said": "|".join(results[0])}
        def keep(items):
            return items
        """,
    )
    said = values(folder.run("mine", ScriptedModel(lambda asked: asked.text.replace("first", "re"))))["said"]
    assert said[:3] == ["re 0", "re 1|re 1+1", "re 2|re 2+1|re 2+1+2"]


def test_a_kind_that_no_engine_does(task: Task) -> None:
    with pytest.raises(FusionEvalError, match="generate_visual_cot: the model draws pictures"):
        task("output_type: generate_visual_cot").run("mine")


@pytest.mark.parametrize("kind", ["generate_until_multi_round", "generate_until_agentic"])
def test_rounds_need_a_function(task: Task, kind: str) -> None:
    with pytest.raises(FusionEvalError, match="a function that makes each round's question"):
        task(f"output_type: {kind}").run("mine")


def test_messages(task: Task) -> None:
    folder = task(
        "doc_to_messages: !function utils.messages\nlmms_eval_specific_kwargs: {default: {end: '!'}}\n",
        """
        def messages(doc, lmms_eval_specific_kwargs=None):
            picture = {"type": "image", "url": doc["path"]}
            again = {"type": "image_url", "image_url": {"url": doc["path"]}}
            text = {"type": "text", "text": doc["question"] + lmms_eval_specific_kwargs["end"]}
            return [{"role": "system", "content": "be short"}, {"role": "user", "content": [picture, text, again]}]
        """,
    )
    asked: list[Any] = []
    folder.run("mine", ScriptedModel(lambda a: asked.append(a) or ""))
    assert [turn.role for turn in asked[0].turns] == ["system", "user"]
    parts = asked[0].turns[1].parts
    assert (parts[1], parts[0].digest) == ("Say red!", parts[2].digest)
    asked.clear()
    folder.run("mine", ScriptedModel(lambda a: asked.append(a) or ""), setting=Setting(messages=False))
    assert [turn.role for turn in asked[0].turns] == ["user"]


def test_shots_come_with_their_pictures(task: Task) -> None:
    asked: list[Any] = []
    folder = task("num_fewshot: 2\nfewshot_split: test\nfewshot_config: {sampler: first_n}\ndescription: 'Colours. '\n")
    folder.run("mine", ScriptedModel(lambda a: asked.append(a) or ""))
    parts = asked[0].turns[0].parts
    assert [part if isinstance(part, str) else "picture" for part in parts] == [
        "Colours. ", "picture", "Say green green\n\n", "picture", "Say blue blue\n\n", "picture", "Say red",
    ]  # fmt: skip


def test_anls_is_right_unless_the_peers_is_wanted(task: Task) -> None:
    more = "doc_to_target: !function utils.gold\nmetric_list:\n  - metric: anls\n    aggregation: mean\n"
    gold = "def gold(doc):\n    return ['abcd', 'xyz']\n"
    said = ScriptedModel(lambda asked: "abcx")
    assert values(task(more, gold).run("mine", said)) == {"anls": 0.75}
    eagle = task(more + "model_specific_prompt_kwargs: {default: {}}\n", gold)
    assert values(eagle.run("mine", said)) == {"anls": 0.75}
    assert values(eagle.run("mine", said, {"compat": True})) == {"anls": 1.0}


def test_a_second_model_gets_fresh_modules(task: Task) -> None:
    folder = task(
        scored("n", "!function utils.total"),
        """
        seen = []
        def results(doc, results):
            seen.append(doc["id"])
            return {"n": 1}
        def total(items):
            return len(seen)
        """,
    )
    suite = folder.suite("mine")
    from fusion_eval.harness.suite import evaluate

    suite.load()
    model = ScriptedModel(lambda asked: "")
    for _ in range(2):
        assert values(evaluate(suite, model)) == {"n": 6}, "hooks of a task share a module, models do not"


def test_unknown_keys_and_aggregations_are_told_at_once(task: Task) -> None:
    folder = task("doc_to_vizual: path\ngeneration_kwarg: {}\n")
    with pytest.raises(ConfigError) as error:
        folder.suite("mine")
    assert "mine.yaml:11 (doc_to_vizual)" in str(error.value)
    assert "Did you mean 'doc_to_visual'" in str(error.value)
    assert "Did you mean 'generation_kwargs'" in str(error.value)


def test_memory_is_bounded(task: Task) -> None:
    media: list[Any] = []
    folder = task()
    folder.run("mine", ScriptedModel(lambda a: media.extend(a.media) or ""), setting=Setting(memory=600))
    assert [m.value.size for m in media] == [(8 + i, 8) for i in range(6)]
    assert sum(type(m.held).__name__ == "Deferred" for m in media) == 4


def test_hub_names_that_hooks_load_themselves(task: Task) -> None:
    folder = task(
        "doc_to_visual: !function utils.visual",
        """
        from datasets import load_dataset
        from huggingface_hub import hf_hub_download, snapshot_download

        def visual(doc):
            rows = load_dataset("owner/Pictures", split="test", token=True)
            root = snapshot_download(repo_id="owner/Pictures", repo_type="dataset")
            assert hf_hub_download("owner/Pictures", "test.jsonl").startswith(root)
            return [rows[doc["id"]]["path"]]
        """,
    )
    place = folder.root / "owner" / "Pictures"
    place.mkdir(parents=True)
    (place / "test.jsonl").write_text((folder.root / "data.jsonl").read_text())
    assert values(folder.run("mine")) == {"exact_match": 1.0}
    import datasets

    assert datasets.load_dataset is datasets.load.load_dataset


@pytest.mark.parametrize("packed", [True, False])
def test_videos_are_put_where_hooks_look(task: Task, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    folder = task(
        "dataset_path: owner/Clips\ndataset_kwargs: {video: true, cache_dir: clips, token: true}\n"
        "doc_to_visual: !function utils.visual",
        """
        import os
        def visual(doc):
            path = os.path.join(os.environ["HF_HOME"], "clips", f"{doc['id']}.mp4")
            assert os.path.exists(path), path
            return [path]
        """,
        BASE.replace("dataset_path: data.jsonl\n", ""),
    )
    monkeypatch.setenv("HF_HOME", str(folder.root / "home"))
    place = folder.root / "owner" / "Clips"
    place.mkdir(parents=True)
    (place / "test.jsonl").write_text((folder.root / "data.jsonl").read_text())
    with zipfile.ZipFile(place / "clips.zip", "w") as archive:
        for i in range(6):
            archive.writestr(f"{i}.mp4", f"film {i}")
    if not packed:
        with zipfile.ZipFile(place / "clips.zip") as archive:
            archive.extractall(place)
        (place / "clips.zip").unlink()
    rows = folder.run("mine").tasks["mine"].rows
    kinds = [row.arguments[0][0]["media"] for row in rows]
    assert [media[0][0] for media in kinds] == ["video"] * 6
    assert len({media[0][1] for media in kinds}) == 6


@pytest.mark.parametrize(
    ("key", "head"), [("model_specific_prompt_kwargs", "Look.\n"), ("lmms_eval_specific_kwargs", "Look.")]
)
def test_templates_lose_the_newline_at_their_end_as_in_both_trees(task: Task, key: str, head: str) -> None:
    folder = task(f'{key}:\n  default: {{a: 1}}\ndescription: "Look.\\n"\ndoc_to_text: "{{{{question}}}}?\\n\\n"\n')
    assert prompts(folder)[0] == f"{head}Say red?\n"


def test_an_aggregation_that_nobody_knows_costs_its_metric_where_documents_have_it(task: Task) -> None:
    listed = "  - {metric: other, aggregation: mean_last30}\n"
    results = "def results(doc, results):\n    return {'hit': 1.0}\n"
    outcome = task(scored("hit") + listed, results).run("mine").tasks["mine"]
    assert outcome.values["hit,none"].value == 1.0
    assert outcome.failed == {"other,none": "no document gave a value"}
    both = results.replace("1.0}", "1.0, 'other': 2}")
    outcome = task(scored("hit") + listed, both).run("mine").tasks["mine"]
    assert "mean_last30" in outcome.failed["other,none"]


AGENT = """
    import json


    def text(doc, lmms_eval_specific_kwargs=None, previous_output=None, round_idx=None, previous_round_info=None):
        if round_idx is None:
            return f"start {doc['id']}"
        info = previous_round_info or {"state": {"cash": 3}, "tool_calls": 0}
        info["tool_calls"] += 1
        if previous_output[-1] == "done":
            return None, None, True, [json.dumps({"success": True, "trace": previous_output})], info
        return None, f"round {round_idx} of {doc['id']}", False, previous_output, info


    def results(doc, results):
        told = json.loads(results[0])
        return {"success": float(told["success"]), "calls": told.get("tool_calls", -1), "cash": told.get("cash", -1)}
"""


def test_an_agentic_task_runs_its_own_tools_and_counts_the_last_output(task: Task) -> None:
    listed = "".join(f"  - {{metric: {name}, aggregation: mean}}\n" for name in ("calls", "cash"))
    folder = task(
        "output_type: generate_until_agentic\ngeneration_kwargs: {max_new_tokens: 8, max_agentic_steps: 3}\n"
        "doc_to_text: !function utils.text\n" + scored("success") + listed, AGENT,
    )  # fmt: skip
    outcome = folder.run("mine", ScriptedModel(lambda asked: "done" if asked.text == "round 1 of 0" else "more"))
    rows = outcome.tasks["mine"].rows
    assert [row.metrics for row in rows[:2]] == [
        {"success": 1.0, "calls": -1, "cash": -1}, {"success": 0.0, "calls": 3.0, "cash": 3},
    ]  # fmt: skip
    assert [medium for row in rows for medium in row.arguments[0][0]["media"]], "the pictures of the first question"
    assert "max_agentic_steps" not in rows[0].arguments[0][1]
