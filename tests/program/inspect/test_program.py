"""Looking at a pool before merging: on the embedded experts, and on pools that something is wrong with."""

from __future__ import annotations

import json
import math
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fusion_eval.assets.digits import VIEWS, DigitsDataset, class_codes
from fusion_eval.build import build
from fusion_eval.errors import AlignmentError, ConfigError
from fusion_eval.modelpool import DigitsPool, StateDictPool
from fusion_eval.program.inspect.inspection import Inspection
from fusion_eval.program.inspect.picture import HeatMap, colour, drawn_by_hand
from fusion_eval.program.inspect.program import InspectProgram
from fusion_eval.program.inspect.report import InspectReport
from tests.program.running import composed, run


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> tuple[InspectReport, Path]:
    folder = tmp_path_factory.mktemp("inspect")
    report = run(folder, "program=inspect")
    assert isinstance(report, InspectReport)
    return report, folder


def state(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"layers.0.weight": (20, 10), "layers.1.weight": (10, 20), "head.bias": (7,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def moved(base: dict[str, Tensor], seed: int, by: float = 0.05) -> dict[str, Tensor]:
    return {name: base[name] + by * change for name, change in state(seed).items()}


def inspected(
    base: dict[str, Tensor] | None, experts: dict[str, dict[str, Tensor]], **options: Any
) -> tuple[Inspection, str]:
    report = InspectProgram(StateDictPool(base, experts), progress=False, **options).run()
    assert isinstance(report, InspectReport)
    assert report.inspection is not None
    return report.inspection, "\n".join(report.inspection.sentences())


def test_the_default_pool_as_json(default: tuple[InspectReport, Path]) -> None:
    report, folder = default
    assert report.status == "complete"
    stored = json.loads((folder / "inspect.json").read_text())
    assert stored["experts"] == list(VIEWS)
    assert stored["whole"]["entries"] == 147168
    cosines = np.array(stored["whole"]["cosines"])
    assert np.allclose(cosines, cosines.T)
    base = build(composed("modelpool=digits")["modelpool"]).checkpoint("base")
    pool = DigitsPool()
    vectors = [
        torch.cat([(pool.checkpoint(view)[name].double() - base[name].double()).reshape(-1) for name in base])
        for view in VIEWS
    ]
    expected = torch.nn.functional.cosine_similarity(vectors[0], vectors[5], dim=0)
    assert cosines[0, 5] == pytest.approx(float(expected), rel=1e-6)
    both = (vectors[0] != 0) & (vectors[5] != 0)
    opposite = float((vectors[0].sign() != vectors[5].sign())[both].double().mean())
    assert stored["whole"]["sign_conflicts"][0][5] == pytest.approx(opposite, rel=1e-9)
    assert stored["layers"]["linear1"]["entries"] == 21840
    assert stored["tensors"]["linear2.weight"]["matrix"]["exact"] is True
    assert set(stored["kinds"]) == set(stored["tensors"])  # no name here has a number between dots


def test_the_page_is_one_file_with_its_picture(default: tuple[InspectReport, Path]) -> None:
    _, folder = default
    page = (folder / "inspect.html").read_text()
    assert "src=" not in page.replace('src="data:image/png;base64,', "")
    assert (folder / "inspect.png").read_bytes().startswith(b"\x89PNG")
    assert "| upright |" in (folder / "inspect.md").read_text()
    assert json.loads((folder / "report.json").read_text())["status"] == "complete"


def test_what_is_printed(default: tuple[InspectReport, Path], capsys: pytest.CaptureFixture[str]) -> None:
    report, folder = default
    report.show(folder)
    printed = capsys.readouterr().out
    assert "task vectors: 9 tensors, 147,168 entries" in printed
    assert "whole model" in printed
    assert "against: slerp: it takes 2 models, and there are 8." in printed
    assert printed.rstrip().endswith("inspect.html")


def test_every_sentence_cites_its_numbers(default: tuple[InspectReport, Path]) -> None:
    report, _ = default
    assert report.inspection is not None
    for finding in report.inspection.findings:
        assert finding.numbers
        assert any(character.isdigit() for character in finding.text)
        assert all(math.isfinite(number) for number in finding.numbers.values())


def accuracy(overrides: str, pool: DigitsPool, views: list[str]) -> float:
    """The mean accuracy of a merge that a finding's overrides name."""
    method = build(composed(*overrides.split())["method"])
    model = pool.build(method.apply(pool, None, seed=0))
    right = []
    with torch.inference_mode():
        for view in views:
            data = DigitsDataset(view, "test")
            right.append(float(((model(data.images) @ class_codes(view).T).argmax(1) == data.labels).double().mean()))
    return sum(right) / len(right)


@pytest.mark.parametrize("views", [list(VIEWS), list(VIEWS)[:4]], ids=["8 experts", "4 experts"])
def test_what_is_recommended_does_better_than_what_is_not(views: list[str]) -> None:
    pool = DigitsPool(tasks=views)
    found = InspectProgram(pool, progress=False, picture=False, hash_inputs=False).run().inspection
    assert found is not None
    chosen = [finding for finding in found.findings if finding.kind == "for" and "tall_masks" not in finding.overrides]
    scores = [accuracy(finding.overrides, pool, views) for finding in chosen]
    against = [finding.text.split(":")[0] for finding in found.findings if finding.kind == "against"]
    assert against[-1] == "slerp"
    stock = accuracy("method=model_stock", pool, views)
    average = accuracy("method=simple_average", pool, views)
    assert "model stock" in against
    assert stock < average < scores[-1] + 0.01  # the last one is task arithmetic
    assert max(scores[:2]) == max(scores)  # TSV-M, and Iso-C for many
    assert scores[0] > scores[-1] + 0.02
    assert scores[0] > average + 0.1
    ties = next(score for finding, score in zip(chosen, scores, strict=True) if "ties" in finding.overrides)
    assert ties > scores[-1]  # heavy tails and conflicting signs: trimming and electing helps


def test_identical_and_unchanged_models_are_told() -> None:
    base = state(0)
    a = moved(base, 1)
    _, text = inspected(base, {"a": a, "copy": {name: tensor.clone() for name, tensor in a.items()}, "same": base})
    assert "'a' and 'copy' are identical" in text
    assert "'same' equals the base" in text


def test_unrelated_models_are_told_and_no_method_is_advised() -> None:
    base = state(0)
    found, text = inspected(base, {"a": moved(base, 1), "stranger": state(99)})
    assert "'stranger' does not descend from the base" in text
    assert {finding.kind for finding in found.findings} == {"warning"}


def test_scaled_opposed_and_unequal_task_vectors_are_told() -> None:
    base = state(0)
    experts = {"a": moved(base, 1, 0.02), "b": moved(base, 1, 0.06), "c": moved(base, 1, -0.02)}
    _, text = inspected(base, experts)
    assert "'a' and 'b' hold one task vector at strengths 1 : 3.00" in text
    assert "'a' and 'c' pull in opposite directions (cosine -1.00)" in text
    assert "is 3.0 times as long" in text


def test_light_tails_speak_against_trimming() -> None:
    base = {name: torch.zeros_like(tensor) + 1 for name, tensor in state(0).items()}
    signs = [{name: 0.01 * change.sign() for name, change in state(seed).items()} for seed in (1, 2)]
    experts = {str(i): {name: base[name] + step[name] for name in base} for i, step in enumerate(signs)}
    _, text = inspected(base, experts)
    assert "against: TIES: the largest 20 % of each task vector's entries hold 20% of" in text


def test_two_models_without_a_base() -> None:
    found, text = inspected(None, {"a": state(1), "b": moved(state(1), 2, 1.0)})
    assert not found.diagnosis.has_base
    assert "for: slerp: the models lie" in text
    assert "weights, since there is no base" in found.tables()[0][0]


def test_models_that_do_not_align_are_compared_on_what_they_share() -> None:
    base, other = state(0), moved(state(0), 1)
    other["head.bias"] = torch.zeros(9)
    found, text = inspected(base, {"a": moved(base, 2), "wider": other})
    assert "cannot be merged as it is: model 'wider': 1 of 3 tensors differ in shape" in text
    assert "the 2 of 3 tensors that all models share are compared" in text
    assert [tensor.name for tensor in found.diagnosis.tensors] == ["layers.0.weight", "layers.1.weight"]
    with pytest.raises(AlignmentError):
        inspected(base, {"a": {"x": torch.ones(2)}})


def test_samples_and_sketches_are_told() -> None:
    base = {"w": torch.zeros(600, 600)}
    experts = {
        name: {"w": torch.randn(600, 600, generator=torch.Generator().manual_seed(i))} for i, name in enumerate("ab")
    }
    found, text = inspected(base, experts, entries=1 << 17, exact_side=100)
    assert "of all entries were looked at" in text
    assert "1 matrices were sketched" in text
    assert found.as_dict()["tensors"]["w"]["matrix"]["exact"] is False


def folder_pool(tmp_path: Path, changed: dict[str, Any], vocabularies: tuple[dict[str, int], dict[str, int]]) -> Any:
    from safetensors.torch import save_file

    from fusion_eval.modelpool import CheckpointPool

    base = state(0)
    for name, weights, config, vocabulary in (
        ("base", base, {"model_type": "x", "rope": {"theta": 1}}, vocabularies[0]),
        ("a", moved(base, 1), {"model_type": "x", "rope": {"theta": 1}, **changed}, vocabularies[1]),
    ):
        (tmp_path / name).mkdir()
        save_file(weights, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps({**config, "_name_or_path": name}))
        added = [{"id": len(vocabulary), "content": "<pad>"}]
        tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": added}
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(tokenizer))
    return CheckpointPool(str(tmp_path / "base"), {"a": str(tmp_path / "a")})


def test_configs_and_vocabularies_of_folders(tmp_path: Path) -> None:
    pool = folder_pool(tmp_path, {"rope": {"theta": 2}}, ({"b": 0, "c": 1}, {"c": 0, "b": 1, "new": 2}))
    report = InspectProgram(pool, progress=False).run()
    assert isinstance(report, InspectReport)
    assert report.inspection is not None
    text = "\n".join(report.inspection.differences)
    assert "model 'a': 1 values of config.json differ: rope.theta is 1 in 'base' and 2 here" in text
    assert "the vocabularies differ (3 tokens in 'base', 4 here): 1 only here (new)" in text
    assert "3 tokens have other ids" in text  # b, c and <pad>


def test_equal_folders_have_no_differences(tmp_path: Path) -> None:
    report = InspectProgram(folder_pool(tmp_path, {}, ({"b": 0}, {"b": 0})), progress=False).run()
    assert isinstance(report, InspectReport)
    assert report.inspection is not None
    assert report.inspection.differences == ()


def test_without_matplotlib_the_picture_is_an_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    run(tmp_path, "program=inspect", "modelpool.tasks=[upright,edges]")
    svg = (tmp_path / "inspect.svg").read_text()
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    cells = [part for part in root.iter() if part.tag.endswith("rect") and part.get("width") != "100%"]
    assert len(cells) == 3 * 4 + 5 * 2  # three matrices of pairs, five layers
    assert svg in (tmp_path / "inspect.html").read_text()
    assert not (tmp_path / "inspect.png").exists()


def test_colours_and_names_of_a_heat_map() -> None:
    heat_map = HeatMap("<b>", ("a&b",), ("c",), np.array([[1.0]]), -1, 0, 1)
    assert colour(0, heat_map) == "#ffffff"
    assert colour(1, heat_map) == "#b2182b"
    assert colour(-1, heat_map) == "#2166ac"
    assert colour(float("nan"), heat_map) == "#cccccc"
    ET.fromstring(drawn_by_hand([heat_map]))


def test_no_task_pool_is_built_and_settings_without_use_are_refused(tmp_path: Path) -> None:
    bad = {"_target_": "fusion_eval.taskpool.ImageClassificationTaskPool", "test_datasets": {"a": {"_target_": "no.x"}}}
    from fusion_eval.program.launch import RunPlan, build_program

    config = {**composed("program=inspect"), "taskpool": bad}
    assert isinstance(build_program(RunPlan(config, str(tmp_path))), InspectProgram)
    with pytest.raises(ConfigError, match="limit"):
        run(tmp_path, "program=inspect", "limit=3")
    with pytest.raises(ConfigError, match=r"program\.entries: 0; expected at least 1"):
        run(tmp_path, "program=inspect", "program.entries=0")


def test_a_dry_run_reads_no_weight(tmp_path: Path) -> None:
    report = run(tmp_path, "program=inspect", "dry_run=true")
    assert report.status == "dry run"
    assert "all 9 models can be opened" in report.notes[0]
    assert not (tmp_path / "inspect.json").exists()


@pytest.mark.dist
def test_two_processes_find_the_same(default: tuple[InspectReport, Path], tmp_path: Path) -> None:
    run(tmp_path, "program=inspect", "fabric=cpu2")
    one, two = (json.loads((folder / "inspect.json").read_text()) for folder in (default[1], tmp_path))
    assert one == two
