from __future__ import annotations

import json

import pytest
import torch
import yaml

transformers = pytest.importorskip("transformers")

from fusion_eval.errors import ConfigError  # noqa: E402
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
