"""Recorded runs of both peers, unpacked, and folders of tasks written by tests."""

from __future__ import annotations

import json
import tarfile
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fusion_eval.harness.build import RunOptions
from fusion_eval.harness.catalog import peer_tasks
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.multimodal.suite import MultimodalSuite, make_multimodal_suite
from fusion_eval.harness.outcome import Outcome
from fusion_eval.harness.suite import evaluate
from tests.harness.multimodal.scripted import ScriptedModel


@dataclass(frozen=True)
class Recorded:
    """An unpacked oracle."""

    root: Path

    def tasks(self, style: str) -> Path:
        return self.root / f"tasks_{style}"

    def run(self, name: str) -> dict[str, Any]:
        return json.loads((self.root / "runs" / f"{name}.json").read_text(encoding="utf-8"))

    def calls(self, name: str) -> dict[tuple[str, int], dict[str, Any]]:
        return {(call["task"], call["doc_id"]): call for call in self.run(name)["calls"]}


@pytest.fixture(scope="session")
def recorded(assets_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    root = tmp_path_factory.mktemp("multimodal")
    with tarfile.open(assets_dir / "multimodal" / "oracle.tar.xz") as tar:
        tar.extractall(root, filter="data")
    for file in root.glob("tasks_*/*yaml"):
        file.write_text(file.read_text(encoding="utf-8").replace("@ROOT@", str(root)), encoding="utf-8")
    return Recorded(root)


@pytest.fixture(scope="session")
def hub(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> DataSource:
    return DataSource(recorded.root / "hub", tmp_path_factory.mktemp("hub_cache"), offline=True)


@pytest.fixture(scope="session")
def wheel_tasks() -> Path:
    from fusion_eval.errors import ConfigError

    try:
        return peer_tasks("lmms_eval")
    except ConfigError:
        pytest.skip("lmms-eval is not installed: pip install --no-deps lmms-eval")


PICTURES = ("red", "green", "blue", "white", "black", "yellow")


@dataclass
class Folder:
    """A folder of task files over six one-coloured pictures; `write` adds files, `run` evaluates."""

    root: Path
    data: DataSource

    def write(self, **files: str) -> Folder:
        """Files by name, with `__` for the dot: `mine__yaml="..."`; `_` alone is the column of the pictures."""
        for name, text in files.items():
            stem, _, suffix = name.rpartition("__")
            file = self.root / (f"{stem}.{suffix}" if stem else name)
            file.write_text(textwrap.dedent(text), encoding="utf-8")
        return self

    def suite(self, tasks: Any, options: Mapping[str, Any] | None = None, **kwargs: Any) -> MultimodalSuite:
        settings = RunOptions(**(options or {}))
        return make_multimodal_suite(tasks, include_path=[self.root], data=self.data, options=settings, **kwargs)

    def run(self, tasks: Any, model: Any = None, options: Mapping[str, Any] | None = None, **kwargs: Any) -> Outcome:
        model = model or ScriptedModel(lambda asked: asked.text.split()[-1])
        return evaluate(self.suite(tasks, options, **kwargs), model)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """`data.jsonl` has the columns id, path, question ("Say red"), answer ("red"), choices and gold."""
    root = tmp_path / "tasks"
    root.mkdir()
    rows = []
    for i, name in enumerate(PICTURES):
        path = root / f"{name}.png"
        Image.new("RGB", (8 + i, 8), name).save(path)
        rows.append({"id": i, "path": str(path), "question": f"Say {name}", "answer": name, "choices": list(PICTURES),
                     "gold": i})  # fmt: skip
    (root / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Folder(root, DataSource(root, tmp_path / "cache"))


BASE = """
dataset_path: data.jsonl
test_split: test
output_type: generate_until
doc_to_visual: path
doc_to_text: question
doc_to_target: answer
generation_kwargs:
  max_new_tokens: 8
"""


@pytest.fixture
def task(folder: Folder) -> Callable[..., Folder]:
    """Write a task `mine` from `BASE`, more keys and a `utils.py`."""

    def make(more: str = "", utils: str = "", base: str = BASE) -> Folder:
        return folder.write(mine__yaml=f"task: mine\n{textwrap.dedent(base)}{textwrap.dedent(more)}", utils__py=utils)

    return make
