from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from tests.tiny import tiny_bert, tiny_clip, tiny_convnet, tiny_llama  # noqa: E402


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    return tiny_clip(tmp_path_factory.mktemp("clip"))


def test_clip_scores_images_against_texts(clip_folder):
    from PIL import Image

    model = transformers.CLIPModel.from_pretrained(clip_folder)
    processor = transformers.CLIPProcessor.from_pretrained(clip_folder)
    images = [Image.new("RGB", (20, 30), colour) for colour in ("red", "white", "black")]
    batch = processor(text=["a photo of a cat", "a dog."], images=images, return_tensors="pt", padding=True)
    assert batch["pixel_values"].shape == (3, 3, 16, 16)
    assert (
        processor.tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True).replace(" ", "") == "aphotoofacat"
    )
    with torch.inference_mode():
        logits = model(**batch).logits_per_image
    assert logits.shape == (3, 2)
    assert logits.isfinite().all()
    assert logits.std() > 0


@pytest.mark.parametrize(
    ("name", "prefixes"),
    [
        ("AutoModel", ("",)),
        ("CLIPVisionModelWithProjection", ("",)),
        ("CLIPVisionModel", ("", "vision_model.")),  # transformers 5 drops the tower's prefix in memory
        ("CLIPTextModel", ("", "text_model.")),
    ],
)
def test_the_parts_of_clip_load_from_the_same_folder(clip_folder, name, prefixes):
    whole = transformers.CLIPModel.from_pretrained(clip_folder).state_dict()
    part, info = getattr(transformers, name).from_pretrained(clip_folder, output_loading_info=True)
    assert not info["missing_keys"]
    for key, value in part.state_dict().items():
        stored = [whole[prefix + key] for prefix in prefixes if prefix + key in whole]
        assert len(stored) == 1, key
        assert torch.equal(value, stored[0]), key


def test_bert_classifies_text(tmp_path):
    folder = tiny_bert(tmp_path / "bert", num_labels=3)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(["a good film", "bad!"], padding=True, truncation=True, return_tensors="pt")
    assert batch["input_ids"][0, 0] == tokenizer.cls_token_id
    assert not (batch["input_ids"] == tokenizer.unk_token_id).any()
    with torch.inference_mode():
        assert model(**batch).logits.shape == (2, 3)


@pytest.mark.parametrize("tied", [False, True])
def test_llama_continues_text(tmp_path, tied):
    folder = tiny_llama(tmp_path / "llama", tied=tied)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "Grüße, 1 + 1 = "
    batch = tokenizer(text, return_tensors="pt")
    assert tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True) == text
    out = model.generate(**batch, max_new_tokens=4, do_sample=False)
    assert out.shape[1] <= batch["input_ids"].shape[1] + 4


def test_variants_are_reproducible_and_near_the_base():
    base, again, other = tiny_convnet(), tiny_convnet(), tiny_convnet(variant=1)
    assert torch.equal(weights(base), weights(again))
    drift = (weights(other) - weights(base)).norm() / weights(base).norm()
    assert 0.01 < drift < 0.1


def test_the_convnet_has_statistics_of_its_own():
    model = tiny_convnet(channels=1, num_classes=5)
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 5)
    assert not torch.equal(model.bn1.running_mean, torch.zeros(8))
    assert model.bn1.num_batches_tracked == 3


def test_making_a_model_leaves_the_callers_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    tiny_convnet(variant=2)
    assert torch.equal(torch.rand(1), expected)


def test_two_variants_of_a_folder_differ_in_weights_only(tmp_path):
    base, other = tiny_bert(tmp_path / "0"), tiny_bert(tmp_path / "1", variant=1)
    names = {path.name for path in base.iterdir()}
    assert names == {path.name for path in other.iterdir()}
    assert (base / "config.json").read_text() == (other / "config.json").read_text()
    assert (base / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
