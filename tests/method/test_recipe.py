"""Recipes through the command line and the pool: merged, saved, reloaded, made again."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

import pytest
import torch
import yaml
from safetensors.torch import save_file

from fusion_eval.errors import ConfigError, FusionEvalError, MethodError
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.tokenizer import read_tokenizer
from fusion_eval.method.recipe import Recipe, built_method
from fusion_eval.method.ties import Ties
from fusion_eval.modelpool.recipe_pool import RecipePool, recipe_pool
from tests.merge.recipe_models import write_model, write_tokenizer

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    root = tmp_path_factory.mktemp("models")
    for name in ("base", "a", "b"):
        write_tokenizer(write_model(root / name, name), ["<x0>"], 128)
    write_tokenizer(write_model(root / "wide", "c", vocab=136), ["<x0>", "<im_start>", "<im_end>"], 136, shift=7)
    (root / "a" / "generation_config.json").write_text(json.dumps({"eos_token_id": [2], "bos_token_id": 1}))
    (root / "a" / "chat_template.jinja").write_text("{{ messages }}")
    return root


@pytest.fixture
def place(models, tmp_path, monkeypatch):
    """A working directory beside the models."""
    for folder in models.iterdir():
        if folder.is_dir():
            (tmp_path / folder.name).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(place, recipe, name="recipe.yml"):
    """A recipe on disk, as method and pool."""
    text = recipe if isinstance(recipe, str) else yaml.safe_dump(recipe, sort_keys=False)
    (place / name).write_text(text)
    return Recipe(str(place / name)), RecipePool(str(place / name))


def merged(place, recipe):
    method, pool = written(place, recipe)
    assert method.faults(pool) == []
    assert pool.faults() == []
    return method.apply(pool), pool


def run(*words, monkeypatch):
    from fusion_eval.cli import main

    monkeypatch.setattr(sys, "argv", ["fusion_eval", *words])
    with suppress(SystemExit):
        main()


TIES = {
    "merge_method": "ties",
    "base_model": "base",
    "models": [{"model": name, "parameters": {"weight": 0.5, "density": 0.4}} for name in ("a", "b")],
    "dtype": "bfloat16",
}
QUIET = ("taskpool=dummy", "program.base=false", "program.experts=none", "progress=false")


@pytest.mark.filterwarnings("ignore::UserWarning:hydra")
class TestCommandLine:
    def test_a_recipe_needs_nothing_else_and_makes_itself_again(self, place, monkeypatch):
        written(place, {**TIES, "merge_method": "dare_ties"})
        run("method=recipe", "method.path=recipe.yml", "save=first", "seed=5", *QUIET, monkeypatch=monkeypatch)
        run("method=recipe", "method.path=first/recipe.yml", "save=second", *QUIET, monkeypatch=monkeypatch)
        first, second = (open_checkpoint(place / name) for name in ("first", "second"))
        assert first.fingerprint() == second.fingerprint()
        written(place, {**TIES, "merge_method": "dare_ties"})
        run("method=recipe", "method.path=recipe.yml", "save=third", "seed=6", *QUIET, monkeypatch=monkeypatch)
        assert open_checkpoint(place / "third").fingerprint() != first.fingerprint()
        card = (place / "first" / "README.md").read_text()
        assert "merge_method: dare_ties" in card
        assert "Nothing was measured of it" in card
        assert RecipePool("recipe.yml").checkpoint("a").fingerprint()[:16] in card

    def test_our_own_methods_write_a_recipe_too(self, place, monkeypatch):
        pool = ["modelpool=huggingface", "modelpool.auto_class=LlamaForCausalLM", "modelpool.base=base"]
        experts = "modelpool.experts={a: a, b: b}"
        words = ["method=dare_ties", "method.density=0.3", *pool, experts, "save=own", "seed=4"]
        run(*words, *QUIET, monkeypatch=monkeypatch)
        run("method=recipe", "method.path=own/recipe.yml", "save=again", *QUIET, monkeypatch=monkeypatch)
        assert open_checkpoint(place / "own").fingerprint() == open_checkpoint(place / "again").fingerprint()
        node = yaml.safe_load((place / "own" / "recipe.yml").read_text())
        assert node["seed"] == 4
        assert node["inputs"]["a"]["fingerprint"] == open_checkpoint(place / "a").fingerprint()
        assert "| a |" in (place / "own" / "README.md").read_text()

    @pytest.mark.parametrize("kind", ["union", "slices"])
    def test_models_are_evaluated_as_they_are_beside_a_merge_of_another_shape(self, place, monkeypatch, kind):
        models = [{"model": name, "parameters": {"weight": 0.5}} for name in ("a", "wide")]
        slices = [{"sources": [{"model": name, "layer_range": [0, 3]}]} for name in ("a", "b")]
        recipe = {
            "union": {"merge_method": "linear", "base_model": "a", "models": models, "tokenizer_source": "union"},
            "slices": {"merge_method": "passthrough", "slices": slices},
        }[kind]
        written(place, recipe)
        words = ("taskpool=dummy", "progress=false", "output=run")
        run("method=recipe", "method.path=recipe.yml", "save=out", *words, monkeypatch=monkeypatch)
        report = json.loads((place / "run" / "report.json").read_text())
        assert report["status"] == "complete"
        assert "merged" in report["models"]
        assert len(report["models"]) == 3
        transformers.AutoModelForCausalLM.from_pretrained(place / "out")

    def test_faults_name_file_and_line(self, place, monkeypatch):
        written(place, {**TIES, "denstiy": 1})
        monkeypatch.setattr(sys, "argv", ["fusion_eval", "method=recipe", "method.path=recipe.yml", "taskpool=dummy"])
        from fusion_eval.cli import main

        with pytest.raises(SystemExit) as end:
            main()
        assert "recipe.yml, line 13: a recipe has no key 'denstiy'" in str(end.value.code)


def test_what_is_saved_loads(place):
    recipe = {
        "merge_method": "linear",
        "base_model": "a",
        "models": [{"model": name, "parameters": {"weight": 0.5}} for name in ("a", "wide")],
        "tokenizer": {"source": "union", "pad_to_multiple_of": 16, "tokens": {"<new>": {"source": {"kind": "zero"}}}},
        "chat_template": "chatml",
        "out_dtype": "bfloat16",
    }
    result, pool = merged(place, recipe)
    pool.save(result, place / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(place / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "out")
    assert model.config.vocab_size == 144 == model.get_input_embeddings().weight.shape[0]
    assert model.dtype == torch.bfloat16
    assert len(tokenizer) == 137
    row = model.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids("<new>")]
    assert not row.any()
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n"
    assert json.loads((place / "out" / "generation_config.json").read_text())["eos_token_id"] == [2]
    built = pool.build(result)
    loaded = dict(model.state_dict())
    assert all(torch.equal(tensor.bfloat16(), loaded[name]) for name, tensor in built.state_dict().items())


def test_another_models_tokenizer_with_new_rows_made_of_the_models_own(place):
    """Where the model's embeddings are a linear map of the donor's, so are the rows that are made."""
    torch.manual_seed(0)
    donor = open_checkpoint(place / "wide")
    turn = torch.linalg.qr(torch.randn(64, 64))[0]
    write_tokenizer(write_model(place / "mapped", "a"), ["<x0>"], 128)
    state = dict(open_checkpoint(place / "mapped"))
    ids = {name: read_tokenizer(place / name).ids for name in ("wide", "mapped")}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        for token, number in ids["mapped"].items():
            state[name][number] = donor[name][ids["wide"][token]] @ turn
    save_file(state, place / "mapped" / "model.safetensors")
    recipe = {
        "merge_method": "passthrough",
        "models": [{"model": "mapped"}],
        "tokenizer": {"source": "wide", "approximate": 64},
    }
    result, pool = merged(place, recipe)
    assert result.key() is not None
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        torch.testing.assert_close(result[name], donor[name] @ turn, rtol=1e-4, atol=1e-5)
    pool.save(result, place / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "out")
    assert len(tokenizer) == 136
    assert transformers.AutoModelForCausalLM.from_pretrained(place / "out").config.vocab_size == 136
    few, _ = merged(place, {**recipe, "tokenizer": {"source": "wide", "approximate": 2}})
    assert few.key() != result.key()
    new = [number for token, number in ids["wide"].items() if token not in ids["mapped"]]
    name = "model.embed_tokens.weight"
    assert (few[name][new] - result[name][new]).norm() > 0.1 * result[name][new].norm()


def test_a_union_of_vocabularies_is_known_by_a_key_so_ranks_share_it(place):
    models = [{"model": name, "parameters": {"weight": 0.5}} for name in ("a", "wide")]
    recipe = {"merge_method": "linear", "base_model": "a", "models": models, "tokenizer_source": "union"}
    (result, pool), (again, _) = merged(place, recipe), merged(place, recipe)
    assert result.key() is not None
    assert result.key() == again.key()
    token = {"tokenizer": {"source": "union", "tokens": {"<x0>": {"source": "wide", "force": True}}}}
    other, _ = merged(place, {key: value for key, value in recipe.items() if key != "tokenizer_source"} | token)
    assert other.key() not in (None, result.key())
    pool.save(result, place / "one", shard_bytes=50_000)
    for rank in range(2):
        pool.save(again, place / "two", shard_bytes=50_000, rank=rank, world=2)
    one, two = ({file.name: file.read_bytes() for file in (place / name).iterdir()} for name in ("one", "two"))
    assert one == two


def test_ids_of_special_tokens_follow_the_tokenizer(place):
    folder = place / "moved"
    write_tokenizer(write_model(folder, "b"), ["<x0>"], 128)
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"]["</s>"], data["model"]["vocab"]["!"] = data["model"]["vocab"]["!"], 2
    for entry in data["added_tokens"]:
        entry["id"] = 3 if entry["content"] == "</s>" else entry["id"]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    models = [{"model": name, "parameters": {"weight": 1}} for name in ("a", "moved")]
    recipe = {"merge_method": "linear", "models": models, "tokenizer_source": "moved"}
    _, pool = merged(place, recipe)
    outline = pool.book.outline()
    assert (outline.config["eos_token_id"], outline.config["bos_token_id"]) == (3, 1)
    assert outline.generation["eos_token_id"] == [3]


def test_equal_vocabularies_keep_their_padding_rows(place):
    for name in ("a", "b"):
        folder = place / f"padded_{name}"
        write_tokenizer(write_model(folder, name, vocab=144), ["<x0>"], 128)
    models = [{"model": f"padded_{name}", "parameters": {"weight": 1}} for name in ("a", "b")]
    result, _ = merged(place, {"merge_method": "linear", "models": models, "tokenizer_source": "union"})
    assert result.spec("lm_head.weight").shape == (144, 64)


def test_documents_in_a_chain(place):
    text = """
