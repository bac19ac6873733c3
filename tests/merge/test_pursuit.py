"""Matching pursuit against what must come out."""

from __future__ import annotations

from itertools import pairwise

import torch

from fusion_eval.merge.pursuit import matching_pursuit

GENERATOR = torch.Generator().manual_seed(0)


def test_orthonormal_atoms_are_found_with_their_numbers() -> None:
    atoms = torch.linalg.qr(torch.randn(9, 9, generator=GENERATOR, dtype=torch.float64))[0]
    targets = torch.stack([3 * atoms[2] - atoms[7], 0.5 * atoms[0]])
    places, numbers = matching_pursuit(atoms, targets, 2)
    assert places[0].tolist() == [2, 7]
    torch.testing.assert_close(numbers[0], torch.tensor([3.0, -1.0], dtype=torch.float64))
    assert places[1, 0] == 0
    torch.testing.assert_close(numbers[1], torch.tensor([0.5, 0.0], dtype=torch.float64))


def test_enough_atoms_give_the_target_back_and_each_step_gets_closer() -> None:
    atoms = torch.randn(40, 8, generator=GENERATOR)
    targets = torch.randn(5, 8, generator=GENERATOR)
    distances = []
    for count in range(1, 9):
        places, numbers = matching_pursuit(atoms, targets, count)
        assert places.shape == (5, count)
        assert all(len(set(row)) == count for row in places.tolist())
        rebuilt = torch.einsum("tk,tkd->td", numbers, atoms.double()[places])
        distances.append((rebuilt - targets).norm(dim=1))
        best = torch.stack(
            [
                torch.linalg.lstsq(atoms[row].double().T, target).solution
                for row, target in zip(places, targets.double(), strict=True)
            ]
        )
        torch.testing.assert_close(numbers, best, rtol=1e-6, atol=1e-8)
    assert all((later <= earlier + 1e-9).all() for earlier, later in pairwise(distances))
    assert distances[-1].max() < 1e-9


def test_nothing_to_do() -> None:
    assert matching_pursuit(torch.zeros(0, 3), torch.zeros(2, 3), 4)[0].shape == (2, 0)
    assert matching_pursuit(torch.ones(4, 3), torch.zeros(0, 3), 2)[1].shape == (0, 2)
    assert torch.isfinite(matching_pursuit(torch.ones(4, 3), torch.ones(2, 3), 3)[1]).all()


def test_the_next_atom_is_the_one_of_the_largest_inner_product() -> None:
    places, numbers = matching_pursuit(torch.tensor([[1.0, 0.0], [5.0, 4.0]]), torch.tensor([[1.0, 0.0]]), 1)
    assert places.tolist() == [[1]]
    assert abs(float(numbers) - 5 / 41) < 1e-12
