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


def shared(text: str, name: str) -> tuple[object, ...]:
    """The values of a recipe's parameter."""
    return parse_recipe(text).documents[-1].parameters[name].entries[0].values


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1.0", True),
        ("0", False),
        ("0.0", False),
        ("1", True),
        ("'true'", True),
        ("'False'", False),
        ("[1.0, false]", True),
    ],
)
def test_flags_are_read_as_mergekit_writes_them(said, meant):
    found = shared(f"merge_method: linear\nmodels: [a, b]\nparameters: {{weight: 1, normalize: {said}}}\n", "normalize")
    assert found[0] is meant
    assert all(isinstance(value, bool) for value in found)


@pytest.mark.parametrize("said", ["0.5", "yes please", "2", "null", "[1, x]"])
def test_what_is_no_flag(said):
    (fault,) = faults(f"merge_method: linear\nmodels: [a, b]\nparameters: {{weight: 1, normalize: {said}}}\n")
    assert "true or false" in fault


def test_numbers_in_quotes_are_numbers():
    assert shared("merge_method: linear\nmodels: [a]\nparameters: {weight: ['0.5', '1e-1']}\n", "weight") == (0.5, 0.1)


def test_parameters_of_other_methods_have_no_effect_which_is_noted():
    text = "merge_method: sce\nbase_model: b\nmodels: [{model: a, parameters: {weight: 1}}]\n"
    file = parse_recipe(text + "parameters: {normalize: true, select_topk: 0.1}\n", "r.yml")
    assert list(file.documents[0].parameters) == ["select_topk"]
    assert sorted(file.notes) == [
        "r.yml, line 3: 'weight' has no effect in sce.",
        "r.yml, line 4: 'normalize' has no effect in sce.",
    ]
    (note,) = parse_recipe("merge_method: multislerp\nmodels: [a, b]\nparameters: {weight: 1, normalize: true}\n").notes
    assert "Did you mean 'normalize_weights'?" in note


def test_keys_without_a_value_say_nothing():
    text = (
        "merge_method: linear\nmodels: [{model: a, parameters: }]\nslices:\nchat_template:\nparameters: {weight: 1}\n"
    )
    assert len(parse_recipe(text).documents[0].modules) == 1


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{model: a, weight: 1}", "Put it under 'parameters'."),
        ("{model: a, revision: v1}", "path@revision"),
        ("{model: a, lora: b}", "path+adapter"),
    ],
)
def test_misplaced_keys_are_told_where_they_belong(entry, told):
    assert told in faults(f"merge_method: linear\nmodels: [{entry}]\nparameters: {{weight: 1}}\n")[0]


def test_unknown_keys_can_be_ignored_which_is_noted():
    text = "merge_method: linear\nmodels: [{model: a, glorious: true}]\nnmae: x\nparameters: {weight: 1, wieght: 2}\n"
    with pytest.raises(ConfigError):
        parse_recipe(text)
    file = parse_recipe(text, unknown="ignore")
    assert len(file.notes) == 3
    assert parse_recipe(text + "fusion_eval: {unknown: ignore}\n").notes == file.notes
    with pytest.raises(ConfigError, match="Did you mean 'ignore'"):
        parse_recipe(text, unknown="ignor")


def test_a_slice_may_repeat_the_method_only():
    text = "merge_method: passthrough\nslices: [{merge_method: %s, sources: [{model: a, layer_range: [0, 1]}]}]\n"
    assert parse_recipe(text % "passthrough").documents
    assert "one method per document" in faults(text % "linear")[0]


def test_old_files_of_several_documents_name_results_by_where_they_were_put():
    text = "merge_method: linear\nmodels: [a, b]\nparameters: {weight: 1}\nout_path: ./models/x\n---\n"
    text += "merge_method: linear\nmodels: [{model: ./models/x}, c]\nparameters: {weight: 1}\nout_path: ./models/y\n"
    assert [recipe.name for recipe in parse_recipe(text).documents] == ["./models/x", "./models/y"]


def test_settings_of_ours_can_stand_alone():
    file = parse_recipe(CHAIN + "---\nfusion_eval: {seed: 5, compat: true}\n")
    assert (len(file.documents), file.seed, file.compat) == (2, 5, True)
    with pytest.raises(ConfigError, match="no recipe"):
        parse_recipe("fusion_eval: {seed: 5}\n")
