"""A text-only fine-tune as part of a vision-language model: where its weights go, and when that is refused."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")

from fusion_eval.errors import CheckpointError, FusionEvalError  # noqa: E402
from fusion_eval.merge.engine import MergedCheckpoint  # noqa: E402
from fusion_eval.modelpool import HuggingFacePool  # noqa: E402
from tests.tiny.vision_language import PLAIN, tiny_llava, tiny_qwen2_vl, tiny_text  # noqa: E402

AUTO = "AutoModelForImageTextToText"
MAKERS = {"llava": (tiny_llava, "llama"), "qwen2_vl": (tiny_qwen2_vl, "qwen2")}
MARKS = {"llava": ("<image>",), "qwen2_vl": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")}


@pytest.fixture(autouse=True)
def quiet():
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def family(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    make, text = MAKERS[request.param]
    for name, variant in (("base", 0), ("seen", 1)):
        make(root / name, variant)
    tiny_text(root / "math", text, 2)
    tiny_text(root / "same", text, 3, specials=PLAIN + MARKS[request.param])
    return root


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return tiny_llava(tmp_path_factory.mktemp("llava") / "base")


def pool_of(root, experts, base="base", **kwargs):
    return HuggingFacePool(
        None if base is None else str(root / base), {n: str(root / n) for n in experts}, auto_class=AUTO, **kwargs
    )


def mean(group):
    return torch.stack(group.values()).mean(0)


def loaded(folder, auto=AUTO):
    return getattr(transformers, auto).from_pretrained(folder).state_dict()


def test_experts_of_one_architecture_merge_and_load(family, tmp_path):
    pool = pool_of(family, ["seen"])
    assert pool.faults() == []
    pool.save(MergedCheckpoint(lambda g: (g.base + g.experts[0]) / 2, pool.aligned()), tmp_path / "merged")
    merged, base, seen = loaded(tmp_path / "merged"), loaded(family / "base"), loaded(family / "seen")
    assert all(torch.equal(merged[name], (base[name] + seen[name]) / 2) for name in base)
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "merged")
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "red?"}]}]
    text = processor.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    inputs = processor(text=[text], images=[[Image.new("RGB", (28, 28), "red")]], return_tensors="pt")
    model = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(
        model(**inputs).logits, pool.build(load_file(tmp_path / "merged" / "model.safetensors"))(**inputs).logits
    )


def test_a_text_only_expert_takes_its_place(family):
    pool = pool_of(family, ["seen", "same"])
    assert pool.faults() == []
    whole, text, base = (
        pool.load("same").state_dict(),
        loaded(family / "same", "AutoModelForCausalLM"),
        loaded(family / "base"),
    )
    place = {
        name: name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name for name in text
    }
    assert all(torch.equal(whole[place[name]], text[name]) for name in text)
    others = set(base) - set(place.values())
    assert others
    assert all(torch.equal(whole[name], base[name]) for name in others)
    note = next(n for n in pool.notes() if n.startswith("model 'same': "))
    assert f"{len(text)} tensors are those of model.language_model ('model.' becomes 'model.language_model.')" in note
    assert f"the other {len(others)} are those of 'base': model." in note
    assert "vocabulary" not in note


def test_the_mapping_is_logged(family, caplog):
    caplog.set_level("INFO", logger="fusion_eval.modelpool.huggingface")
    pool_of(family, ["same"]).faults()
    assert "model 'same': " in caplog.text
    assert "'model.' becomes 'model.language_model.'" in caplog.text


def test_rows_that_a_smaller_vocabulary_lacks_are_the_bases(family):
    pool = pool_of(family, ["math"])
    whole, text, base = (
        pool.load("math").state_dict(),
        loaded(family / "math", "AutoModelForCausalLM"),
        loaded(family / "base"),
    )
    rows, all_rows = len(text["lm_head.weight"]), len(base["lm_head.weight"])
    for name, own in (
        ("lm_head.weight", "lm_head.weight"),
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
    ):
        assert torch.equal(whole[name][:rows], text[own])
        assert torch.equal(whole[name][rows:], base[name][rows:])
    assert f"{rows} of {all_rows} rows of the vocabulary are its own" in " ".join(pool.notes())


def test_the_saved_merge_of_both_kinds_loads(family, tmp_path):
    pool = pool_of(family, ["seen", "math"])
    pool.save(MergedCheckpoint(mean, pool.aligned()), tmp_path / "merged")
    merged, seen, math = (
        loaded(tmp_path / "merged"),
        loaded(family / "seen"),
        loaded(family / "math", "AutoModelForCausalLM"),
    )
    base, name = loaded(family / "base"), "layers.1.mlp.up_proj.weight"
    place = f"model.language_model.{name}"
    torch.testing.assert_close(merged[place], (seen[place] + math[f"model.{name}"]) / 2)
    tower = next(n for n in base if "language_model" not in n and n != "lm_head.weight")
    torch.testing.assert_close(merged[tower], (base[tower] + seen[tower]) / 2)
    transformers.AutoProcessor.from_pretrained(tmp_path / "merged")


def test_a_text_base_needs_to_be_told_and_the_rest_comes_from_the_whole_model(family):
    """base + (seen - base) + (math - base) with the language model that both descend from as base."""
    pool = HuggingFacePool(
        {"path": str(family / "same"), "into": "language_model"},
        {"seen": str(family / "seen"), "math": {"path": str(family / "math"), "into": "language_model"}},
        auto_class=AUTO,
    )
    assert pool.faults() == []
    seen, base = loaded(family / "seen"), pool.load("base").state_dict()
    tower = next(n for n in seen if "language_model" not in n and n != "lm_head.weight")
    assert torch.equal(base[tower], seen[tower])
    assert not torch.equal(base["lm_head.weight"], seen["lm_head.weight"])


def test_tokens_in_another_order_are_found_by_name(llava, tmp_path):
    folder = tiny_text(tmp_path / "text", specials=("<pad>", "<|other|>", "<|im_end|>", "<|im_start|>"))
    pool = HuggingFacePool(str(llava), {"text": str(folder)}, auto_class=AUTO)
    whole, text, base = pool.load("text").state_dict(), loaded(folder, "AutoModelForCausalLM"), loaded(llava)
    ids = {t: transformers.AutoTokenizer.from_pretrained(f).get_vocab() for t, f in (("vlm", llava), ("text", folder))}
    for token, own in ids["vlm"].items():
        expected = text["lm_head.weight"][ids["text"][token]] if token in ids["text"] else base["lm_head.weight"][own]
        assert torch.equal(whole["lm_head.weight"][own], expected), token


def test_a_tied_head_is_the_embedding(llava, tmp_path):
    folder = tiny_text(tmp_path / "tied", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    whole = HuggingFacePool(str(llava), {"tied": str(folder)}, auto_class=AUTO).load("tied").state_dict()
    text = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(whole["lm_head.weight"][: len(text)], text)


@pytest.mark.parametrize(("config", "found"), [
    ({"hidden_size": 64}, "have other shapes"),
    ({"num_hidden_layers": 3}, "has 1 layers more than model.language_model"),
    ({"num_hidden_layers": 1}, "lacks 9 tensors of model.language_model"),
    ({"intermediate_size": 96}, "tensors have other shapes: model.layers.0.mlp.down_proj.weight is (32, 96)"),
    ({"specials": ("<pad>", "a", "<|im_end|>")}, None),
])  # fmt: skip
def test_another_architecture_is_refused(llava, tmp_path, config, found):
    folder = tiny_text(tmp_path / "text", **config)
    faults = HuggingFacePool(str(llava), {"text": str(folder)}, auto_class=AUTO).faults()
    if found is None:
        assert faults == []
    else:
        assert found in str(faults[0].found)
        assert faults[0].where.startswith("modelpool.experts.text")


def test_two_places_are_refused_until_one_is_named(llava, tmp_path):
    from fusion_eval.merge.checkpoint import StateDictCheckpoint, TensorSpec
    from fusion_eval.modelpool.part_match import match_part

    layer = {f"layers.{n}.mlp.up.weight": torch.zeros(2, 2) for n in range(2)}
    wanted = {f"{part}.{n}": TensorSpec((2, 2), torch.float32) for part in ("thinker", "talker") for n in layer}
    part = StateDictCheckpoint({f"model.{n}": t for n, t in layer.items()})
    with pytest.raises(CheckpointError, match="match talker and thinker equally well") as error:
        match_part(wanted, part)
    assert "Say which: into: talker" in str(error.value)
    assert match_part(wanted, part, into="thinker").model_prefix == "thinker."
    with pytest.raises(CheckpointError, match="no submodule 'hearer'"):
        match_part(wanted, part, into="hearer")


def test_a_damaged_whole_model_is_no_part(llava, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(llava, folder)
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "vision_tower" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    faults = HuggingFacePool(str(llava), {"x": str(folder)}, auto_class=AUTO).faults()
    assert faults
    assert "lacks" in faults[0].found


def test_a_stranger_is_refused(llava, tmp_path):
    from tests.tiny import tiny_bert

    folder = tiny_bert(tmp_path / "bert")
    faults = HuggingFacePool(str(llava), {"bert": str(folder)}, auto_class=AUTO).faults()
    assert faults
    assert faults[0].where.startswith("modelpool.experts.bert")
    with pytest.raises(FusionEvalError):
        HuggingFacePool(str(llava), {"bert": str(folder)}, auto_class=AUTO).load("bert")


def test_only_parts_are_refused(family):
    pool = HuggingFacePool(None, {"math": {"path": str(family / "math"), "into": "language_model"}}, auto_class=AUTO)
    assert "every model has 'into'" in pool.faults()[0].found


def test_kinship_is_that_of_the_part(llava, tmp_path):
    folder = tiny_text(tmp_path / "text")
    tensors = load_file(folder / "model.safetensors")
    strange = {n: torch.randn(t.shape, generator=torch.Generator().manual_seed(9)) for n, t in tensors.items()}
    save_file(strange, folder / "model.safetensors", {"format": "pt"})
    notes = HuggingFacePool(str(llava), {"text": str(folder)}, auto_class=AUTO).notes()
    assert "model 'text' does not descend from 'base'" in notes[0]


def test_into_is_a_key_of_a_model(llava, tmp_path):
    folder = tiny_text(tmp_path / "text")
    (folder / "config.json").unlink()
    pool = HuggingFacePool(str(llava), {"text": {"path": str(folder), "into": "language_model"}}, auto_class=AUTO)
    assert pool.faults() == []
    assert json.loads((llava / "config.json").read_text())["model_type"] == "llava"
