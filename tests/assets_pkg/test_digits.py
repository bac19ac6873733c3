from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fusion_eval.assets import digits
from fusion_eval.errors import DataError
from tests.assets_pkg import reference_merges as reference

TASKS = list(digits.VIEWS)
BASE_ACCURACY = dict(zip(TASKS, (56.6, 41.4, 47.4, 53.4, 40.2, 40.0, 44.0, 51.6), strict=True))
EXPERT_ACCURACY = dict(zip(TASKS, (97.4, 97.8, 97.4, 97.8, 97.4, 97.2, 97.8, 97.2), strict=True))
ONE_POINT = 1.0 + 1e-9


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def test_data(task: str) -> digits.DigitsDataset:
    return digits.DigitsDataset(task, "test")


test_data.__test__ = False


@torch.inference_mode()
def percent(encoder: torch.nn.Module, task: str, head: torch.Tensor | None = None) -> float:
    data = test_data(task)
    logits = encoder(data.images) @ (digits.class_codes(task) if head is None else head).T
    return 100 * float((logits.argmax(1) == data.labels).double().mean())


def state_of(name: str) -> reference.State:
    return load_file(digits.checkpoint_path(name))


@cache
def vectors_of_all() -> tuple[reference.State, torch.Tensor, torch.Tensor]:
    base = state_of("base")
    return base, reference.flatten(base), reference.task_vectors(base, [state_of(task) for task in TASKS])


def mean_percent(vector: torch.Tensor) -> float:
    encoder = digits.DigitsEncoder()
    encoder.load_state_dict(reference.unflatten(vector, vectors_of_all()[0]))
    return sum(percent(encoder, task) for task in TASKS) / len(TASKS)


# Data


def test_the_files_take_at_most_three_megabytes():
    files = list(digits.FOLDER.glob("*.safetensors"))
    assert {file.stem for file in files} == {"digits", "heads", "base", *TASKS}
    assert sum(file.stat().st_size for file in files) <= 3_000_000


@pytest.mark.parametrize(("split", "size"), [("train", 1100), ("validation", 197), ("test", 500)])
def test_every_split_has_every_digit(split, size):
    data = digits.DigitsDataset("upright", split)
    assert len(data) == size
    counts = torch.bincount(data.labels, minlength=10)
    assert counts.min() > 0.07 * size
    assert counts.max() < 0.14 * size


def test_the_splits_share_no_image():
    seen = [digits.DigitsDataset("upright", split).images.flatten(1) for split in digits.SPLITS]
    everything = torch.cat(seen)
    assert len(everything.unique(dim=0)) == len(everything) == 1797


def test_an_item_is_an_image_and_a_label():
    image, label = digits.DigitsDataset("upright", "train")[0]
    assert image.shape == (8, 8)
    assert image.dtype == torch.float32
    assert type(label) is int


@pytest.mark.parametrize("task", TASKS)
def test_views_stay_in_range_and_keep_the_labels(task):
    data = test_data(task)
    assert data.images.min() >= 0
    assert data.images.max() <= 1
    assert data.images.is_contiguous()
    assert torch.equal(data.labels, test_data("upright").labels)


def test_views_are_what_their_names_say():
    upright = test_data("upright").images
    assert torch.equal(test_data("negative").images, 1 - upright)
    assert torch.equal(torch.rot90(test_data("rot90").images, -1, (1, 2)), upright)
    assert torch.equal(test_data("mirror").images.flip(2), upright)
    assert torch.equal(torch.rot90(1 - test_data("negrot").images, 1, (1, 2)), upright)
    assert torch.equal(test_data("rolled").images.roll((4, 4), (1, 2)), upright)


def test_the_shuffled_view_moves_whole_blocks():
    upright, shuffled = (test_data(task).images for task in ("upright", "shuffled"))
    assert not torch.equal(upright, shuffled)
    blocks = [images.unfold(1, 2, 2).unfold(2, 2, 2).reshape(500, 16, 4) for images in (upright, shuffled)]
    order = digits._BLOCK_ORDER
    assert sorted(order) == list(range(16))
    assert torch.equal(blocks[0][:, list(order)], blocks[1])


def test_the_edges_of_one_bright_pixel_follow_the_formula():
    image = torch.zeros(1, 8, 8)
    image[0, 3, 3] = 0.3
    expected = torch.full((1, 8, 8), 0.5)
    expected[0, 2:5, 2:5] = 0.5 - 1.5 * 0.3 / 9
    expected[0, 3, 3] = 0.5 + 1.5 * (0.3 - 0.3 / 9)
    torch.testing.assert_close(digits.VIEWS["edges"](image), expected)


