from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")

from fusion_eval.errors import AlignmentError, ConfigError  # noqa: E402
from fusion_eval.merge.engine import MergedCheckpoint  # noqa: E402
from fusion_eval.merge.files import open_checkpoint  # noqa: E402
from fusion_eval.modelpool import HuggingFacePool  # noqa: E402
from tests.tiny import tiny_bert, tiny_clip, tiny_llama  # noqa: E402


@pytest.fixture(autouse=True)
def quiet():
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="module")
def berts(tmp_path_factory):
    root = tmp_path_factory.mktemp("berts")
    return {name: str(tiny_bert(root / name, variant)) for variant, name in enumerate(("base", "a", "b"))}


@pytest.fixture(scope="module")
def llamas(tmp_path_factory):
    root = tmp_path_factory.mktemp("llamas")
    return {name: str(tiny_llama(root / name, variant, tied=True)) for variant, name in enumerate(("base", "a", "b"))}


def pool_of(folders, auto_class, **kwargs):
    return HuggingFacePool(folders["base"], {n: folders[n] for n in ("a", "b")}, auto_class=auto_class, **kwargs)


def mean(group):
    return torch.stack(group.values()).mean(0)


def assert_same_weights(model, reference):
    found, expected = model.state_dict(), reference.state_dict()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    buffers = dict(model.named_buffers())
    for name, tensor in reference.named_buffers():
        assert torch.equal(buffers[name], tensor), name


TEXT = torch.tensor([[2, 9, 8, 7, 3], [2, 5, 6, 7, 3]])


@pytest.mark.parametrize(
    "auto_class", ["AutoModelForSequenceClassification", "AutoModel", "BertForSequenceClassification"]
)
def test_models_equal_from_pretrained(berts, auto_class):
    pool = pool_of(berts, auto_class)
    assert pool.faults() == []
    for name in pool.names:
        assert_same_weights(pool.load(name), getattr(transformers, auto_class).from_pretrained(berts[name]))
    output = pool.load("a")(TEXT)
    expected = getattr(transformers, auto_class).from_pretrained(berts["a"]).eval()(TEXT)
    torch.testing.assert_close(output[0], expected[0])


def test_a_skeleton_takes_no_memory(berts):
    assert all(parameter.is_meta for parameter in pool_of(berts, "AutoModel").skeleton().parameters())


def test_weights_left_out_of_the_class_are_noted(berts):
    pool = pool_of(berts, "AutoModel")
    pool.faults()
    assert "model 'a': 2 tensors are no part of AutoModel and are left out: classifier.bias" in " ".join(pool.notes())
    assert pool_of(berts, "AutoModelForSequenceClassification").notes() == []


def test_a_saved_merge_loads_by_from_pretrained_with_tokenizer_and_generation_settings(llamas, tmp_path):
    pool = pool_of(llamas, "AutoModelForCausalLM")
    assert pool.faults() == []
    merged = MergedCheckpoint(mean, pool.aligned())
    folder = tmp_path / "merged"
    pool.save(merged, folder)
    ours = pool.build(merged)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert_same_weights(ours, theirs)
    assert ours.lm_head.weight is ours.model.embed_tokens.weight  # tied, and stored once
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert (
        transformers.AutoTokenizer.from_pretrained(folder)("ab")["input_ids"]
        == (transformers.AutoTokenizer.from_pretrained(llamas["base"])("ab")["input_ids"])
    )
    assert theirs.generation_config.eos_token_id == ours.generation_config.eos_token_id == 2
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "a merge of a, b" in card
    again = pool.build(open_checkpoint(folder))
    assert_same_weights(again, theirs)


def test_a_vision_tower_is_found_in_a_whole_clip_and_saved_under_its_old_names(tmp_path):
    base = tiny_clip(tmp_path / "base")
    tower = transformers.CLIPVisionModel.from_pretrained(tiny_clip(tmp_path / "whole", 1))
    tower.save_pretrained(tmp_path / "a")
    state = load_file(tmp_path / "a" / "model.safetensors")
    # as transformers 4 wrote the published experts
    old = {name if name.startswith("vision_model.") else f"vision_model.{name}": state[name] for name in state}
    save_file(old, tmp_path / "a" / "model.safetensors", {"format": "pt"})
    pool = HuggingFacePool(str(base), {"a": str(tmp_path / "a")}, auto_class="CLIPVisionModel")
    assert pool.faults() == []
    assert_same_weights(pool.load("base"), transformers.CLIPVisionModel.from_pretrained(base))
    assert_same_weights(pool.load("a"), tower)
    merged = MergedCheckpoint(lambda group: group.deltas()[0] + group.required_base(), pool.aligned())
    pool.save(merged, tmp_path / "merged")
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    assert stored.keys() == old.keys()
    assert_same_weights(transformers.CLIPVisionModel.from_pretrained(tmp_path / "merged"), pool.build(merged))
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["model_type"] == "clip_vision_model"
    assert (tmp_path / "merged" / "preprocessor_config.json").is_file() or (
        tmp_path / "merged" / "processor_config.json"
    ).is_file()


