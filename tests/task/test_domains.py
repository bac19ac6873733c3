"""Every domain's battery against independent values: scikit-learn, numpy, closed forms, and the recorded peer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor, nn

from fusion_eval.task import get_task
from fusion_eval.task.battery import OfferedBattery
from tests.task.measuring import measured
from tests.task.tables import Listed, Table, loader, noise

SIX = ("accuracy", "f1", "precision", "recall", "auroc", "ece")


@pytest.fixture(scope="module")
def recorded(assets_dir: Path) -> tuple[Any, dict[str, Any]]:
    folder = assets_dir / "task"
    return np.load(folder / "digits.npz"), json.loads((folder / "digits.json").read_text())


@pytest.mark.parametrize("method", ["linear", "mlp"])
def test_classification_equals_the_peer(recorded: Any, method: str) -> None:
    arrays, document = recorded
    target = torch.from_numpy(arrays["y"].astype(np.int64))
    for seed, logits in enumerate(arrays[method]):
        found = measured("classification", Table(torch.from_numpy(logits)), loader(target, 64), 10)
        expected = {metric: values[seed] for metric, values in document["values"][method].items()}
        assert tuple(found.values) == SIX
        assert found.values == pytest.approx(expected, abs=1e-6)
        assert found.directions["ece"] is False
        assert found.items == 719


def test_classification_equals_all_of_the_peers_run(shared_dir: Path) -> None:
    run = json.loads((shared_dir / "peers/mushin_run.json").read_text())["digits"]["by_test"]["wilcoxon"]["data"]
    with np.load(shared_dir / "peers/mushin_run_logits.npz") as arrays:
        target = torch.from_numpy(arrays["y"])
        for row, method in enumerate(("linear", "mlp")):
            for seed, logits in enumerate(arrays[method]):
                found = measured("classification", Table(torch.from_numpy(logits)), loader(target, 64), 10)
                expected = {metric: values[row][seed] for metric, values in run.items()}
                assert found.values == pytest.approx(expected, abs=1e-6)


def test_more_classification_metrics_equal_scikit_learn(recorded: Any) -> None:
    arrays, _ = recorded
    y, logits = arrays["y"].astype(np.int64), torch.from_numpy(arrays["mlp"][0])
    task = get_task("classification")
    assert isinstance(task.battery, OfferedBattery)
    names = ["balanced_accuracy", "top3_accuracy", "mcc", "kappa", "nll", "brier", "f1_weighted", "recall_per_class"]
    battery = task.battery.pick(names, 10)
    from fusion_eval.task import Task

    found = measured(
        Task(lambda n, ignore_index=None: battery, task.predict_fn, task.prob_metrics),
        Table(logits),
        loader(torch.from_numpy(y)),
        10,
    ).values
    p, hard = logits.softmax(-1).double().numpy(), logits.argmax(-1).numpy()
    p = p / p.sum(1, keepdims=True)
    expected = {
        "balanced_accuracy": sk.balanced_accuracy_score(y, hard),
        "top3_accuracy": sk.top_k_accuracy_score(y, p, k=3),
        "mcc": sk.matthews_corrcoef(y, hard),
        "kappa": sk.cohen_kappa_score(y, hard),
        "nll": sk.log_loss(y, p),
        "brier": float(((p - np.eye(10)[y]) ** 2).sum(1).mean()),
        "f1_weighted": sk.f1_score(y, hard, average="weighted"),
        **{f"recall_per_class_{c}": r for c, r in enumerate(sk.recall_score(y, hard, average=None))},
    }
    assert found == pytest.approx(expected, abs=1e-5)


def test_auroc_leaves_an_absent_class_out_and_says_so(recorded: Any) -> None:
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    target = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(1))
    found = measured("classification", Table(logits), loader(target), 4)
    p = logits.softmax(-1).numpy()
    truth = np.mean([sk.roc_auc_score(target.numpy() == c, p[:, c]) for c in range(3)])
    assert found.values["auroc"] == pytest.approx(truth, abs=1e-6)
    peer = recorded[1]["known_defects"]["auroc_one_absent_class"]
    assert found.values["auroc"] == pytest.approx(peer["mean_over_present_classes"], abs=1e-6)
    assert "auroc: mean over 3 of 4 classes; no curve for 3" in found.notes


@pytest.mark.parametrize("form", ["vector", "column", "pair"])
def test_binary_equals_scikit_learn(form: str) -> None:
    logits = noise(1, (300,))
    y = (noise(2, (300,)) + logits > 0).long()
    shaped = {"vector": logits, "column": logits[:, None], "pair": torch.stack([-logits / 2, logits / 2], 1)}[form]
    target = y[:, None].float() if form == "column" else y
    found = measured("binary", Table(shaped), loader(target)).values
    p, hard = logits.sigmoid().numpy(), (logits >= 0).long().numpy()
    expected = {
        "accuracy": sk.accuracy_score(y, hard),
        "f1": sk.f1_score(y, hard),
        "precision": sk.precision_score(y, hard),
        "recall": sk.recall_score(y, hard),
        "specificity": sk.recall_score(1 - y, 1 - hard),
        "auroc": sk.roc_auc_score(y, p),
        "average_precision": sk.average_precision_score(y, p),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-5)


def test_binary_auroc_of_one_class_is_no_number() -> None:
    found = measured("binary", Table(noise(1, (30,))), loader(torch.ones(30, dtype=torch.long)))
    assert "auroc" not in found.values
    assert any(note.startswith("auroc: no value") for note in found.notes)
    assert found.values["recall"] > 0


def test_multilabel_equals_scikit_learn() -> None:
    logits = noise(3, (200, 5))
    y = (noise(4, (200, 5)) + logits > 0.5).long()
    y[:, 4] = 0
    found = measured("multilabel", Table(logits), loader(y.float()), 5)
    p, hard = logits.sigmoid().numpy(), (logits >= 0).long().numpy()
    expected = {
        "accuracy": (hard == y.numpy()).mean(),
        "f1": sk.f1_score(y, hard, average="macro", zero_division=0),
        "exact_match": sk.accuracy_score(y, hard),
        "hamming": sk.hamming_loss(y, hard),
        "auroc": np.mean([sk.roc_auc_score(y[:, c], p[:, c]) for c in range(4)]),
    }
    assert {name: found.values[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    assert "auroc: mean over 4 of 5 labels; no curve for 4" in found.notes
    assert found.directions["hamming"] is False


def test_segmentation_equals_a_confusion_matrix() -> None:
    target = torch.randint(0, 4, (6, 9, 7), generator=torch.Generator().manual_seed(0))
    target[torch.rand(target.shape, generator=torch.Generator().manual_seed(1)) < 0.1] = 255
    logits = nn.functional.one_hot(target % 4, 4).permute(0, 3, 1, 2) + noise(5, (6, 4, 9, 7), 0.7)
    found = measured("segmentation", Table(logits), loader(target, 4), 4, 255).values
    kept = target != 255
    t, p = target[kept].numpy(), logits.argmax(1)[kept].numpy()
    expected = {
        "miou": sk.jaccard_score(t, p, average="macro"),
        "dice": sk.f1_score(t, p, average="macro"),
        "pixel_acc": sk.accuracy_score(t, p),
        "precision": sk.precision_score(t, p, average="macro"),
        "recall": sk.recall_score(t, p, average="macro"),
    }
    assert found == pytest.approx(expected, abs=1e-6)


def test_regression_of_one_and_several_outputs() -> None:
    y = noise(6, (120, 3))
    x = y + noise(7, (120, 3), 0.4)
    several = measured("regression", Table(x), loader(y), 3).values
    for name, function in {
        "mse": sk.mean_squared_error,
        "mae": sk.mean_absolute_error,
        "r2": sk.r2_score,
    }.items():
        assert several[name] == pytest.approx(function(y.numpy(), x.numpy()), abs=1e-5)
    assert several["pearson"] == pytest.approx(
        np.mean([np.corrcoef(x[:, d], y[:, d])[0, 1] for d in range(3)]), abs=1e-5
    )
    one = measured("regression", Table(x[:, :1]), loader(y[:, 0])).values
    assert one["rmse"] == pytest.approx(float((x[:, 0] - y[:, 0]).square().mean().sqrt()), abs=1e-6)
    assert list(one) == list(several)


def test_retrieval_does_not_depend_on_the_scores_sign(recorded: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=generator)
    relevance = (torch.rand(200, generator=generator) < 0.3).long()
    queries = torch.arange(200) // 10
    truth = recorded[1]["known_defects"]["retrieval_sklearn_map"]
    for shift in (0.0, -100.0, 100.0):
        found = measured("retrieval", nn.Identity(), [(scores + shift, (relevance, queries))]).values
        assert found["retrieval_map"] == pytest.approx(truth, abs=1e-6)
    peer = recorded[1]["known_defects"]["retrieval_sigmoid"]
    assert found == pytest.approx(peer, abs=1e-6)


def test_retrieval_of_the_peers_toy() -> None:
    data = [(torch.tensor([0.9, 0.1, 0.5, 0.4]), (torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 1, 1])))]

    class Negative(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return -x

    assert measured("retrieval", nn.Identity(), data).values["retrieval_map"] == pytest.approx(0.75)
    assert measured("retrieval", Negative(), data).values["retrieval_map"] == pytest.approx(0.75)


def test_graded_relevance_serves_ndcg_alone() -> None:
    data = [
        (
            noise(1, (12,)),
            (torch.randint(0, 4, (12,), generator=torch.Generator().manual_seed(2)), torch.arange(12) // 4),
        )
    ]
    found = measured("retrieval", nn.Identity(), data)
    assert list(found.values) == ["ndcg"]
    assert sum("graded" in note for note in found.notes) == 4


def boxes(*corners: tuple[float, ...]) -> Tensor:
    return torch.tensor(corners, dtype=torch.float32)


def test_a_perfect_detector_scores_one() -> None:
    truth = [{"boxes": boxes((0, 0, 10, 10), (50, 50, 60, 60)), "labels": torch.tensor([0, 0])}]
    found = measured("detection", Listed([{**truth[0], "scores": torch.ones(2)}]), [([0], truth)]).values
    assert {name: found[name] for name in ("map", "iou", "giou", "ciou", "diou")} == pytest.approx(
        dict.fromkeys(("map", "iou", "giou", "ciou", "diou"), 1.0), abs=1e-6
    )
    assert all(value >= 0 for value in found.values())


def test_boxes_are_matched_one_to_one() -> None:
    truth = [{"boxes": boxes((0, 0, 10, 10), (20, 0, 30, 10)), "labels": torch.tensor([0, 0])}]
    output = [
        {
            "boxes": boxes((20, 0, 30, 5), (0, 0, 10, 10), (0, 0, 10, 9)),
            "scores": torch.tensor([0.9, 0.8, 0.7]),
            "labels": torch.tensor([0, 0, 0]),
        }
    ]
    found = measured("detection", Listed(output), [([0], truth)])
    assert found.values["iou"] == pytest.approx((0.5 + 1.0) / 2, abs=1e-6)
    assert "map_large: undefined on these items" in found.notes


def test_image_quality_names_what_it_leaves_out() -> None:
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    output = (images + noise(1, (4, 3, 32, 32), 0.05)).clamp(0, 1)
    found = measured("image_quality", Table(output), loader(images, 2))
    assert found.values["psnr"] == pytest.approx(float(-10 * (output - images).square().mean().log10()), abs=1e-4)
    assert set(found.values) == {"ssim", "psnr"}
    notes = " ".join(found.notes)
    assert "lpips: needs AlexNet weights" in notes
    assert "ms_ssim: no value, since images of 32 x 32 pixels" in notes


def test_audio_si_sdr_is_its_definition() -> None:
    pytest.importorskip("pystoi")
    target = noise(1, (2, 16000))
    output = target + noise(2, (2, 16000), 0.2)
    found = measured("audio", Table(output), loader(target, 1)).values
    scale = (output * target).sum(1, keepdim=True) / target.square().sum(1, keepdim=True)
    error = output - scale * target
    sdr = 10 * ((scale * target).square().sum(1) / error.square().sum(1)).log10()
    assert found["si_sdr"] == pytest.approx(float(sdr.mean()), abs=1e-4)
    assert 0.5 < found["stoi"] <= 1.0


def test_texts_with_one_and_several_references() -> None:
    texts = ["the cat sat", "a dog ran home"]
    one = measured("text", Listed(texts), [([0, 1], ["the cat sat", "the dog ran home"])])
    assert one.values["exact_match"] == 0.5
    assert one.values["wer"] == pytest.approx(1 / 7)
    assert one.values["cer"] == pytest.approx(3 / 27)
    assert one.directions["wer"] is False
    several = measured("text", Listed(texts), [([0, 1], [["the cat sat", "x"], ["y", "a dog ran home"]])])
    assert several.values["bleu"] == pytest.approx(1.0)
    assert several.values["exact_match"] == 1.0
    assert any(note.startswith("wer: no value") and "several references" in note for note in several.notes)


def test_language_modelling_is_cross_entropy_over_counted_tokens() -> None:
    logits, target = noise(1, (5, 7, 11)), torch.randint(0, 11, (5, 7), generator=torch.Generator().manual_seed(2))
    target[0, :3] = -100
    found = measured("language_modeling", Table(logits), loader(target, 2)).values
    loss = nn.functional.cross_entropy(logits.reshape(-1, 11), target.reshape(-1), ignore_index=-100)
    assert found["perplexity"] == pytest.approx(float(loss.exp()), rel=1e-5)
    kept = target != -100
    assert found["token_accuracy"] == pytest.approx(float((logits.argmax(-1) == target)[kept].float().mean()))


def test_clustering_and_nominal_agreement() -> None:
    target = torch.randint(0, 3, (90,), generator=torch.Generator().manual_seed(0))
    labels = (target + (torch.rand(90, generator=torch.Generator().manual_seed(1)) < 0.2).long()) % 3
    found = measured("clustering", Table(labels), loader(target)).values
    assert found["adjusted_rand"] == pytest.approx(sk.adjusted_rand_score(target, labels), abs=1e-6)
    assert found["v_measure"] == pytest.approx(sk.v_measure_score(target, labels), abs=1e-6)
    scores = nn.functional.one_hot(labels, 3).float()
    assert measured("clustering", Table(scores), loader(target)).values == pytest.approx(found)
    assert 0 < measured("nominal", Table(labels), loader(target), 3).values["cramers_v"] <= 1
