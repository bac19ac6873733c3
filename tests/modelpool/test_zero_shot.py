from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from fusion_eval.errors import CheckpointError, ConfigError  # noqa: E402
from fusion_eval.modelpool import CLIPVisionPool, ZeroShotHeads  # noqa: E402
from fusion_eval.modelpool.clip_classnames import class_prompts, known_tasks  # noqa: E402
from tests.tiny import tiny_clip  # noqa: E402

CLASSES = {
    "sun397": 397, "stanford-cars": 196, "resisc45": 45, "eurosat": 10, "svhn": 10, "gtsrb": 43, "mnist": 10, "dtd": 47,
    "oxford_flowers102": 102, "pcam": 2, "fer2013": 7, "oxford-iiit-pet": 37, "stl10": 10, "cifar100": 100,
    "cifar10": 10, "food101": 101, "fashion_mnist": 10, "emnist_letters": 26, "kmnist": 10, "rendered-sst2": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSION_EVAL_CACHE", str(tmp_path / "cache"))
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return tiny_clip(tmp_path_factory.mktemp("clip") / "tiny-clip")


def images(count=3):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_the_twenty_data_sets_have_distinct_names_and_prompts():
    assert {task: len(class_prompts(task).classes) for task in known_tasks()} == CLASSES
    assert list(known_tasks()) == list(CLASSES)
    for task in known_tasks():
        prompts = class_prompts(task)
        assert len(set(prompts.classes)) == len(prompts.classes)
        assert len(set(prompts.templates)) == len(prompts.templates)
        assert all(name == name.strip() and name for name in prompts.classes)
        assert all(prompt.count("{}") == 1 for prompt in prompts.templates)


def test_prompts_are_looked_up_under_either_spelling_and_can_be_replaced():
    assert class_prompts("stanford_cars") == class_prompts("stanford-cars") == class_prompts("cars")
    assert class_prompts("mnist").texts(3) == ['a photo of the number: "3".']
    mine = class_prompts("mine", {"mine": ["cat", "dog"]})
    assert mine.texts(1) == ["a photo of a dog."]
    assert class_prompts("mnist", None, {"mnist": ["{}!"]}).texts(0) == ["0!"]
    with pytest.raises(ConfigError, match=r"zero-shot head 'mnits': no class names.*Did you mean 'mnist'"):
        class_prompts("mnits")
    with pytest.raises(ConfigError, match=r"Give the class names: classes\.plants=\[\.\.\.\]"):
        class_prompts("plants")
    with pytest.raises(ConfigError, match=r"templates\.mnist: 'a digit'; expected \{\}"):
        class_prompts("mnist", None, {"mnist": ["a digit"]})


def test_one_prompt_gives_the_logits_of_the_whole_clip(clip):
    whole = transformers.CLIPModel.from_pretrained(clip).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(clip)
    texts = class_prompts("mnist").texts
    tokens = tokenizer([texts(digit)[0] for digit in range(10)], padding=True, return_tensors="pt")
    expected = whole(pixel_values=images(), **tokens).logits_per_image
    pool = CLIPVisionPool(str(clip), {}, cache=False)
    torch.testing.assert_close(pool.head("mnist")(pool.load("base")(images())), expected)


def test_several_prompts_are_averaged_as_unit_vectors(clip):
    tower = transformers.CLIPTextModelWithProjection.from_pretrained(clip).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(clip)
    prompts = class_prompts("eurosat")
    expected = []
    for index in range(10):
        tokens = tokenizer(prompts.texts(index), padding=True, return_tensors="pt")
        expected.append(F.normalize(F.normalize(tower(**tokens).text_embeds, dim=-1).mean(0), dim=-1))
    found = ZeroShotHeads(str(clip), cache=False).head("eurosat").texts
    torch.testing.assert_close(found, torch.stack(expected))


def test_projected_towers_need_no_projection(clip, tmp_path):
    transformers.CLIPVisionModelWithProjection.from_pretrained(clip).save_pretrained(tmp_path / "a")
    plain = CLIPVisionPool(str(clip), {}, cache=False)
    projected = CLIPVisionPool(
        str(clip), {"mnist": str(tmp_path / "a")}, auto_class="CLIPVisionModelWithProjection", cache=False
    )
    assert projected.faults() == []
    torch.testing.assert_close(
        projected.head("mnist")(projected.load("mnist")(images())), plain.head("mnist")(plain.load("base")(images()))
    )


def test_embeddings_are_made_once_and_again_when_anything_changes(clip, tmp_path, monkeypatch):
    made = []
    embed = ZeroShotHeads._embed
    monkeypatch.setattr(ZeroShotHeads, "_embed", lambda self, *args: made.append(1) or embed(self, *args))
    first = ZeroShotHeads(str(clip), cache=tmp_path).head("mnist").texts
    again = ZeroShotHeads(str(clip), cache=tmp_path).head("mnist").texts
    assert torch.equal(first, again)
    assert len(made) == 1
    ZeroShotHeads(str(clip), cache=tmp_path).head("svhn")  # the same names and prompts as mnist
    assert len(made) == 1
    other = ZeroShotHeads(str(clip), cache=tmp_path, templates={"mnist": ["number {}"]}).head("mnist").texts
    assert len(made) == 2
    assert not torch.equal(first, other)
    ZeroShotHeads(str(clip), cache=False).head("mnist")
    assert len(made) == 3
    weights = clip / "model.safetensors"
    state = load_file(weights)
    save_file({name: tensor.flip(0) if tensor.ndim else tensor for name, tensor in state.items()}, weights)
    changed = ZeroShotHeads(str(clip), cache=tmp_path).head("mnist").texts
    save_file(state, weights)
    assert len(made) == 4
    assert not torch.equal(first, changed)


def test_the_cache_is_where_the_variable_says(clip, tmp_path, monkeypatch):
    monkeypatch.setenv("FUSION_EVAL_CACHE", str(tmp_path / "here"))
    ZeroShotHeads(str(clip)).head("mnist")
    assert len(list((tmp_path / "here" / "zero_shot").glob("*.safetensors"))) == 1


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(clip, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    assert ZeroShotHeads(str(clip), cache=blocked).head("mnist").num_classes == 10


def test_a_vision_tower_alone_gives_no_heads(clip, tmp_path):
    transformers.CLIPVisionModel.from_pretrained(clip).save_pretrained(tmp_path / "tower")
    with pytest.raises(
        CheckpointError, match=r"no visual_projection\.weight and no logit_scale; expected a whole CLIP"
    ):
        CLIPVisionPool(str(tmp_path / "tower"), {}, cache=False).head("mnist")
    pool = CLIPVisionPool(str(tmp_path / "tower"), {}, clip=str(clip), cache=False)
    assert pool.head("mnist").num_classes == 10


def test_experts_are_named_by_a_pattern(clip):
    pool = CLIPVisionPool(str(clip), ["mnist", "dtd"], pattern="owner/{model}_{task}", cache=False)
    assert pool.source("dtd").path == "owner/tiny-clip_dtd"
    with pytest.raises(ConfigError, match=r"modelpool\.pattern: 'x_\{tsk\}'"):
        CLIPVisionPool(str(clip), ["mnist"], pattern="x_{tsk}")
    with pytest.raises(ConfigError, match=r"modelpool\.experts: a dict; expected a list of tasks"):
        CLIPVisionPool(str(clip), {"mnist": "x"}, pattern="x_{task}")
    with pytest.raises(ConfigError, match=r"modelpool\.clip: none, in a pool without base"):
        CLIPVisionPool(None, {"mnist": "x"})
