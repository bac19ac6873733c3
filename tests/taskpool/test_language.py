from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusion_eval.errors import ConfigError
from fusion_eval.taskpool import LanguageModelTaskPool

TASKS = {
    "choice.yaml": """
task: choice
tag: all
dataset_path: choice.jsonl
output_type: multiple_choice
doc_to_text: q
doc_to_choice: ["yes", "no"]
doc_to_target: a
metric_list: [{metric: acc}]
""",
    "write.yaml": """
task: write
dataset_path: choice.jsonl
doc_to_text: q
doc_to_target: "{{a}}"
generation_kwargs: {max_gen_toks: 4, until: ["\\n"]}
filter_list:
  - name: number
    filter: [{function: regex, regex_pattern: "[0-9]+"}, {function: take_first}]
""",
    "both.yaml": "group: both\ntask: [choice, other]\naggregate_metric_list: [{metric: acc}]\n",
    "other.yaml": "include: choice.yaml\ntask: other\ndoc_to_text: '{{q}} Well'\n",
}


class Letters:
    """A tokenizer of single characters, enough of one for a model in a test."""

    eos_token_id = bos_token_id = pad_token_id = 0
    eos_token = "\0"
    model_max_length = 64
    chat_template = None

    def __call__(self, texts: Any, **options: Any) -> dict[str, Any]:
        if isinstance(texts, str):
            return {"input_ids": self.ids(texts)}
        return {"input_ids": [self.ids(text) for text in texts]}

    def ids(self, text: str) -> list[int]:
        return [ord(c) % 96 for c in text]

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        listed = [ids] if isinstance(ids, int) else ids
        return "".join(chr(i + 32) for i in listed if i)

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(96)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSION_EVAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    for name, text in TASKS.items():
        (tmp_path / name).write_text(text)
    rows = [{"q": f"Is it {i}?", "a": i % 2} for i in range(6)]
    (tmp_path / "choice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture(scope="module")
def model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=64, n_embd=16, n_layer=2, n_head=2)).eval()


def pool(folder: Path, tasks: Any, **options: Any) -> LanguageModelTaskPool:
    return LanguageModelTaskPool(tasks, include_path=str(folder), tokenizer=Letters(), progress=False, **options)


def test_the_report_is_the_contracts(folder: Path, model: nn.Module) -> None:
    report = pool(folder, ["choice", "write"]).evaluate(model)
    assert list(report) == ["model_info", "choice", "write", "average"]
    assert set(report["choice"]) == {"acc"}
    assert set(report["write"]) == {"exact_match,number"}
    assert report["model_info"]["all_params"] > 0


def test_results_carry_errors_counts_items_and_notes(folder: Path, model: nn.Module) -> None:
    choice, write = pool(folder, ["choice", "write"]).results(model, "m", "base").tasks
    assert (choice.n, choice.partial) == (6, False)
    assert choice.metrics["acc"].n == 6
    assert choice.metrics["acc"].stderr is not None
    assert choice.items["id"].tolist() == [str(i) for i in range(6)]
    assert choice.items["acc"].mean() == pytest.approx(choice.metrics["acc"].value)
    assert any("matched nothing in the filter 'number'" in note for note in write.notes)


def test_groups_stand_for_their_tasks(folder: Path, model: nn.Module) -> None:
    own = pool(folder, ["both", "write"])
    assert own.task_names == ("both", "write")
    both, _ = own.results(model).tasks
    assert both.name == "both"
    assert both.n == 12
    assert len(both.items["id"]) == 12
    shown = pool(folder, ["both"], show_members=True).results(model).tasks
    assert [task.name for task in shown] == ["both", "choice", "other"]
    chosen = own.results(model, tasks=["write"]).tasks
    assert [task.name for task in chosen] == ["write"]


def test_limits_mark_the_report_as_partial(folder: Path, model: nn.Module) -> None:
    own = pool(folder, ["choice"])
    own.restrict(3, fast_dev_run=False)
    (choice,) = own.results(model).tasks
    assert (choice.n, choice.partial) == (3, True)


