from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

transformers = pytest.importorskip("transformers")

from fusion_eval.errors import CheckpointError, ConfigError  # noqa: E402
from fusion_eval.merge.files import open_checkpoint  # noqa: E402
from fusion_eval.method.passthrough import Passthrough  # noqa: E402
from fusion_eval.modelpool.mixture import MixturePool  # noqa: E402
from tests.tiny import tiny_llama  # noqa: E402


@pytest.fixture
def models(tmp_path):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return {name: str(tiny_llama(tmp_path / name, variant)) for variant, name in enumerate(("base", "a", "b"))}


def pool_of(tmp_path, models, gate_mode, same=False, **more):
    experts = [
        {"source_model": models["base" if same else name], "positive_prompts": prompts}
        for name, prompts in (("a", ["12 34", "5+6"]), ("b", ["a b c"]))
    ]
    recipe = {"base_model": models["base"], "gate_mode": gate_mode, "experts": experts, **more}
    (tmp_path / "moe.yml").write_text(yaml.safe_dump(recipe))
    return MixturePool(str(tmp_path / "moe.yml"))


@pytest.mark.parametrize("mode", ["random", "uniform_random", "hidden", "hidden_last", "cheap_embed"])
def test_a_mixture_of_copies_is_the_dense_model(tmp_path, models, mode):
    """Whatever the routers, equal experts give what the dense model gives."""
    pool = pool_of(tmp_path, models, mode, same=True)
    assert pool.faults() == []
    mixture = pool.load("mixture")
    dense = transformers.LlamaForCausalLM.from_pretrained(models["base"]).eval()
    tokens = torch.tensor([[5, 9, 33, 7]])
    with torch.no_grad():
        torch.testing.assert_close(mixture(tokens).logits, dense(tokens).logits, rtol=1e-4, atol=1e-5)


def test_what_is_saved_loads(tmp_path, models):
    pool = pool_of(tmp_path, models, "random", experts_per_token=1, dtype="bfloat16")
    pool.save(Passthrough().apply(pool), tmp_path / "moe")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "moe", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert type(model).__name__ == "MixtralForCausalLM"
    assert model.dtype == torch.bfloat16
    assert model.config.num_experts_per_tok == 1
    written, b = open_checkpoint(tmp_path / "moe"), open_checkpoint(models["b"])
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(written["model.layers.1.block_sparse_moe.experts.1.w2.weight"], b[name].bfloat16())
    assert json.loads((tmp_path / "moe" / "config.json").read_text())["num_local_experts"] == 2
    assert (tmp_path / "moe" / "tokenizer.json").is_file()


def test_routers_prefer_the_expert_of_a_prompt(tmp_path, models):
    pool = pool_of(tmp_path, models, "hidden_last")
    model = pool.load("mixture")
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["base"])
    gate = pool.checkpoint("mixture")["model.layers.0.block_sparse_moe.gate.weight"]
    assert torch.allclose(gate.norm(dim=1), torch.ones(2), atol=1e-5)
    block = next(module for name, module in model.named_modules() if name.endswith("layers.0.mlp"))
    seen = []
    hook = block.register_forward_pre_hook(lambda _, args: seen.append(args[0][0, -1]))
    for prompt in ("5+6", "a b c"):
        model(tokenizer(prompt, return_tensors="pt").input_ids)
    hook.remove()
    scores = torch.stack(seen) @ gate.T
    assert scores[1].argmax() == 1


