from __future__ import annotations

import pytest

from fusion_eval.errors import ConfigError
from fusion_eval.merge.recipe import Entry, ModelReference
from fusion_eval.merge.recipe_reader import parse_recipe, read_recipe
from fusion_eval.merge.recipe_values import model_reference

GOOD = """\
merge_method: ties
base_model: org/base@v1
models:
  - model: org/a+org/lora@abc
    parameters: {weight: 0.5, density: [1, 0.5]}
  - model: {model: {path: org/b, revision: main}, lora: org/lora}
    parameters:
      weight:
        - {filter: mlp, value: [0, 1]}
        - {value: 1e-5}
parameters: {normalize: false}
dtype: float32
out_dtype: bfloat16
"""


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_recipe(text, "r.yml")
    return [str(fault) for fault in caught.value.faults]


def test_a_recipe_is_data():
    (recipe,) = parse_recipe(GOOD).documents
    first, second = recipe.modules[0].slices[0].inputs
    assert recipe.base == ModelReference("org/base", "v1")
    assert first.model == ModelReference("org/a", None, "org/lora", "abc")
    assert str(first.model) == "org/a+org/lora@abc"
    assert second.model == ModelReference("org/b", "main", "org/lora")
    assert first.parameters["density"].entries == (Entry((1, 0.5)),)
    assert second.parameters["weight"].entries == (Entry((0, 1), "mlp"), Entry((1e-5,)))
    assert second.parameters["weight"].where == "recipe, line 8"
    assert (recipe.dtype, recipe.out_dtype) == ("float32", "bfloat16")
    assert [str(ref) for ref in recipe.models] == ["org/base@v1", "org/a+org/lora@abc", "org/b@main+org/lora"]


def test_all_faults_come_at_once_with_lines_and_hints():
    found = faults(
        "merge_method: ties\nbase_modle: b\nmodels:\n  - model: a\n    parameters: {wieght: 1}\n"
        "  - model: c\n    parametres: {}\n    parameters: {density: x}\ndtype: bfloat\nslices: []\n"
    )
    assert any("line 2" in f and "Did you mean 'base_model'?" in f for f in found)
    assert any("line 5" in f and "Did you mean 'weight'?" in f for f in found)
    assert any("line 7" in f and "Did you mean 'parameters'?" in f for f in found)
    assert any("line 8: density is 'x'" in f for f in found)
    assert any("Did you mean 'bfloat16'" in f for f in found)
    assert any("models and slices together" in f for f in found)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("a: [", "not YAML"),
        ("models: []\n", "no 'merge_method'"),
        ("merge_method: tise\nmodels: [{model: a}]\n", "Did you mean 'ties'?"),
        ("merge_method: linear\nmerge_method: ties\nmodels: [{model: a}]\n", "'merge_method' again, as in line 1"),
        ("merge_method: linear\nmodels: [{model: a, parameters: {normalize: true}}]\n", "'normalize' at one model"),
        ("merge_method: linear\nmodels: [{model: a, parameters: {weight: true}}]\n", "weight is True"),
        ("merge_method: ties\nmodels: [{model: a}]\n", "without 'base_model'"),
        ("merge_method: slerp\nbase_model: a\nmodels: [{model: a}]\nparameters: {t: 1}\n", "slerp of 0 models"),
        ("merge_method: linear\nslices: [{sources: [{model: a}]}]\n", "without 'layer_range'"),
        ("merge_method: linear\nslices: [{sources: [{model: a, layer_range: [3, 1]}]}]\n", "layer_range is [3, 1]"),
        ("merge_method: linear\nmodels: [{model: a}]\ntokenizer: {pad_to_multiple_of: 0}\n", "pad_to_multiple_of"),
        ("merge_method: linear\nmodels: [{model: a}]\ntokenizer: {sorce: union}\n", "Did you mean 'source'?"),
        ("merge_method: linear\nmodels: [{model: a}]\ntokenizer: {}\ntokenizer_source: a\n", "together"),
        ("&a [*a]", "more than 40 levels"),
        ("x: &a [1]\ny: *a\n", "no key 'x'"),
    ],
)
def test_faults(text, told):
    assert any(told in fault for fault in faults(text)), faults(text)


def test_gradients_and_filters():
    entry = Entry((0.0, 1.0, 0.5))
    assert [entry.at(x) for x in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 0.5]
    assert Entry((True, False)).at(0.99) is True
    assert Entry((True, False)).at(1.0) is False
    assert Entry((1.0,), "layers.1").fits("model.layers.10.x")
    assert not Entry((1.0,), "mlp").fits("model.layers.10.x")


CHAIN = """\
merge_method: linear
models: [{model: first}, {model: c}]
parameters: {weight: 1}
---
name: first
merge_method: linear
models: [{model: a}, {model: b}]
parameters: {weight: 1}
"""


def test_documents_come_after_those_they_use():
    assert [recipe.name for recipe in parse_recipe(CHAIN).documents] == ["first", None]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CHAIN.replace("{model: a}", "{model: first}"), "itself"),
        (CHAIN.replace("{model: first}, {model: c}", "{model: d}, {model: c}"), "2 documents that no other uses"),
        (CHAIN + "---\n" + CHAIN.split("---\n")[1], "several documents named first"),
    ],
)
def test_documents_that_are_no_chain(text, told):
    assert any(told in fault for fault in faults(text)), faults(text)


def test_a_recipe_of_ours():
    file = parse_recipe("seed: 3\nmethod: {_target_: x.Y, density: 0.2}\nmodelpool: {_target_: x.P}\n")
    assert file.own["method"] == {"_target_": "x.Y", "density": 0.2}
    assert file.seed == 3
    assert "modelpool" not in parse_recipe("method: {_target_: x.Y}\n").own  # models in memory; recipe_pool refuses it


def test_missing_files_have_a_hint(tmp_path):
    (tmp_path / "recipe.yml").write_text("a: 1")
    with pytest.raises(ConfigError, match=r"Did you mean 'recipe.yml'\?"):
        read_recipe(tmp_path / "recpe.yml")


def test_existing_folders_with_odd_names_are_themselves(tmp_path):
    (tmp_path / "a+b@c").mkdir()
    assert model_reference(str(tmp_path / "a+b@c")) == ModelReference(str(tmp_path / "a+b@c"))