def test_a_misspelt_view_is_answered_with_the_near_one():
    with pytest.raises(DataError, match=r"digits view: 'upritg'; expected one of upright, .*Did you mean 'upright'\?"):
        digits.DigitsDataset("upritg")


def test_an_unknown_split_lists_the_splits():
    with pytest.raises(DataError, match=r"digits split: 'dev'; expected one of train, validation, test"):
        digits.DigitsDataset("upright", "dev")


def test_an_unknown_checkpoint_lists_the_checkpoints():
    with pytest.raises(DataError, match=r"expected one of base, upright, .*rolled"):
        digits.checkpoint_path("joint")


# Models


@pytest.mark.parametrize("name", ["base", *TASKS])
def test_a_checkpoint_is_a_complete_finite_state_dict(name):
    stored = state_of(name)
    expected = digits.DigitsEncoder().state_dict()
    assert {key: value.shape for key, value in stored.items()} == {key: value.shape for key, value in expected.items()}
    assert all(value.dtype == torch.float16 and value.isfinite().all() for value in stored.values())


def test_features_have_length_one_with_and_without_a_channel():
    encoder, images = digits.load_encoder("base"), test_data("upright").images[:5]
    features = encoder(images)
    assert features.shape == (5, digits.WIDTH)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(5))
    assert torch.equal(features, encoder(images[:, None]))
    assert not encoder.training


def test_heads_are_near_and_not_equal_across_tasks():
    heads = torch.stack([digits.class_codes(task) for task in TASKS])
    assert heads.shape == (8, 10, 32)
    torch.testing.assert_close(heads.norm(dim=2), torch.full((8, 10), 12.0))
    cosine = torch.einsum("acw,bcw->abc", heads, heads) / 144
    between = cosine[~torch.eye(8, dtype=torch.bool)]
    assert between.min() > 0.5
    assert between.max() < 0.9


def test_another_tasks_head_costs_accuracy():
    expert = digits.load_encoder("upright")
    own = percent(expert, "upright")
    assert all(percent(expert, "upright", digits.class_codes(task)) < own - 3 for task in TASKS if task != "upright")


@pytest.mark.parametrize("task", TASKS)
def test_the_shipped_accuracies(task):
    assert percent(digits.load_encoder("base"), task) == pytest.approx(BASE_ACCURACY[task], abs=ONE_POINT)
    assert percent(digits.load_encoder(task), task) == pytest.approx(EXPERT_ACCURACY[task], abs=ONE_POINT)


def test_an_expert_is_an_expert_for_its_own_task_only():
    expert = digits.load_encoder("rot90")
    others = [percent(expert, task) for task in TASKS if task != "rot90"]
    assert max(others) < 70


def test_merges_are_ordered_as_in_the_papers():
    _, start, vectors = vectors_of_all()
    base = mean_percent(start)
    average = mean_percent(start + vectors.mean(0))
    task_arithmetic = mean_percent(start + 0.2 * vectors.sum(0))
    ties = mean_percent(start + 0.7 * reference.ties_vector(vectors, density=0.2))
    expert = sum(EXPERT_ACCURACY.values()) / len(TASKS)
    assert average - base > 10
    assert task_arithmetic - average > 1.5
    assert ties - task_arithmetic > 4
    assert expert - ties > 15


# Independence and reproduction


def test_loading_does_not_need_scikit_learn():
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from fusion_eval.assets import digits\n"
        "digits.DigitsDataset('edges'); digits.load_encoder('edges'); digits.class_codes('edges')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def retrain(repo_root: Path, out: Path, *tasks: str) -> None:
    command = [
        sys.executable,
        str(repo_root / "scripts" / "train_digits_experts"),
        "--out",
        str(out),
        "--tasks",
        *tasks,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_retrained(folder: Path, tasks: list[str]) -> None:
    heads = load_file(folder / digits.HEADS_FILE)
    for task in tasks:
        encoder = digits.DigitsEncoder()
        encoder.load_state_dict(load_file(folder / f"{task}.safetensors"))
        assert percent(encoder, task, heads[task]) == pytest.approx(EXPERT_ACCURACY[task], abs=ONE_POINT), task


def test_the_script_reproduces_an_expert(repo_root, tmp_path):
    pytest.importorskip("sklearn")
    retrain(repo_root, tmp_path, "upright")
    check_retrained(tmp_path, ["upright"])
    stored, again = (load_file(folder / digits.IMAGES_FILE) for folder in (digits.FOLDER, tmp_path))
    assert stored.keys() == again.keys()
    assert all(torch.equal(stored[name], again[name]) for name in stored)


@pytest.mark.slow
def test_the_script_reproduces_every_expert(repo_root, tmp_path):
    pytest.importorskip("sklearn")
    retrain(repo_root, tmp_path, *TASKS)
    check_retrained(tmp_path, TASKS)
