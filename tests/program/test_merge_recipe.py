"""The recipe beside a merge makes it again, bit for bit, whatever the method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from safetensors.torch import save_file

import fusion_eval
from fusion_eval.errors import ConfigError
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.per_task import TaskCheckpoints
from fusion_eval.method.emr import Emr
from fusion_eval.method.pipeline import Pipeline
from fusion_eval.method.recipe import Recipe
from fusion_eval.method.step import Sum, Trim
from fusion_eval.modelpool import CheckpointPool
from fusion_eval.modelpool.recipe_pool import recipe_pool
from fusion_eval.program.merge_recipe import method_node, own_recipe
from tests.method.conftest import pool_of
from tests.method.test_configs import FILES, instantiate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    pool = pool_of(3)
    for name, state in {"base": pool.base, **pool.experts}.items():
        assert state is not None
        save_file(dict(state), place / f"{name}.safetensors")
    return place


def bits(merged: Any) -> dict[str, bytes]:
    models = dict(merged) if isinstance(merged, TaskCheckpoints) else {"": merged}
    return {f"{task}|{name}": model[name].numpy().tobytes() for task, model in models.items() for name in model}


def pool_for(method: Any, folder: Path) -> CheckpointPool:
    for count in (3, 2, 1):
        experts = {f"task{index}": str(folder / f"task{index}.safetensors") for index in range(count)}
        pool = CheckpointPool(base=str(folder / "base.safetensors"), experts=experts)
        if not method.faults(pool):
            return pool
    raise AssertionError


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_recipe_of_every_method_makes_its_merge_again(path: Path, folder: Path, tmp_path: Path) -> None:
    node = OmegaConf.to_container(OmegaConf.load(path))
    method = instantiate(OmegaConf.load(path))
    pool = pool_for(method, folder)
    wanted = bits(method.apply(pool, seed=7))
    for described in (node, method_node(method)):
        text = own_recipe({"method": described, "modelpool": pool.config}, 7, {})
        assert text is not None
        (tmp_path / "recipe.yml").write_text(text)
        again = Recipe(str(tmp_path / "recipe.yml"))
        assert again.faults(recipe_pool(str(tmp_path / "recipe.yml"))) == []
        assert bits(again.apply(recipe_pool(str(tmp_path / "recipe.yml")), seed=1)) == wanted
        if path.stem in ("emr", "emr_tsv", "tall_masks"):
            return  # built steps among their arguments are not described from Python


def test_a_method_that_holds_built_parts_has_no_node() -> None:
    assert method_node(Emr()) is None


def test_merge_from_python_writes_card_and_recipe(folder: Path, tmp_path: Path) -> None:
    experts = {name: str(folder / f"{name}.safetensors") for name in ("task0", "task1")}
    base = str(folder / "base.safetensors")
    merged = fusion_eval.merge(experts, base, method="ties", density=0.4, save=tmp_path / "out", seed=3)
    node = yaml.safe_load((tmp_path / "out" / "recipe.yml").read_text())
    assert node["method"]["density"] == 0.4
    assert node["inputs"]["task0"]["fingerprint"] == open_checkpoint(experts["task0"]).fingerprint()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "made with fusion_eval" in card
    assert node["inputs"]["task1"]["fingerprint"][:16] in card
    recipe = str(tmp_path / "out" / "recipe.yml")
    again = Recipe(recipe).apply(recipe_pool(recipe))
    assert all(torch.equal(merged[name], again[name]) for name in merged)
    own = Pipeline([Trim(0.5), Sum()])
    merged = fusion_eval.merge(experts, base, method=own, save=tmp_path / "own")
    recipe = str(tmp_path / "own" / "recipe.yml")
    again = Recipe(recipe).apply(recipe_pool(recipe))
    assert all(torch.equal(merged[name], again[name]) for name in merged)


def test_models_in_memory_have_a_recipe_for_who_has_them(tmp_path: Path) -> None:
    pool = pool_of(2)
    merged = fusion_eval.merge(pool.experts, pool.base, method="dare", save=tmp_path / "out", seed=5)
    recipe = str(tmp_path / "out" / "recipe.yml")
    with pytest.raises(ConfigError, match="they were in memory"):
        recipe_pool(recipe)
    again = Recipe(recipe).apply(pool)
    assert all(torch.equal(merged[name], again[name]) for name in merged)


def test_models_per_task_are_saved_from_python_too(folder: Path, tmp_path: Path) -> None:
    experts = {name: str(folder / f"{name}.safetensors") for name in ("task0", "task1")}
    base = str(folder / "base.safetensors")
    saved = fusion_eval.merge(experts, base, method="emr", save=tmp_path / "tasks")
    memory = fusion_eval.merge(experts, base, method="emr")
    assert bits(saved) == bits(memory)
    again = fusion_eval.merge(experts, base, method="saved_tasks", path=str(tmp_path / "tasks"))
    assert bits(again) == bits(memory)
    assert "a model for each task" in (tmp_path / "tasks" / "README.md").read_text()