def test_an_encoder_without_prefix_is_a_base_of_classifiers(berts, tmp_path):
    transformers.BertModel.from_pretrained(berts["base"]).save_pretrained(tmp_path / "encoder")
    pool = HuggingFacePool(
        str(tmp_path / "encoder"),
        {"a": berts["a"]},
        auto_class="AutoModelForSequenceClassification",
        head_module="classifier",
    )
    assert pool.faults() == []
    assert "bert.embeddings.word_embeddings.weight" in pool.checkpoint("base")


def test_experts_keep_their_own_heads_of_other_sizes(berts, tmp_path):
    three = str(tiny_bert(tmp_path / "three", 5, num_labels=3))
    pool = HuggingFacePool(
        berts["base"],
        {"two": berts["a"], "three": three},
        auto_class="AutoModelForSequenceClassification",
        head_module="classifier",
    )
    assert pool.faults() == []
    for task, folder in (("two", berts["a"]), ("three", three)):
        expected = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()(TEXT).logits
        torch.testing.assert_close(pool.head(task)(pool.load(task)(TEXT)), expected)
        assert pool.head(task).num_classes == expected.shape[1]
    without = HuggingFacePool(berts["base"], {"three": three}, auto_class="AutoModelForSequenceClassification").faults()
    assert "classifier.weight is (2, 32) in 'base' and (3, 32) here" in str(without[0])


def test_the_last_tokens_score_of_a_decoder_is_a_head(tmp_path):
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, vocab_size=30, n_positions=12, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    for seed, name in enumerate(("base", "a")):
        torch.manual_seed(seed)
        transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path / name)
    pool = HuggingFacePool(
        str(tmp_path / "base"),
        {"a": str(tmp_path / "a")},
        auto_class="AutoModelForSequenceClassification",
        head_module="score",
    )
    tokens = torch.tensor([[5, 6, 7, 0, 0], [5, 6, 7, 8, 9]])
    expected = transformers.GPT2ForSequenceClassification.from_pretrained(tmp_path / "a").eval()(tokens).logits
    torch.testing.assert_close(pool.head("a")(pool.load("a")(tokens).logits), expected)


def test_models_mapping_and_foreign_nodes_are_accepted(berts):
    node = {"_target_": "transformers.AutoModel.from_pretrained", "pretrained_model_name_or_path": berts["a"]}
    pool = HuggingFacePool(models={"_pretrained_": berts["base"], "a": node})
    assert pool.names == ("base", "a")
    assert pool.source("a").path == berts["a"]