def test_faults_come_at_once(tmp_path, models):
    text = f"base_model: {models['base']}\ngate_mode: hiden\nexperts:\n  - source_modle: x\n"
    (tmp_path / "moe.yml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        MixturePool(str(tmp_path / "moe.yml")).checkpoint("mixture")
    told = str(caught.value)
    assert "Did you mean 'hidden'" in told
    assert "Did you mean 'source_model'?" in told
    assert "1 experts" in told


SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
KINDS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
MADE = [
    ("llama", None, "Mixtral"),
    ("llama", "qwen2_moe", "Qwen2Moe"),
    ("mistral", None, "Mixtral"),
    ("mistral", "qwen2_moe", "Qwen2Moe"),
    ("qwen2", None, "Qwen2Moe"),
    ("qwen3", None, "Qwen3Moe"),
]
TOKENS = torch.tensor([[5, 9, 33, 7, 1, 2, 30]])


def dense_model(kind, folder, seed=0, **more):
    """A tiny dense model, saved, whose biases and norms are no constants."""
    torch.manual_seed(seed)
    heads = {"head_dim": 8} if kind == "qwen3" else {}
    config = getattr(transformers, f"{KINDS[kind]}Config")(**{**SIZES, **heads, "num_key_value_heads": 2, **more})
    model = getattr(transformers, f"{KINDS[kind]}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


def mixture_pool(folder, base, experts, seed=0, **more):
    items = [expert if isinstance(expert, dict) else {"source_model": str(expert)} for expert in experts]
    recipe = {"base_model": str(base), "gate_mode": "random", "experts": items, **more}
    (folder / "moe.yml").write_text(yaml.safe_dump(recipe))
    return MixturePool(str(folder / "moe.yml"), seed)


def saved(pool, folder):
    """The model that transformers loads from what the pool saves; it finds every key and no other."""
    pool.save(Passthrough().apply(pool), folder)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    return model.eval()


@torch.no_grad()
def assert_answers_alike(model, dense):
    torch.testing.assert_close(model(TOKENS).logits, dense(TOKENS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "architecture", "made"), MADE)
@settings(max_examples=4, deadline=None)
@given(experts=st.integers(2, 4), used=st.integers(1, 4), tied=st.booleans(), seed=st.integers(0, 99))
def test_equal_experts_of_any_kind_answer_as_the_dense_model(kind, architecture, made, experts, used, tied, seed):
    said = {} if architecture is None else {"architecture": architecture}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dense = dense_model(kind, folder / "base", seed, tie_word_embeddings=tied)
        pool = mixture_pool(
            folder, folder / "base", [folder / "base"] * experts, seed, experts_per_token=min(used, experts), **said
        )
        model = saved(pool, folder / "moe")
        assert type(model).__name__ == f"{made}ForCausalLM"
        assert model.config.num_experts_per_tok == min(used, experts)
        assert model.config.tie_word_embeddings == tied
        assert_answers_alike(model, dense)
        assert_answers_alike(pool.load("mixture"), dense)


@torch.no_grad()
def test_a_shared_expert_answers_behind_its_gate(tmp_path):
    """Routed experts that are alike give a, the shared one b times its gate's sigmoid; each as scaled."""
    base, other = dense_model("qwen2", tmp_path / "base"), dense_model("qwen2", tmp_path / "other", 1)
    experts = [{"source_model": str(tmp_path / "base"), "residual_scale": 0.5}] * 2
    shared = [{"source_model": str(tmp_path / "other"), "residual_scale": 0.25}]
    pool = mixture_pool(tmp_path, tmp_path / "base", experts, shared_experts=shared)
    model = saved(pool, tmp_path / "moe")
    block, states = model.model.layers[1].mlp, torch.randn(1, 5, 16)
    gate = pool.checkpoint("mixture")["model.layers.1.mlp.shared_expert_gate.weight"]
    assert gate.abs().sum() > 0
    routed, always = base.model.layers[1].mlp(states), other.model.layers[1].mlp(states)
    expected = 0.5 * routed + torch.sigmoid(states @ gate.T) * 0.25 * always
    torch.testing.assert_close(block(states), expected, rtol=1e-5, atol=1e-5)


def test_the_shared_experts_prompts_make_its_gate(tmp_path, models):
    shared = [{"source_model": models["a"], "positive_prompts": ["7 8 9"]}]
    pool = pool_of(tmp_path, models, "hidden", architecture="qwen2_moe", shared_experts=shared)
    weights = pool.checkpoint("mixture")
    gate = weights["model.layers.0.mlp.shared_expert_gate.weight"]
    assert gate.shape == (1, 32)
    assert torch.allclose(gate.norm(), torch.tensor(1.0), atol=1e-5)
    assert weights["model.layers.0.mlp.gate.weight"].shape == (2, 32)
    own = open_checkpoint(models["a"])["model.layers.0.mlp.up_proj.weight"]
    assert torch.equal(weights["model.layers.0.mlp.shared_expert.up_proj.weight"], own)


def test_noise_is_of_its_size_and_the_same_on_every_run(tmp_path):
    dense = dense_model("qwen3", tmp_path / "base")
    noisy = {"source_model": str(tmp_path / "base"), "noise_scale": 0.01}
    first, again = (mixture_pool(tmp_path, tmp_path / "base", [noisy] * 2).checkpoint("mixture") for _ in range(2))
    one, two = (f"model.layers.0.mlp.experts.{index}.up_proj.weight" for index in range(2))
    change = first[one] - dense.model.layers[0].mlp.up_proj.weight
    assert 0.008 < change.std() < 0.012
    assert torch.equal(first[one], again[one])
    assert not torch.equal(first[one], first[two])


def test_windows_and_biases_are_those_of_the_dense_model(tmp_path):
    window = {"use_sliding_window": True, "sliding_window": 3}
    for kind, layers, more in (("qwen2", 1, {}), ("qwen3", 0, {"attention_bias": True})):
        dense = dense_model(kind, tmp_path / kind, max_window_layers=layers, **window, **more)
        pool = mixture_pool(tmp_path, tmp_path / kind, [tmp_path / kind] * 2)
        assert_answers_alike(saved(pool, tmp_path / f"{kind}-moe"), dense)
    dense_model("qwen3", tmp_path / "some", max_window_layers=1, **window)
    with pytest.raises(ConfigError, match="some layers only"):
        mixture_pool(tmp_path, tmp_path / "some", [tmp_path / "some"] * 2).checkpoint("mixture")


def test_what_a_dense_config_leaves_to_defaults_stays_as_it_was(tmp_path):
    """A Mixtral supposes another base of rotary embeddings, other norms and groups than a Llama."""
    dense = dense_model("llama", tmp_path / "base", num_key_value_heads=4)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES}
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    assert_answers_alike(
        saved(mixture_pool(tmp_path, tmp_path / "base", [tmp_path / "base"] * 2), tmp_path / "moe"), dense
    )


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [
        ("llama", {"architecture": "mixtral", "shared_experts": [{"source_model": "x"}]}, "Say architecture: deepseek"),
        ("qwen3", {"shared_experts": [{"source_model": "x"}]}, "Leave shared_experts out"),
        ("qwen2", {"architecture": "mixtral"}, "one of qwen2_moe"),
        ("qwen2", {"architecture": "qwen2_mo"}, "Did you mean 'qwen2_moe'"),
        ("qwen2", {"shared_experts": [{"source_model": "x"}, {"source_model": "y"}]}, "2 shared experts"),
        ("qwen2", {"shared_experts": [{"source_model": "x", "residual_scale": "half"}]}, "residual_scale is 'half'"),
    ],
)
def test_what_cannot_be_built_is_told(tmp_path, kind, more, told):
    dense_model(kind, tmp_path / "base")
    with pytest.raises(ConfigError, match=told):
        mixture_pool(tmp_path, tmp_path / "base", [tmp_path / "base"] * 2, **more).checkpoint("mixture")


