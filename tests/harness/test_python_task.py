from __future__ import annotations

import json
from pathlib import Path

from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.suite import make_suite

YAML = "task: completion\nclass: !function task.Completion\n"
TASK = """
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask


class Completion(ConfigurableTask):
    DATASET_PATH = "rows.jsonl"

    def __init__(self, **kwargs):
        super().__init__(config={"metadata": {"version": 2}})

    def has_training_docs(self):
        return False

    def has_validation_docs(self):
        return False

    def has_test_docs(self):
        return True

    def test_docs(self):
        return self.dataset["test"]

    def doc_to_text(self, doc):
        return doc["text"]

    def doc_to_target(self, doc):
        return doc["value"]

    def construct_requests(self, doc, ctx, chat_template=None, apply_chat_template=False, **kwargs):
        settings = dict(self.config.generation_kwargs)
        settings["max_gen_toks"] = 7
        return [Instance(request_type="generate_until", doc=doc, arguments=(ctx, settings), idx=0, **kwargs)]
"""


def test_generation_settings_are_there_in_full(tmp_path: Path, data: DataSource) -> None:
    """A task that names none reads the peer's defaults from its configuration."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "one", "value": "two"}) + "\n")
    (tmp_path / "completion.yaml").write_text(YAML)
    (tmp_path / "task.py").write_text(TASK)
    suite = make_suite(["completion"], include_path=[tmp_path], data=DataSource(tmp_path, data.cache_dir))
    (request,) = suite.build()["completion"].requests
    assert request.args == ("one", {"temperature": 0.0, "do_sample": False, "max_gen_toks": 7, "until": ["\n\n"]})
