"""The trained tiny models of the oracle say what they said to both peers, document by document."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fusion_eval.harness.engine.vision import VisionLanguageModel
from fusion_eval.harness.media import Conversation, Media, digest_of
from tests.harness.engine.test_vision import written

SETTINGS = {"max_new_tokens": 8, "temperature": 0, "do_sample": False}


@pytest.fixture(scope="module")
def root(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("oracle")
    with tarfile.open(shared_dir / "oracles" / "multimodal_oracle.tar.xz") as tar:
        kept = [m for m in tar if "/models/" in m.name or "/runs/" in m.name or m.name.endswith(".parquet")]
        tar.extractall(place, [m for m in kept if "/hub/" not in m.name], filter="data")
    return place / "multimodal_oracle"


def asked(root: Path, calls: list[dict[str, Any]]) -> list[Conversation]:
    from pyarrow.parquet import read_table

    rows = {k: read_table(root / "tasks_current" / f"{k}.parquet").to_pylist() for k in ("color", "ground")}
    found = []
    for call in calls:
        row = rows["ground" if call["task"] == "tiny_ground" else "color"][call["doc_id"]]
        image = Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")
        found.append(Conversation.ask([Media("image", digest_of(image.tobytes()), image)], call["prompt"]))
    return found


@pytest.mark.parametrize("run", ["current_base", "eagle_base", "eagle_color", "eagle_ground"])
def test_responses_are_the_peers(root: Path, run: str) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    told = json.loads((root / "runs" / f"{run}.json").read_text())
    calls = [call for call in told["calls"] if "response" in call]
    folder = root / "models" / told["model"]
    engine = VisionLanguageModel(
        AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder), batch_size=7
    )
    assert len(calls) == 72
    assert written(engine, list(asked(root, calls)), SETTINGS) == [call["response"] for call in calls]
    assert engine.work["images_encoded"] == 48