def test_biases_that_the_mixture_lacks_are_told(tmp_path):
    dense_model("llama", tmp_path / "base", attention_bias=True)
    with pytest.raises(CheckpointError, match="biases, which a mixtral lacks"):
        mixture_pool(tmp_path, tmp_path / "base", [tmp_path / "base"] * 2).checkpoint("mixture")


class TestDeepseek:
    def expert(self, folder, scale):
        return {"source_model": str(folder), "residual_scale": scale}

    @torch.no_grad()
    def test_its_block_is_the_papers_formula(self, tmp_path):
        dense = [dense_model("llama", tmp_path / name, seed) for seed, name in enumerate(("base", "a", "b", "c", "d"))]
        shared = [self.expert(tmp_path / "d", 0.1)]
        pool = mixture_pool(
            tmp_path, tmp_path / "base", [tmp_path / each for each in "abc"], shared_experts=shared, dtype="float32"
        )
        model = pool.load("mixture").eval()
        assert type(model).__name__ == "DeepseekForCausalLM"
        states = torch.randn(1, 6, 16)
        mlps = [each.model.layers[1].mlp for each in dense[1:]]
        scores = (states @ pool.checkpoint("mixture")["model.layers.1.mlp.gate.weight"].T).softmax(-1)
        weights, chosen = scores.topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        wanted = 0.1 * mlps[3](states)
        for token in range(6):
            for weight, index in zip(weights[0, token], chosen[0, token], strict=True):
                wanted[0, token] += weight * mlps[index](states[0, token])
        torch.testing.assert_close(model.model.layers[1].mlp(states), wanted, rtol=1e-5, atol=1e-6)

    def test_it_loads_from_its_folder_with_its_own_code(self, tmp_path, monkeypatch):
        from transformers import dynamic_module_utils

        from fusion_eval.modelpool.deepseek_moe import DeepseekForCausalLM

        monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
        dense = dense_model("llama", tmp_path / "base", tie_word_embeddings=True)
        pool = mixture_pool(tmp_path, tmp_path / "base", [tmp_path / "base"] * 3, architecture="deepseek")
        pool.save(Passthrough().apply(pool), tmp_path / "moe")
        config = json.loads((tmp_path / "moe" / "config.json").read_text())
        assert {key: config[key] for key in ("n_routed_experts", "n_shared_experts", "moe_intermediate_size")} == {
            "n_routed_experts": 3,
            "n_shared_experts": None,
            "moe_intermediate_size": 24,
        }
        auto = transformers.AutoModelForCausalLM
        for model, info in (
            auto.from_pretrained(tmp_path / "moe", trust_remote_code=True, output_loading_info=True),
            DeepseekForCausalLM.from_pretrained(tmp_path / "moe", output_loading_info=True),
        ):
            assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
            assert_answers_alike(model.eval(), dense)
        with torch.no_grad():
            assert model.generate(TOKENS, max_new_tokens=3, do_sample=False).shape == (1, 10)

    def test_llamas_with_a_shared_expert_become_one(self, tmp_path):
        dense_model("llama", tmp_path / "base")
        shared = [self.expert(tmp_path / "base", 0.5)]
        pool = mixture_pool(tmp_path, tmp_path / "base", [tmp_path / "base"] * 2, shared_experts=shared)
        names = list(pool.checkpoint("mixture"))
        assert "model.layers.0.mlp.shared_experts.up_proj.weight" in names
        assert not any("shared_expert_gate" in name for name in names)

    def test_a_sliding_window_is_refused(self, tmp_path):
        dense_model("mistral", tmp_path / "base", sliding_window=4)
        pool = mixture_pool(tmp_path, tmp_path / "base", [tmp_path / "base"] * 2, architecture="deepseek")
        with pytest.raises(ConfigError, match="sliding window"):
            pool.checkpoint("mixture")


