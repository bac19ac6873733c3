"""Rows of new tokens against their formulas, as mergekit-tokensurgeon 0.1.5 was seen to compute them."""

from __future__ import annotations

import pytest
import torch

from fusion_eval.merge.approximation import Approximation
from fusion_eval.merge.tokenizer import read_tokenizer
from fusion_eval.merge.transplant import Splitter, combinations, drawn, piece_weights, pieced
from tests.merge.recipe_models import write_tokenizer

GENERATOR = torch.Generator().manual_seed(0)
ATOMS = torch.randn(30, 8, generator=GENERATOR)
TARGETS = torch.randn(5, 8, generator=GENERATOR)


def nearest(count):
    distances = torch.cdist(TARGETS.double(), ATOMS.double())
    return distances.topk(count, largest=False)


def test_interpolation_weighs_by_inverse_distance():
    places, numbers = combinations(ATOMS, TARGETS, Approximation("common_interpolation", 4))
    distances, wanted = nearest(4)
    assert torch.equal(places, wanted)
    torch.testing.assert_close(numbers, (1 / distances) / (1 / distances).sum(1, keepdim=True))


def test_interpolation_weighs_by_likeness_of_directions():
    places, numbers = combinations(ATOMS, TARGETS, Approximation("common_interpolation", 3, cosine=True))
    cosines = torch.nn.functional.cosine_similarity(TARGETS[:, None].double(), ATOMS[None].double(), dim=-1)
    scores, wanted = cosines.topk(3)
    assert torch.equal(places, wanted)
    torch.testing.assert_close(numbers, scores / scores.sum(1, keepdim=True))


def test_least_squares_and_its_affine_form():
    plain = combinations(ATOMS, TARGETS, Approximation("common_interpolation", 5, "least_squares"))
    affine = combinations(ATOMS, TARGETS, Approximation("common_interpolation", 5, "barycentric"))
    torch.testing.assert_close(affine[1].sum(1), torch.ones(5, dtype=torch.float64))
    for places, target, first, second in zip(plain[0], TARGETS.double(), plain[1], affine[1], strict=True):
        rows = ATOMS[places].double()
        torch.testing.assert_close(first, torch.linalg.lstsq(rows.T, target).solution)
        left = target - second @ rows
        torch.testing.assert_close((rows[:-1] - rows[-1]) @ left, torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("scheme", ["distance_proportional", "barycentric", "least_squares"])
def test_a_row_among_the_atoms_is_itself(scheme):
    places, numbers = combinations(ATOMS, ATOMS[:2], Approximation("common_interpolation", 4, scheme))
    made = torch.einsum("tk,tkd->td", numbers, ATOMS.double()[places])
    torch.testing.assert_close(made, ATOMS[:2].double(), rtol=1e-8, atol=1e-8)


def test_more_neighbours_than_atoms_and_none():
    assert combinations(ATOMS[:3], TARGETS, Approximation("common_interpolation", 64))[0].shape == (5, 3)
    assert combinations(ATOMS[:0], TARGETS, Approximation("common_interpolation", 64))[0].shape == (5, 0)


@pytest.mark.parametrize(
    ("pieces", "head", "wanted"),
    [
        ("mean", False, [1 / 3] * 3),
        ("sum", True, [1.0] * 3),
        ("weighted_mean", False, [3 / 6, 2 / 6, 1 / 6]),
        ("weighted_mean", True, [1 / 6, 2 / 6, 3 / 6]),
        ("first_last", False, [0.0, 0.0, 1.0]),
        ("first_last", True, [1.0, 0.0, 0.0]),
    ],
)
def test_weights_of_pieces(pieces, head, wanted):
    torch.testing.assert_close(piece_weights(3, pieces, head), torch.tensor(wanted, dtype=torch.float64))
    row = pieced(ATOMS, [4, 4, 7], pieces, head)
    torch.testing.assert_close(row, torch.tensor(wanted, dtype=torch.float64) @ ATOMS[[4, 4, 7]].double())


def test_rows_that_say_nothing():
    assert not drawn(ATOMS, 3, "zero", "k").any()
    torch.testing.assert_close(drawn(ATOMS, 2, "mean", "k"), ATOMS.double().mean(0).expand(2, -1))
    many = drawn(ATOMS, 20_000, "john_hewitt", "k")
    torch.testing.assert_close(many.T.cov(), ATOMS.double().T.cov(), rtol=0, atol=0.06)
    torch.testing.assert_close(many.mean(0), ATOMS.double().mean(0), rtol=0, atol=0.05)
    assert torch.equal(drawn(ATOMS, 3, "randn", "k"), drawn(ATOMS, 3, "randn", "k"))
    assert not torch.equal(drawn(ATOMS, 3, "randn", "k"), drawn(ATOMS, 3, "randn", "l"))
    assert drawn(ATOMS * 5, 5000, "randn", "k").std() == pytest.approx(float(ATOMS.std() * 5), rel=0.05)


def test_a_token_is_split_by_another_tokenizer(tmp_path):
    for name, extra, size, shift in (("a", ["<x0>"], 128, 0), ("b", ["<x0>", "<im_start>"], 136, 7)):
        (tmp_path / name).mkdir()
        write_tokenizer(tmp_path / name, extra, size, shift=shift)
    own, target = (read_tokenizer(tmp_path / name) for name in "ab")
    splitter = Splitter(target, own)
    names = {number: token for token, number in own.ids.items()}
    assert [names[number] for number in splitter.pieces(target.ids["ht"])] == ["h", "t"]
    pieces = [names[number] for number in splitter.pieces(target.ids["<im_start>"])]
    assert "".join(pieces) == "<im_start>"
    assert len(pieces) > 3