def test_a_model_runs_in_the_chosen_dtype(berts):
    model = pool_of(berts, "AutoModel", dtype="bfloat16").load("a")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def faults_of(berts, arguments):
    """The wording of what is wrong, whether the constructor finds it or the check."""
    arguments = {"experts": {"a": berts["a"]}, **arguments}
    try:
        return str(ConfigError(*HuggingFacePool(berts["base"], **arguments).faults()))
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"auto_class": "AutoModelForCausalML"}, "modelpool.auto_class: no class 'AutoModelForCausalML'"),
        ({"auto_class": "AutoModelForCausalML"}, "Did you mean 'AutoModelForCausalLM'"),
        ({"auto_class": "AutoModelForImageClassification"}, "modelpool.auto_class: Unrecognized configuration class"),
        ({"dtype": "float99"}, "modelpool.dtype: 'float99'; expected float32"),
        (
            {"experts": {"a": {"adaptor": "x"}}},
            "modelpool.experts.a: no key 'adaptor'; expected some of path, revision",
        ),
        ({"experts": {"a": {"revision": "x"}}}, "modelpool.experts.a: no path; expected path, or adapter"),
        ({"experts": {"a": 3}}, "modelpool.experts.a: a int; expected a folder"),
        ({"experts": {"a": "./no/such"}}, "modelpool.experts.a (no/such): no such folder"),
        ({"experts": {"a": "owner/model"}}, "modelpool.experts.a (owner/model): no local folder, and not in the hub's"),
        ({"experts": {"a": "owner/model"}}, "Unset HF_HUB_OFFLINE, or give the path of a local copy."),
    ],
)
def test_faults_are_found_before_work(berts, arguments, message, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = faults_of(berts, arguments)
    assert message in found
    assert "faults:" not in found  # one fault, said once


def test_configs_that_cannot_be_used_are_named(berts, tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(berts["base"], folder)
    config = json.loads((folder / "config.json").read_text())
    pool = HuggingFacePool(str(folder), {"a": berts["a"]})
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    assert len(pool.faults()) == 1
    assert "config.json): a quantised model (gptq); expected weights in a floating dtype" in str(pool.faults()[0])
    (folder / "config.json").write_text("{")
    assert "not a config that AutoConfig reads" in str(pool.faults()[0])
    (folder / "config.json").unlink()
    assert "config.json): no such file; expected the config.json of a Hugging Face model" in str(pool.faults()[0])


def test_weights_of_another_family_are_named(berts, llamas):
    pool = HuggingFacePool(berts["base"], {"a": llamas["a"]})
    assert "none of its 20 tensors is a weight of the pool's models" in str(pool.faults()[0])


def test_a_truncated_expert_is_named(berts, tmp_path):
    shutil.copytree(berts["a"], tmp_path / "a")
    weights = tmp_path / "a" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (fault,) = HuggingFacePool(berts["base"], {"a": str(tmp_path / "a")}).faults()
    assert str(fault).startswith("modelpool.experts.a (")
    assert "where its header promises" in str(fault)


def test_a_merge_that_lacks_weights_is_not_built(berts):
    pool = pool_of(berts, "AutoModel")
    state = dict(pool.checkpoint("a"))
    state["embeddings.unknown"] = state.pop("embeddings.word_embeddings.weight")
    with pytest.raises(AlignmentError, match="lacks 1 of"):
        pool.build(state)


def hub_cache(cache, repo, folder, commit="0123456789abcdef0123456789abcdef01234567", ref="main"):
    """A model in the layout of the hub's cache, as a download leaves it."""
    place = cache / f"models--{repo.replace('/', '--')}"
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / ref).write_text(commit)
    shutil.copytree(folder, place / "snapshots" / commit)
    return commit


def test_hub_ids_are_read_from_the_cache_at_their_revision(berts, tmp_path, monkeypatch):
    from fusion_eval.modelpool import hub

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    hub._snapshot.cache_clear()
    commit = hub_cache(tmp_path, "owner/base", berts["base"])
    pinned = "f" * 40
    hub_cache(tmp_path, "owner/expert", berts["a"])
    hub_cache(tmp_path, "owner/expert", berts["b"], pinned, "v2")
    pool = HuggingFacePool(
        "owner/base",
        {"a": "owner/expert", "b": {"path": "owner/expert", "revision": pinned}},
        auto_class="AutoModelForSequenceClassification",
    )
    assert pool.faults() == []
    assert commit in pool.checkpoint("base").source
    assert pinned in pool.checkpoint("b").source
    assert_same_weights(pool.load("b"), transformers.BertForSequenceClassification.from_pretrained(berts["b"]))
    lost = HuggingFacePool("owner/base", {"a": {"path": "owner/expert", "revision": "v3"}})
    assert "not in the hub's cache at revision 'v3'" in str(lost.faults()[0])
    hub._snapshot.cache_clear()


def lora(folder, base, path, classifier=None):
    """A PEFT adapter of rank 2 for one matrix of a BERT, perhaps with a head of its own, and what it adds."""
    folder.mkdir()
    torch.manual_seed(7)
    down, up = torch.randn(2, 32), torch.randn(32, 2)
    tensors = {
        f"base_model.model.{path}.lora_A.weight": down,
        f"base_model.model.{path}.lora_B.weight": up,
    }
    if classifier is not None:
        tensors["base_model.model.classifier.weight"] = classifier
        tensors["base_model.model.classifier.bias"] = torch.ones(len(classifier))
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "base_model_name_or_path": base,
        "target_modules": ["query"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return 2 * up @ down


QUERY = "bert.encoder.layer.0.attention.self.query"


def test_an_expert_may_be_the_base_with_an_adapter(berts, tmp_path):
    update = lora(tmp_path / "lora", berts["base"], QUERY)
    pool = HuggingFacePool(
        berts["base"], {"a": {"adapter": str(tmp_path / "lora")}}, auto_class="AutoModelForSequenceClassification"
    )
    assert pool.faults() == []
    base, expert = pool.checkpoint("base"), pool.checkpoint("a")
    torch.testing.assert_close(expert[f"{QUERY}.weight"], base[f"{QUERY}.weight"] + update)
    rest = [name for name in base if name != f"{QUERY}.weight"]
    assert all(torch.equal(base[name], expert[name]) for name in rest)
    encoder = HuggingFacePool(berts["base"], {"a": {"adapter": str(tmp_path / "lora")}}, auto_class="AutoModel")
    name = f"{QUERY.removeprefix('bert.')}.weight"  # the model has other names than the adapter
    torch.testing.assert_close(encoder.checkpoint("a")[name] - encoder.checkpoint("base")[name], update)


def test_an_adapter_brings_its_own_head(berts, tmp_path):
    transformers.BertModel.from_pretrained(berts["base"]).save_pretrained(tmp_path / "encoder")
    classifier = torch.randn(5, 32)
    lora(tmp_path / "five", "encoder", QUERY, classifier)
    lora(tmp_path / "none", "encoder", QUERY)
    pool = HuggingFacePool(
        str(tmp_path / "encoder"),
        {"five": {"adapter": str(tmp_path / "five")}, "none": {"adapter": str(tmp_path / "none")}},
        auto_class="AutoModelForSequenceClassification",
        config={"num_labels": 5},
        head_module="classifier",
    )
    torch.testing.assert_close(pool.head("five").weight, classifier)
    (fault,) = pool.faults()
    assert "modelpool.experts.none" in fault.where
    assert "brings no classifier.weight, classifier.bias, which the base lacks too" in str(fault)


def test_a_missing_package_is_told_with_its_install_line(berts, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    (fault,) = HuggingFacePool(berts["base"], {"a": berts["a"]}).faults()
    assert str(fault).endswith(
        """the package 'transformers' is not installed. Run: pip install "fusion_eval[huggingface]\""""
    )


def test_a_mixture_whose_file_has_the_experts_apart_is_merged_apart_and_fused_when_built(tmp_path):
    config = transformers.MixtralConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=40, num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    models = {}
    for seed, name in enumerate(("base", "a")):
        torch.manual_seed(seed)
        models[name] = transformers.MixtralForCausalLM(config)
        models[name].save_pretrained(tmp_path / name)
    if not any("experts.0.w1" in name for name in load_file(tmp_path / "a" / "model.safetensors")):
        pytest.skip("this version of transformers keeps experts together in files")
    pool = HuggingFacePool(str(tmp_path / "base"), {"a": str(tmp_path / "a")}, auto_class="AutoModelForCausalLM")
    assert pool.faults() == []
    assert_same_weights(pool.load("a"), transformers.MixtralForCausalLM.from_pretrained(tmp_path / "a"))
    merged = MergedCheckpoint(lambda group: (group.required_base() + group.values()[0]) / 2, pool.aligned())
    built = pool.build(merged)
    expected = (models["base"].model.norm.weight + models["a"].model.norm.weight) / 2
    torch.testing.assert_close(built.model.norm.weight, expected)
    pool.save(merged, tmp_path / "merged")
    assert_same_weights(transformers.MixtralForCausalLM.from_pretrained(tmp_path / "merged"), built)
    state = dict(merged)
    del state["model.norm.weight"]
    with pytest.raises(AlignmentError, match=r"1 missing weights: model\.norm\.weight"):
        pool.build(state)


def test_tied_embeddings_of_an_encoder_and_decoder_are_read_once(tmp_path):
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    for seed, name in enumerate(("base", "a")):
        torch.manual_seed(seed)
        transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path / name)
    pool = HuggingFacePool(
        str(tmp_path / "base"), ["a"], pattern=str(tmp_path / "{task}"), auto_class="AutoModelForSeq2SeqLM"
    )
    assert pool.faults() == []
    assert_same_weights(pool.load("a"), transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "a"))
    merged = MergedCheckpoint(lambda group: (group.required_base() + group.values()[0]) / 2, pool.aligned())
    pool.save(merged, tmp_path / "merged")
    assert_same_weights(
        transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "merged"), pool.build(merged)
    )


def test_a_decoders_file_without_prefix_and_with_masks_is_a_base_of_classifiers(tmp_path):
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=30, n_positions=12, pad_token_id=0,
                                     bos_token_id=1, eos_token_id=2)  # fmt: skip
    torch.manual_seed(0)
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path / "a")
    transformers.GPT2Model(config).save_pretrained(tmp_path / "base")
    state = load_file(tmp_path / "base" / "model.safetensors")
    state["h.0.attn.bias"] = torch.ones(1, 1, 12, 12)  # as the first GPT-2 files have it
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "base" / "model.safetensors", {"format": "pt"})
    pool = HuggingFacePool(
        str(tmp_path / "base"),
        {"a": str(tmp_path / "a")},
        auto_class="AutoModelForSequenceClassification",
        head_module="score",
    )
    assert pool.faults() == []
    assert "transformer.wte.weight" in pool.checkpoint("base")
