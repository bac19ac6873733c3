"""Recipes against mergekit 0.1.5's recorded outputs (scripts/record_recipe_oracles), where it is right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest
import torch
import yaml
from safetensors import safe_open
from torch import Tensor

from fusion_eval.errors import FusionEvalError
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.recipe_book import RecipeBook
from fusion_eval.merge.recipe_reader import parse_recipe
from fusion_eval.method.recipe import Recipe
from fusion_eval.modelpool.recipe_pool import RecipePool
from tests.conftest import ROOT
from tests.merge.recipe_models import sampled, write_all

PATH = ROOT / "tests" / "assets" / "recipe" / "mergekit.safetensors"
with safe_open(PATH, "pt") as file:
    CASES = json.loads(file.metadata()["cases"])
    KEPT = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118

BETTER = {
    "dup_model": "the same model twice is two inputs; the peer refuses, 0.1.4 silently took the last",
    "dup_model_slices": "other layers of the same model are another input",
    "slices_more_sources_last": "norm and head of all sources of the last slice; the peer drops some",
    "param_unknown_ignored": "misspelt parameters are faults; the peer ignores them",
    "vocab_truncate": "embeddings are not cut to a common prefix of rows: tokens would lose theirs",
    "tied_mixed": "the config says untied; the peer's says tied, so its head is ignored on loading",
    "model_stock_opposed_f32": "no consensus (cosine -1): the base; the peer returns what 0/0 rounds to",
}
SPECIAL = {"slices_more_sources_last", "model_stock_opposed_f32", "dtype_bf16_of_f32"}
MERGED = [name for name, case in CASES.items() if case["rc"] == 0]
EXACT = [n for n in MERGED if not CASES[n]["stochastic"] and not n.endswith("_f32out") and not n.startswith("tok_")]
WIDE = [n for n in EXACT if n not in BETTER and "_b16" not in n and n not in SPECIAL and "out_bf16" not in n]
NARROW = [n for n in MERGED if n.endswith("_f32out")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("the models were drawn on a processor with AVX2; without it torch draws other numbers")
    root = write_all(tmp_path_factory.mktemp("models"))
    for path in sorted(root.glob("*/model.safetensors")):
        with safe_open(path, "pt") as file:
            found = torch.cat([sampled(file.get_tensor(key)).float() for key in sorted(file.keys())])
        assert torch.equal(found, KEPT[f"input|{path.parent.name}"]), f"{path.parent.name}: torch draws other numbers"
    return root


@pytest.fixture(scope="module")
def shelf(models) -> dict[object, object]:
    """Opened models, shared by all cases."""
    return {}


def material(models, shelf, config: Mapping[str, object], compat: bool = False):
    """What becomes of a recipe, read from where the models are."""
    path = models / "recipe.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    method, pool = Recipe(str(path), compat), RecipePool(str(path))
    assert not method.faults(pool)
    return pool.book.result(method._rule, 0)


def pairs(checkpoint: Checkpoint, name: str) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    """(tensor, our kept values, the recorded ones, the tensor's largest magnitude)."""
    wanted, start = KEPT[f"merged|{name}"], 0
    assert sorted(checkpoint) == sorted(CASES[name]["tensors"])
    for key in sorted(checkpoint):
        whole = checkpoint[key]
        shape = CASES[name]["tensors"][key][1]
        assert list(whole.shape) == shape
        ours = sampled(whole)
        yield key, ours, wanted[start : start + len(ours)], whole.abs().max().item()
        start += len(ours)


@pytest.mark.parametrize("name", WIDE)
def test_float32_equals_the_peer(models, shelf, name):
    for key, ours, wanted, scale in pairs(material(models, shelf, CASES[name]["config"]).checkpoint, name):
        assert (ours.double() - wanted.double()).abs().max() <= 1e-6 * scale, key
        assert str(ours.dtype) == "torch." + CASES[name]["tensors"][key][0]


@pytest.mark.parametrize("name", [n for n in EXACT if n not in BETTER])
def test_compat_is_the_peer_bit_for_bit(models, shelf, name):
    for key, ours, wanted, _ in pairs(material(models, shelf, CASES[name]["config"], compat=True).checkpoint, name):
        got = "float32" if name in ("arcee_fusion_b16", "ramplus_tl_b16") else str(ours.dtype).removeprefix("torch.")
        assert got == CASES[name]["tensors"][key][0]  # those two leave 16 bits for 32 with the peer; ours do not
        assert torch.equal(ours.float(), wanted.to(ours.dtype).float()), key


@pytest.mark.parametrize("name", NARROW)
def test_bfloat16_is_one_rounding_of_float32(models, shelf, name):
    """Without dtype keys ours is the peer's with dtype float32, out_dtype bfloat16, up to an ulp and ties at cuts."""
    original = CASES[name.removesuffix("_f32out")]["config"]
    merged = material(models, shelf, original).checkpoint
    selects = name.startswith(("ties", "breadcrumbs", "sce_topk", "sce_int8"))
    off = total = 0
    for key, ours, wanted, _ in pairs(merged, name):
        assert ours.dtype == torch.bfloat16
        ulp = 2.0 ** (torch.frexp(wanted.abs().clamp(min=1e-30)).exponent - 8)
        wrong = (ours.float() - wanted).abs() > ulp
        if name.startswith("model_stock_opposed"):
            continue
        assert selects or not wrong.any(), key
        off, total = off + int(wrong.sum()), total + len(wanted)
    rescaled = name.startswith(("ties_rescale", "breadcrumbs_ties"))  # one more equal entry kept moves every factor
    limit = 0.13 if rescaled else 0.03
    assert off <= limit * total, f"{off} of {total} values: more than ties at a cut explain"


def test_few_differ_where_nothing_ties(models, shelf):
    """In float32 no two magnitudes are equal, so the same recipes agree in every value (`test_float32_...`)."""
    assert {"ties_f32", "breadcrumbs_f32", "sce_topk_f32", "ties_rescale_f32"} <= set(WIDE)


@pytest.mark.parametrize("name", [n for n in MERGED if CASES[n]["stochastic"]])
def test_random_methods_agree_in_distribution(models, shelf, name):
    config = CASES[name]["config"]
    merged = material(models, shelf, config).checkpoint
    base = material(
        models, shelf, {"merge_method": "passthrough", "models": [{"model": config["base_model"]}]}
    ).checkpoint
    for row, key in zip(KEPT[f"merged|{name}"], sorted(merged), strict=True):
        delta = merged[key].float() - base[key].float()
        if delta.numel() < 2000:
            continue
        share = (delta == 0).float().mean().item()
        spread = max(row[0].item() * (1 - row[0].item()) / delta.numel(), 1e-6) ** 0.5
        assert abs(share - row[0].item()) < 8 * spread + (0.02 if "_b16" in name else 0.0), key
        assert delta.abs().sum().item() == pytest.approx(row[1].item(), rel=0.12), key


@pytest.mark.parametrize("name", [n for n in MERGED if n.startswith("tok_")])
def test_vocabularies(models, shelf, name):
    """Each token has the peer's embedding; ids are ours, the same on every run, where the peer's are not."""
    made = material(models, shelf, CASES[name]["config"])
    ids, again = CASES[name]["ids"], material(models, shelf, CASES[name]["config"])
    assert made.tokenizer.ids == again.tokenizer.ids
    assert set(made.tokenizer.ids) == set(ids)
    ours = torch.tensor([made.tokenizer.ids[token] for token in ids])
    theirs = torch.tensor(list(ids.values()))
    for index, key in enumerate(("lm_head.weight", "model.embed_tokens.weight")):
        got, wanted = made.checkpoint[key], KEPT[f"rows|{name}"][index]
        assert got.shape[0] == wanted.shape[0] == made.config["vocab_size"]
        torch.testing.assert_close(got[ours, :4], wanted[theirs], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(got[len(ids) :, :4], wanted[len(ids) :], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case["rc"] and n not in BETTER])
def test_what_the_peer_refuses_is_refused(models, name):
    path = models / "refused.yml"
    path.write_text(yaml.safe_dump(CASES[name]["config"], sort_keys=False))
    method = Recipe(str(path))
    assert method.faults(RecipePool(str(path)))


def test_every_case_is_compared():
    random = {n for n in MERGED if CASES[n]["stochastic"]}
    refused = {n for n, case in CASES.items() if case["rc"]}
    assert set(CASES) == {*WIDE, *NARROW, *EXACT, *random, *refused, *(n for n in MERGED if n.startswith("tok_"))}
    assert len(CASES) - len(NARROW) == 160


class TestWhereThePeerIsWrong:
    """`BETTER` says why."""

    def test_the_same_model_twice(self, models, shelf):
        once = material(models, shelf, {"merge_method": "passthrough", "models": [{"model": "f32_a"}]}).checkpoint
        twice = material(models, shelf, CASES["dup_model"]["config"]).checkpoint
        assert all(torch.allclose(twice[name], once[name], atol=1e-7) for name in once)

    def test_layers_of_one_model_with_each_other(self, models, shelf):
        made = material(models, shelf, CASES["dup_model_slices"]["config"])
        a = material(models, shelf, {"merge_method": "passthrough", "models": [{"model": "f32_a"}]}).checkpoint
        key = "self_attn.q_proj.weight"
        wanted = (a[f"model.layers.1.{key}"] + a[f"model.layers.3.{key}"]) / 2
        torch.testing.assert_close(made.checkpoint[f"model.layers.1.{key}"], wanted)
        assert made.config["num_hidden_layers"] == 2

    def test_more_sources_in_the_last_slice(self, models, shelf):
        merged = material(models, shelf, CASES["slices_more_sources_last"]["config"]).checkpoint
        opened = [
            material(models, shelf, {"merge_method": "passthrough", "models": [{"model": name}]}).checkpoint
            for name in ("f32_a", "f32_b")
        ]
        for name in ("model.norm.weight", "lm_head.weight"):
            torch.testing.assert_close(merged[name], (opened[0][name] + opened[1][name]) / 2)
        assert torch.equal(merged["model.embed_tokens.weight"], opened[0]["model.embed_tokens.weight"])

    def test_misspelt_parameters(self):
        text = yaml.safe_dump(CASES["param_unknown_ignored"]["config"], sort_keys=False)
        with pytest.raises(FusionEvalError) as caught:
            parse_recipe(text, "r.yml")
        assert {fault.do for fault in caught.value.faults} == {"Did you mean 'density'?", "Did you mean 'normalize'?"}
        assert all(fault.where.startswith("r.yml, line ") for fault in caught.value.faults)

    def test_unequal_vocabularies_are_refused_with_the_way_out(self, models):
        path = models / "cut.yml"
        path.write_text(yaml.safe_dump(CASES["vocab_truncate"]["config"]))
        faults = Recipe(str(path)).faults(RecipePool(str(path)))
        assert "tokenizer: {source: union}" in str(faults[0])

    def test_a_head_that_is_no_longer_tied(self, models, shelf):
        made = material(models, shelf, CASES["tied_mixed"]["config"])
        for key, ours, wanted, scale in pairs(made.checkpoint, "tied_mixed"):
            assert (ours - wanted).abs().max() <= 1e-6 * scale, key
        assert made.config["tie_word_embeddings"] is False

    def test_opposed_experts_give_the_base(self, models, shelf):
        merged = material(models, shelf, CASES["model_stock_opposed_f32"]["config"]).checkpoint
        base = material(models, shelf, {"merge_method": "passthrough", "models": [{"model": "f32_base"}]}).checkpoint
        assert all(torch.allclose(merged[name], base[name], atol=1e-6) for name in base)


def test_dtype_of_16_bits_rounds_once(models, shelf):
    """mergekit's `dtype: bfloat16` rounds inputs and result; ours is one rounding, compat has both."""
    merged = material(models, shelf, CASES["dtype_bf16_of_f32"]["config"]).checkpoint
    config = {key: value for key, value in CASES["dtype_bf16_of_f32"]["config"].items() if key != "dtype"}
    exact = material(models, shelf, config).checkpoint
    assert all(torch.equal(merged[name], exact[name].bfloat16()) for name in merged)


def test_book_is_the_pools(models):
    path = models / "recipe.yml"
    path.write_text(yaml.safe_dump(CASES["ties_f32"]["config"]))
    assert isinstance(RecipePool(str(path)).book, RecipeBook)
