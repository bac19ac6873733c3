"""Extract tests/assets/multimodal/oracle.tar.xz from recorded runs of two LMMS-Eval trees.

    python scripts/record_multimodal_oracle.py --oracle FOLDER

FOLDER holds what `lmms_run.py` wrote with NVlabs/Eagle's fork and with lmms-eval 0.7.3 on drawn pictures: task folders
in both styles, stand-ins for hub data sets, and for every document the prompt, the response and the scores. Of the
data sets with a card the runs had read other rows than the folder holds (`datasets` keeps what such a folder held
before), so the rows of these two are made of the recorded prompts and targets.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ASSET = Path(__file__).resolve().parent.parent / "tests" / "assets" / "multimodal" / "oracle.tar.xz"
RUNS = ("eagle_base", "eagle_color", "eagle_ground", "current_base", "eagle_hub_scripted", "current_hub_scripted")
HUB = ("VQAv2", "POPE", "MME", "ChartQA", "ai2d", "textvqa", "DocVQA", "ScienceQA", "OCRBench")


def slim(run: dict[str, Any]) -> dict[str, Any]:
    """Prompts, responses, targets and scores of a run."""
    return {
        "results": run["results"],
        "calls": [{k: v for k, v in call.items() if k != "s"} for call in run["calls"]],
        "samples": {
            task: [{k: v for k, v in row.items() if k not in ("resps", "token_counts")} for row in rows]
            for task, rows in run["samples"].items()
        },
    }


def docvqa_row(prompt: str, target: Any) -> dict[str, Any]:
    """The document that gave a recorded prompt of docvqa_val."""
    return {"question": prompt.split("\n")[0], "answers": target}


def scienceqa_row(prompt: str, target: Any) -> dict[str, Any]:
    """The document that gave a recorded prompt of scienceqa_img."""
    lines = prompt.split("\n")
    hint = lines.pop(0).removeprefix("Context: ") if lines[0].startswith("Context: ") else ""
    choices = [line[3:] for line in lines if re.match(r"[A-E]\. ", line)]
    return {"hint": hint, "question": lines[0], "choices": choices, "answer": "ABCDE".index(target)}


def repaired(hub: Path, run: dict[str, Any]) -> None:
    """Write the rows that the runs had read into the data sets with a card."""
    from datasets import Dataset, load_dataset

    for name, task, sub, split, row_of in (
        ("DocVQA", "docvqa_val", "DocVQA", "validation", docvqa_row),
        ("ScienceQA", "scienceqa_img", "ScienceQA-IMG", "test", scienceqa_row),
    ):
        file = hub / name / sub / f"{split}-00000-of-00001.parquet"
        with tempfile.TemporaryDirectory() as cache:
            rows = list(load_dataset("parquet", data_files=str(file), cache_dir=cache)["train"])
        calls = sorted((c for c in run["calls"] if c["task"] == task), key=lambda c: c["doc_id"])
        targets = {sample["doc_id"]: sample["target"] for sample in run["samples"][task]}
        fixed = [{**r, **row_of(c["prompt"], targets[c["doc_id"]])} for r, c in zip(rows, calls, strict=True)]
        Dataset.from_list(fixed).to_parquet(str(file))


def collect(oracle: Path, target: Path) -> None:
    """Copy what the tests need."""
    for style in ("eagle", "current"):
        shutil.copytree(oracle / f"tasks_{style}", target / f"tasks_{style}")
    for name in HUB:
        shutil.copytree(oracle / "hub" / "lmms-lab" / name, target / "hub" / name)
    (target / "runs").mkdir()
    runs = {name: json.loads((oracle / "runs" / f"{name}.json").read_text("utf-8")) for name in RUNS}
    for name, run in runs.items():
        (target / "runs" / f"{name}.json").write_text(json.dumps(slim(run)), encoding="utf-8")
    for name in RUNS:
        for file in (oracle / "runs" / f"{name}_files" / "submissions").glob("*.json"):
            place = target / "runs" / f"{name}_files" / re.sub(r"_\d{4}(-\d\d){5}", "", file.name)
            place.parent.mkdir(exist_ok=True)
            shutil.copy(file, place)
    repaired(target / "hub", runs["current_hub_scripted"])


def packed(folder: Path, archive: Path) -> None:
    """Write a folder as an archive whose bytes depend on names and contents only."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz") as tar:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = tarfile.TarInfo(str(file.relative_to(folder)))
            content = file.read_bytes()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", type=Path, required=True)
    with tempfile.TemporaryDirectory() as folder:
        collect(parser.parse_args().oracle, Path(folder))
        packed(Path(folder), ASSET)


if __name__ == "__main__":
    main()
