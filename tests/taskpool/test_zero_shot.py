"""Zero-shot classification by whole models: what transformers itself says about pictures and texts."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

from fusion_eval.errors import ConfigError, EvaluationError  # noqa: E402
from fusion_eval.taskpool import ZeroShotTaskPool  # noqa: E402
from tests.tiny import tiny_clip  # noqa: E402

NAMES = ["red circle", "blue square", "something else"]
PROMPTS = ["a photo of a {}.", "{}"]


def pictures(count=9):
    pixels = torch.randint(0, 256, (count, 20, 24, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return [{"image": Image.fromarray(array.numpy()), "label": index % 3} for index, array in enumerate(pixels)]


def siglip(folder):
    from tests.harness.engine.tiny_vlm import tiny_llava

    tokenizer = tiny_llava()[1].tokenizer
    tokenizer.save_pretrained(folder)
    transformers.SiglipImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": len(tokenizer), "max_position_embeddings": 32, "projection_size": 16}
    config = transformers.SiglipConfig(text_config=text, vision_config={**sizes, "image_size": 16, "patch_size": 8})
    torch.manual_seed(0)
    model = transformers.SiglipModel(config).eval()
    with torch.no_grad():
        model.logit_scale.fill_(2.0)
        model.logit_bias.fill_(-3.0)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("towers")
    return {"clip": str(tiny_clip(root / "clip")), "siglip": siglip(root / "siglip")}


def task_pool(folder, **kwargs):
    return ZeroShotTaskPool(
        {"mine": pictures()}, base_model=folder, classes={"mine": NAMES}, progress=False,
        dataloader_kwargs={"batch_size": 4}, metrics=["accuracy", "loss", "f1"], **kwargs,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_logits_are_those_of_the_model(folders, kind):
    model = transformers.AutoModel.from_pretrained(folders[kind]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[kind])
    images = transformers.AutoImageProcessor.from_pretrained(folders[kind])
    padding = {"padding": "max_length", "max_length": 32} if kind == "siglip" else {"padding": True}
    tokens = tokenizer([f"a photo of a {name}." for name in NAMES], return_tensors="pt", truncation=True, **padding)
    items = pictures()
    pixels = images(images=[item["image"] for item in items], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        mask = tokens["attention_mask"] if kind == "clip" else None
        logits = model(input_ids=tokens["input_ids"], attention_mask=mask, pixel_values=pixels).logits_per_image
    labels = torch.tensor([item["label"] for item in items])
    report = task_pool(folders[kind]).evaluate(model)["mine"]
    assert report["accuracy"] == pytest.approx(float((logits.argmax(-1) == labels).float().mean()))
    assert report["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)


def test_texts_go_through_the_tower_once_for_each_model(folders, monkeypatch):
    model = transformers.AutoModel.from_pretrained(folders["clip"]).eval()
    calls = []
    own = model.get_text_features

    def counted(**tokens):
        calls.append(len(tokens["input_ids"]))
        return own(**tokens)

    monkeypatch.setattr(model, "get_text_features", counted)
    pool = task_pool(folders["clip"], templates={"mine": PROMPTS})
    assert pool.faults() == []
    first = pool.evaluate(model)
    assert pool.evaluate(model)["mine"] == first["mine"]
    assert calls == [1, 1, len(NAMES) * len(PROMPTS)]  # how it is padded, then every text
    other = transformers.AutoModel.from_pretrained(str(tiny_clip(folders["clip"] + "2", 3))).eval()
    assert pool.evaluate(other)["mine"]["loss"] != first["mine"]["loss"]


def test_what_cannot_be_done_is_said(folders):
    tower = transformers.CLIPVisionModel.from_pretrained(folders["clip"])
    with pytest.raises(ConfigError, match=r"CLIPVisionModel has no get_text_features.*auto_class=AutoModel"):
        task_pool(folders["clip"]).evaluate(tower)
    assert "no class names" in str(ZeroShotTaskPool({"x": pictures()}, base_model=folders["clip"]).faults()[0])
    broken = transformers.AutoModel.from_pretrained(folders["clip"])
    with torch.no_grad():
        broken.text_projection.weight.fill_(float("nan"))
    with pytest.raises(EvaluationError, match="NaN"):
        task_pool(folders["clip"]).evaluate(broken)
