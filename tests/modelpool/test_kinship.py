from __future__ import annotations

import pytest
import torch

from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.modelpool.kinship import kinship, kinship_notes


def model(seed, base=None, drift=0.05):
    generator = torch.Generator().manual_seed(seed)
    made = {f"layers.{i}.weight": torch.randn(16, 16, generator=generator) for i in range(20)}
    if base is not None:
        made = {name: base[name] + drift * tensor for name, tensor in made.items()}
    made["norm.weight"] = torch.ones(16)
    return StateDictCheckpoint(made)


def test_a_fine_tuned_model_is_kin_and_another_initialisation_is_not():
    base = model(0)
    child, stranger = model(1, base), model(2)
    assert kinship(base, base) == pytest.approx(1)
    assert kinship(base, child) > 0.99
    assert abs(kinship(base, stranger)) < 0.1
    (note,) = kinship_notes(base, {"child": child, "stranger": stranger})
    assert note.startswith("model 'stranger' does not descend from 'base'")


def test_without_a_base_the_first_expert_is_the_reference():
    first = model(0)
    (note,) = kinship_notes(None, {"first": first, "second": model(1, first), "third": model(2)})
    assert "'third' does not descend from 'first'" in note
    assert kinship_notes(None, {}) == []


def test_kinship_is_the_cosine_of_all_matrices_when_all_are_sampled():
    base, child = model(0), model(1, model(0), drift=1.0)
    names = [name for name in base if name.startswith("layers")]
    x, y = (torch.cat([(m[n] - m[n].mean()).reshape(-1) for n in names]) for m in (base, child))
    expected = torch.nn.functional.cosine_similarity(x, y, dim=0).item()
    assert kinship(base, child, sampled=20) == pytest.approx(expected, rel=1e-5)


def test_models_without_matrices_have_no_kinship():
    empty = StateDictCheckpoint({"bias": torch.ones(3)})
    assert kinship(empty, empty) != kinship(empty, empty)
    assert kinship_notes(empty, {"a": empty}) == []