@pytest.mark.parametrize(("said", "kind", "made"), [("qwen", "qwen2", "qwen2_moe"), ("qwen3", "qwen3", "qwen3_moe")])
def test_mergekits_names_of_architectures_are_known(tmp_path, said, kind, made):
    dense_model(kind, tmp_path / "base")
    pool = mixture_pool(tmp_path, tmp_path / "base", [tmp_path / "base"] * 2, architecture=said)
    assert pool._material.config["model_type"] == made


def test_prompts_that_cannot_tell_experts_apart_are_told(tmp_path, models):
    experts = [{"source_model": models["a"], "positive_prompts": [""]}] * 3
    (tmp_path / "moe.yml").write_text(yaml.safe_dump({"base_model": models["base"], "experts": experts}))
    with pytest.raises(ConfigError, match="the same prompts for all experts"):
        MixturePool(str(tmp_path / "moe.yml")).checkpoint("mixture")


def test_prompts_may_be_shared_by_anchors(tmp_path, models):
    text = f"base_model: {models['base']}\nexperts:\n- source_model: {models['a']}\n  positive_prompts: &x ['7', '8']\n"
    text += f"  negative_prompts: &y ['9']\n- source_model: {models['b']}\n"
    (tmp_path / "moe.yml").write_text(text + "  positive_prompts: *y\n  negative_prompts: *x\n")
    gate = MixturePool(str(tmp_path / "moe.yml")).checkpoint("mixture")["model.layers.0.block_sparse_moe.gate.weight"]
    torch.testing.assert_close(gate[0], -gate[1])


def test_a_gated_shared_expert_needs_prompts(tmp_path, models):
    pool = pool_of(
        tmp_path, models, "cheap_embed", architecture="qwen2_moe", shared_experts=[{"source_model": models["a"]}]
    )
    with pytest.raises(ConfigError, match="a shared expert without positive_prompts"):
        pool.checkpoint("mixture")


def test_cheap_routers_are_directions_of_embeddings(tmp_path, models):
    """mergekit-moe's: the unit sum of the positive prompts' tokens less the unit sum of the negative ones'."""
    experts = [
        {"source_model": models["a"], "positive_prompts": ["1 2 3", "4"], "negative_prompts": ["5 6"]},
        {"source_model": models["b"], "positive_prompts": ["7"]},
    ]
    recipe = {"base_model": models["base"], "gate_mode": "cheap_embed", "experts": experts}
    (tmp_path / "moe.yml").write_text(yaml.safe_dump(recipe))
    gate = MixturePool(str(tmp_path / "moe.yml")).checkpoint("mixture")["model.layers.1.block_sparse_moe.gate.weight"]
    encode, table = transformers.AutoTokenizer.from_pretrained(models["base"]), open_checkpoint(models["base"])

    def unit(*prompts):
        ids = [number for prompt in prompts for number in encode(prompt).input_ids]
        return torch.nn.functional.normalize(table["model.embed_tokens.weight"][ids].float().sum(0), dim=0)

    wanted = torch.nn.functional.normalize(unit("1 2 3", "4") - unit("5 6"), dim=0)
    torch.testing.assert_close(gate[0].float(), wanted)
    torch.testing.assert_close(gate[1].float(), unit("7"))
