from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

from fusion_eval.errors import ConfigError, DataError  # noqa: E402
from fusion_eval.merge.engine import MergedCheckpoint  # noqa: E402
from fusion_eval.modelpool import CLIPVisionPool  # noqa: E402
from fusion_eval.modelpool.clip_classnames import class_prompts  # noqa: E402
from fusion_eval.taskpool import CLIPVisionModelTaskPool  # noqa: E402
from tests.tiny import tiny_clip  # noqa: E402


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSION_EVAL_CACHE", str(tmp_path / "cache"))
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("clips")
    return {name: str(tiny_clip(root / name, variant)) for variant, name in enumerate(("base", "mnist", "svhn"))}


def pictures(count=11):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 20, 24, 3), generator=generator, dtype=torch.uint8).numpy()
    return [{"image": Image.fromarray(array), "label": index % 10} for index, array in enumerate(pixels)]


def task_pool(folders, **kwargs):
    options = {"base_model": folders["base"], "dataloader_kwargs": {"batch_size": 4}, "progress": False, **kwargs}
    return CLIPVisionModelTaskPool({"mnist": pictures(), "svhn": pictures()}, **options)


def test_accuracy_is_that_of_the_whole_clip(folders):
    whole = transformers.CLIPModel.from_pretrained(folders["base"]).eval()
    processor = transformers.CLIPProcessor.from_pretrained(folders["base"])
    texts = [class_prompts("mnist").texts(digit)[0] for digit in range(10)]
    items = pictures()
    batch = processor(text=texts, images=[item["image"] for item in items], return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = whole(**batch).logits_per_image
    labels = torch.tensor([item["label"] for item in items])
    tower = transformers.CLIPVisionModel.from_pretrained(folders["base"])
    report = task_pool(folders).evaluate(tower)
    assert report["mnist"]["accuracy"] == int((logits.argmax(-1) == labels).sum()) / 11
    assert report["mnist"]["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    assert report["mnist"] == report["svhn"]


def test_a_merge_of_towers_is_evaluated(folders):
    models = CLIPVisionPool(folders["base"], {n: folders[n] for n in ("mnist", "svhn")}, cache=False)
    assert models.faults() == []
    merged = models.build(MergedCheckpoint(lambda group: torch.stack(group.values()).mean(0), models.aligned()))
    report = task_pool(folders).evaluate(merged)
    assert 0 <= report["average"]["accuracy"] <= 1
    assert report["model_info"]["all_params"] == sum(parameter.numel() for parameter in merged.parameters())


def test_data_sets_of_ones_own_need_class_names(folders):
    pool = CLIPVisionModelTaskPool({"mine": pictures()}, base_model=folders["base"], progress=False)
    with pytest.raises((ConfigError, DataError), match=r"zero-shot head 'mine': no class names"):
        pool.setup()
    named = CLIPVisionModelTaskPool(
        {"mine": pictures()}, base_model=folders["base"], classes={"mine": list("abcdefghij")}, progress=False
    )
    assert named.evaluate(transformers.CLIPVisionModel.from_pretrained(folders["base"]))["mine"]["accuracy"] >= 0
