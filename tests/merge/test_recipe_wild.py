"""Published recipes against mergekit's recorded results (scripts/record_wild_recipes)."""

from __future__ import annotations

import json

import pytest

from fusion_eval.errors import ConfigError
from fusion_eval.merge.recipe_reader import parse_recipe
from fusion_eval.method.recipe import Recipe
from fusion_eval.modelpool.recipe_pool import RecipePool
from tests.merge.wild_recipes import FOLDER, in_float32, looked_at, recipes, values, write_models

TEXTS = recipes()
RECORDED = json.loads((FOLDER / "wild.json").read_text())
STRAY = {  # keys that nobody knows, which the peer ignores
    "dpohermes11b": "Write it behind the model: path@revision.",
    "sce_misplaced_top": "Did you mean 'dtype' or 'out_dtype'?",
    "sce_unknown_smooth": "sce has no parameter 'smooth'",
    "evolved_allow_negative": "no key 'allow_negative_weights'",
    "foxfire_ties_lamda": "Did you mean 'lambda'?",
    "bge_bad_slices": "slerp has no parameter 'filter'",
    "dare_dtype_inside_parameters": "It belongs beside 'parameters', not in it.",
    "multislerp_stray_top_keys": "no key 'pad_to_multiple_of'",
}
MORE = {  # what the peer refuses
    "pythia_dup_zero_weights": "the same model several times is several inputs",
    "karcher_dup_model": "the same model several times is several inputs",
    "slices_mixed_linear": "tokenizer_source: model:NAME is how the peer wrote it before its version 0.1",
}
DTYPES = ("dtype_aliases", "dtype_half")
"""Names of dtypes that neither knows; the recorded runs are without dtypes."""
FAILED = {name for name, entry in RECORDED.items() if "error" in entry}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    return write_models(tmp_path_factory.mktemp("models"))


def test_every_recipe_is_recorded():
    assert set(TEXTS) == set(RECORDED)
    assert len(TEXTS) >= 110
    assert not (set(STRAY) | set(MORE)) - set(TEXTS)


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in FAILED | set(STRAY) | set(MORE)])
def test_a_published_recipe_gives_what_mergekit_gives(models, name):
    checkpoint = merge(models, name)
    assert len(checkpoint) == RECORDED[name]["tensors"]
    for key in looked_at(checkpoint):
        *wanted, largest = RECORDED[name]["values"][key]
        assert values(checkpoint[key]) == pytest.approx([*wanted, largest], rel=0, abs=1e-6 * largest), key


def merge(models, name, unknown="error"):
    path = models / f"{name}.yml"
    path.write_text(in_float32(TEXTS[name]))
    method, pool = Recipe(str(path), unknown=unknown), RecipePool(str(path), unknown=unknown)
    assert method.faults(pool) == []
    return pool.book.result(method._rule, 0).checkpoint


@pytest.mark.parametrize("name", [*STRAY])
def test_stray_keys_are_errors_unless_they_are_to_be_ignored(models, name):
    with pytest.raises(ConfigError, match=r"has no (key|parameter)") as caught:
        parse_recipe(TEXTS[name])
    assert STRAY[name] in str(caught.value)
    checkpoint = merge(models, name, unknown="ignore")
    assert parse_recipe(TEXTS[name], unknown="ignore").notes
    for key in looked_at(checkpoint):
        *wanted, largest = RECORDED[name]["values"][key]
        assert values(checkpoint[key]) == pytest.approx([*wanted, largest], rel=0, abs=1e-6 * largest), key


@pytest.mark.parametrize("name", [*MORE])
def test_what_the_peer_refuses_and_we_do_not(models, name):
    assert name in FAILED
    assert merge(models, name)["model.norm.weight"].isfinite().all()


@pytest.mark.parametrize("name", sorted(FAILED - set(MORE)))
def test_what_the_peer_refuses_is_a_clear_error(models, name):
    path = models / f"{name}.yml"
    path.write_text(TEXTS[name])
    try:
        found = Recipe(str(path)).faults(RecipePool(str(path)))
    except ConfigError as error:
        found = list(error.faults)
    assert found
    assert all(str(path) in fault.where for fault in found), [fault.where for fault in found]


def test_every_text_is_read_as_it_was_published():
    for name, text in TEXTS.items():
        if name in DTYPES:
            with pytest.raises(ConfigError, match="dtype is"):
                parse_recipe(text, name)
        elif name not in FAILED | set(STRAY):
            assert parse_recipe(text, name).documents