def test_answers_are_kept_per_model(folder: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    import copy

    first = pool(folder, ["choice"]).results(model).tasks[0].metrics["acc"].value
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.add_(torch.randn_like(other.lm_head.weight))  # type: ignore[union-attr, operator]
    monkeypatch.setattr("fusion_eval.harness.engine.causal.CausalScorer.score", _refuse)
    assert pool(folder, ["choice"]).results(model).tasks[0].metrics["acc"].value == first
    with pytest.raises(AssertionError, match="asked"):
        pool(folder, ["choice"]).results(other)
    with pytest.raises(AssertionError, match="asked"):
        pool(folder, ["choice"], answers=None).results(model)


def _refuse(*args: Any) -> Any:
    raise AssertionError("asked")


def test_one_model_per_task(folder: Path, model: nn.Module) -> None:
    own = pool(folder, ["choice", "write"])
    assert [t.name for t in own.results({"choice": model, "write": model}).tasks] == ["choice", "write"]
    with pytest.raises(ConfigError, match="no model for write"):
        own.results({"choice": model})


def test_faults_are_found_before_a_model_is_loaded(folder: Path) -> None:
    (folder / "bad.yaml").write_text(
        "task: bad\ndataset_path: gone.jsonl\ndoc_to_text: '{{q'\n"
        "metric_list: [{metric: exactmatch, aggregation: meen}]\n"
    )
    said = [str(fault) for fault in pool(folder, ["bad"]).faults()]
    assert len(said) == 4
    assert any("bad.yaml:2 (dataset_path): the file gone.jsonl does not exist" in line for line in said)
    assert any("bad.yaml:3 (doc_to_text)" in line for line in said)
    assert any("Did you mean 'exact_match'" in line for line in said)
    assert any("'meen'" in line for line in said)
    assert "Did you mean 'choice'" in str(pool(folder, ["choise"]).faults()[0])


def test_a_wrong_key_hides_no_other_fault(folder: Path) -> None:
    (folder / "bad.yaml").write_text(
        "task: bad\ndataset_path: choice.jsonl\ndoc_to_text: q\nfewshot_splitt: train\n"
        "metric_list: [{metric: exactmatch}]\n"
    )
    said = [str(fault) for fault in pool(folder, ["bad", "gone"]).faults()]
    assert len(said) == 3
    assert "Did you mean 'fewshot_split'" in said[0]
    assert any("Did you mean 'exact_match'" in line for line in said)


def test_answers_that_are_no_choice_are_counted(folder: Path, model: nn.Module) -> None:
    (folder / "odd.yaml").write_text('include: choice.yaml\ntask: odd\ndoc_to_target: "{{a + 1}}"\n')
    (folder / "odds.yaml").write_text("group: odds\ntask: [odd]\naggregate_metric_list: [{metric: acc}]\n")
    (odd,) = pool(folder, ["odd"]).results(model).tasks
    assert odd.notes == ("3 documents: the answer is none of the choices",)
    (odds,) = pool(folder, ["odds"]).results(model).tasks
    assert odds.notes == odd.notes


def test_a_folder_of_data_must_exist(folder: Path) -> None:
    (fault,) = pool(folder, ["choice"], data_root=str(folder / "gone")).faults()
    assert fault.where == "taskpool.data_root"


def test_code_runs_with_consent_alone(folder: Path) -> None:
    (folder / "code.yaml").write_text("include: choice.yaml\ntask: code\nunsafe_code: true\n")
    assert [fault.where for fault in pool(folder, ["code"]).faults()] == ["code: unsafe_code"]
    assert not pool(folder, ["code"], confirm_run_unsafe_code=True).faults()


def test_peer_files_are_written_beside_the_report(folder: Path, model: nn.Module) -> None:
    class Program:
        output, seed, modelpool = folder / "out", 0, None

    own = pool(folder, ["both"], log_samples=True)
    own._program = Program()
    own._fabric = None
    Program.devices = own.devices if own._program is None else _cpu()  # type: ignore[attr-defined]
    own.results(model, "merged")
    (results,) = (folder / "out" / "lm_eval" / "merged").glob("results_*.json")
    content = json.loads(results.read_text())
    assert content["results"]["choice"]["acc,none"] <= 1
    assert content["n-samples"]["choice"] == {"original": 6, "effective": 6}
    samples = list((folder / "out" / "lm_eval" / "merged").glob("samples_choice_*.jsonl"))
    assert len(samples[0].read_text().splitlines()) == 6


def _cpu() -> Any:
    from fusion_eval.evaluation.devices import Devices

    return Devices()


def test_a_model_without_a_tokenizer_is_told(folder: Path, model: nn.Module) -> None:
    bare = LanguageModelTaskPool(["choice"], include_path=str(folder), progress=False)
    with pytest.raises(ConfigError, match=r"taskpool\.tokenizer"):
        bare.results(model)
    with pytest.raises(ConfigError, match="is a Linear; expected a language model"):
        bare.results(nn.Linear(2, 2))