name: mean
merge_method: linear
models: [{model: a}, {model: b}]
parameters: {weight: 1}
---
merge_method: task_arithmetic
base_model: base
models: [{model: mean, parameters: {weight: 0.5}}]
"""
    result, _ = merged(place, text)
    base, a, b = (open_checkpoint(place / name) for name in ("base", "a", "b"))
    for name in base:
        wanted = base[name] + 0.5 * ((a[name] + b[name]) / 2 - base[name])
        torch.testing.assert_close(result[name], wanted, rtol=1e-6, atol=1e-7)


def test_modules_and_positions(place):
    recipe = {
        "merge_method": "linear",
        "modules": {
            "mlp": {"models": [{"model": "a"}, {"model": "b"}], "parameters": {"weight": [{"value": 1}]}},
            "default": {"models": [{"model": "a", "parameters": {"weight": 1}}]},
        },
    }
    result, _ = merged(place, recipe)
    a, b = (open_checkpoint(place / name) for name in ("a", "b"))
    assert set(result) == set(a)
    name = "model.layers.1.mlp.up_proj.weight"
    torch.testing.assert_close(result[name], (a[name] + b[name]) / 2)
    assert torch.equal(result["model.norm.weight"], a["model.norm.weight"])
    recipe["modules"].pop("default")
    method, pool = written(place, recipe)
    assert "tensors of no module" in str(method.faults(pool)[0])


def test_an_adapter_on_a_model(place):
    from safetensors.torch import save_file

    folder = place / "lora"
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    path = "base_model.model.model.layers.0.self_attn.q_proj"
    A, B = torch.randn(2, 64), torch.randn(64, 2)
    save_file({f"{path}.lora_A.weight": A, f"{path}.lora_B.weight": B}, folder / "adapter_model.safetensors")
    result, _ = merged(place, {"merge_method": "passthrough", "models": [{"model": "a+lora"}]})
    name = "model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(result[name], open_checkpoint(place / "a")[name] + 2 * B @ A)


def test_layers_and_config(place):
    slices = [
        {"sources": [{"model": "a", "layer_range": [0, 3]}]},
        {"sources": [{"model": "b", "layer_range": [1, 4]}]},
    ]
    result, pool = merged(place, {"merge_method": "passthrough", "slices": slices})
    assert pool.book.outline().config["num_hidden_layers"] == 6
    assert torch.equal(
        result["model.layers.3.input_layernorm.weight"],
        open_checkpoint(place / "b")["model.layers.1.input_layernorm.weight"],
    )
    slices[0]["sources"][0]["layer_range"] = [0, 9]
    method, pool = written(place, {"merge_method": "passthrough", "slices": slices})
    assert "layers 0 to 9 of 'a', which has 4" in str(method.faults(pool)[0])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"models": [{"model": "aa", "parameters": {"weight": 1}}]}, "model 'aa'"),
        (
            {"models": [{"model": "a"}, {"model": "b"}], "parameters": {"weight": [{"filter": "mlp", "value": 1}]}},
            "no value",
        ),
        ({"chat_template": "chatlm"}, "Did you mean 'chatml'?"),
        ({"tokenizer": {"source": "union", "tokens": {"<q>": {"source": "b"}}}}, "'b' has no token '<q>'"),
    ],
)
def test_faults_before_work(place, change, told):
    method, pool = written(place, {**TIES, **change})
    faults = [str(fault) for fault in method.faults(pool)]
    assert any(told in fault for fault in faults), faults


def test_other_pools_are_refused(make_pool, place):
    method, _ = written(place, TIES)
    with pytest.raises(MethodError, match="names its models itself"):
        method.apply(make_pool(2))


def test_only_methods_are_built_from_a_recipe():
    assert isinstance(built_method({"_target_": "fusion_eval.method.ties.Ties", "density": 0.3}), Ties)
    for target in ("os.system", "subprocess.Popen", "fusion_eval.nowhere.Ties"):
        with pytest.raises(ConfigError):
            built_method({"_target_": target})
    with pytest.raises(ConfigError, match="densty"):
        built_method({"_target_": "fusion_eval.method.ties.Ties", "densty": 0.3})


def test_a_pool_without_a_recipe_is_told():
    with pytest.raises(FusionEvalError, match="no recipe"):
        recipe_pool()


def test_a_recipe_of_several_documents_is_saved_with_its_seed(place):
    chain = "name: x\nmerge_method: dare_ties\nbase_model: base\nmodels: [{model: a}]\n"
    chain += "parameters: {weight: 1, density: 0.5}\n---\n  merge_method: passthrough\n  models: [x]\n"
    method, pool = written(place, chain)
    text = method.recipe(7)
    again, _ = written(place, text, "again.yml")
    assert again.file.seed == 7
    first, second = method.apply(pool, seed=7), again.apply(RecipePool(str(place / "again.yml")), seed=0)
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(first[name], second[name])
    assert not torch.equal(first[name], method.apply(pool, seed=8)[name])
    assert again.recipe(9) == text


def test_the_base_alone_is_the_result_of_task_vectors(place):
    recipe = {"merge_method": "ties", "base_model": "base", "models": ["base"], "parameters": {"weight": 1}}
    result, pool = merged(place, recipe)
    assert any("no model beside the base" in note for note in pool.notes())
    assert torch.equal(result["model.norm.weight"], open_checkpoint(place / "base")["model.norm.weight"])


def test_slices_of_different_vocabularies_need_a_tokenizer(place):
    sources = [{"sources": [{"model": name, "layer_range": [0, 2]}]} for name in ("a", "wide")]
    recipe = {"merge_method": "passthrough", "slices": sources}
    method, pool = written(place, recipe)
    (fault,) = method.faults(pool)
    assert (
        "slices of different vocabularies: 'lm_head.weight' of 136, 'model.embed_tokens.weight' of 128" in fault.found
    )
    result, _ = merged(place, {**recipe, "tokenizer_source": "union"})
    assert result.spec("lm_head.weight").shape == result.spec("model.embed_tokens.weight").shape


@pytest.mark.parametrize("densities", [(1.0, 1.0), (1.0, 0.5)])
def test_della_keeps_all_of_a_model_of_density_one(place, densities):
    models = [
        {"model": name, "parameters": {"weight": 1, "density": density}}
        for name, density in zip(("a", "b"), densities, strict=True)
    ]
    recipe = {"merge_method": "della_linear", "base_model": "base", "models": models, "dtype": "float32"}
    result, _ = merged(place, recipe)
    name = "model.layers.0.mlp.up_proj.weight"
    base, a, b = (open_checkpoint(place / each)[name] for each in ("base", "a", "b"))
    left = result[name] - a
    if densities[1] == 1:
        torch.testing.assert_close(left, b - base, rtol=0, atol=1e-7)
    else:
        assert 0.4 < (left.abs() < 1e-8).float().mean() < 0.6


def test_probabilities_of_della_are_checked_for_every_model(place):
    models = [
        {"model": name, "parameters": {"weight": 1, "density": density, "epsilon": 0.4}}
        for name, density in (("a", 0.5), ("b", 0.8))
    ]
    method, pool = written(place, {"merge_method": "della", "base_model": "base", "models": models})
    (fault,) = method.faults(pool)
    assert "0.4 to 1.2" in fault.found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("chatml", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"),
        ("exaone", "[|system|]S[|endofturn|]\n[|user|]U\n[|assistant|]"),
        ("mistral", "<s> [INST] S\n\nU [/INST]"),
        ("alpaca", "S\n\n### Instruction:\nU\n\n### Response:\n"),
        (
            "llama3",
            "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
            "U<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ],
)
def test_known_chat_templates_say_what_their_models_were_trained_on(name, wanted):
    from transformers.utils.chat_template_utils import _compile_jinja_template

    from fusion_eval.merge.recipe_config import TEMPLATES

    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    said = _compile_jinja_template(TEMPLATES[name]).render(
        messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    assert said == wanted


@pytest.mark.parametrize("way", ["common_interpolation", "subword", "mean", "zero", "randn", "john_hewitt"])
def test_every_way_to_make_rows_of_new_tokens(place, way):
    write_tokenizer(write_model(place / "own", "a"), ["<x0>"], 128)
    said = {"tokens": {"<im_end>": {"source": {"kind": "zero"}}}}
    recipe = {"merge_method": "passthrough", "models": [{"model": "own"}], "dtype": "float32"}
    choice = {"source": "wide", **said, "approximate": {"method": way, "k": 8}}
    result, _ = merged(place, {**recipe, "tokenizer": choice})
    again, _ = merged(place, {**recipe, "tokenizer": choice})
    own, ids = open_checkpoint(place / "own"), {name: read_tokenizer(place / name).ids for name in ("wide", "own")}
    new = [number for token, number in ids["wide"].items() if token not in ids["own"]]
    assert result.key() == again.key()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        made = result[name]
        assert torch.equal(made, again[name])
        assert torch.equal(made[ids["wide"]["g"]], own[name][ids["own"]["g"]])
        assert not made[ids["wide"]["<im_end>"]].any()
        if way == "subword":
            pieces = own[name][[ids["own"]["g"], ids["own"]["t"]]].mean(0)
            torch.testing.assert_close(made[ids["wide"]["gt"]], pieces)
        assert bool(made[new].any()) == (way != "zero")


@pytest.mark.parametrize(
    ("said", "told"),
    [("{method: opm}", "Did you mean 'omp'"), ("{k: 0}", "k is 0"), ("{cosine_similarity: 3}", "true or false")],
)
def test_ways_that_are_none(place, said, told):
    text = f"merge_method: passthrough\nmodels: [a]\ntokenizer: {{source: wide, approximate: {said}}}\n"
    method, _ = written(place, text)
    with pytest.raises(ConfigError, match=told):
        method.recipe(0)
