from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fusion_eval.merge.group import CHUNK, TensorGroup
from fusion_eval.merge.select import Sample, magnitude_thresholds, sampled_slices, streamed_largest


def in_pieces(vectors: list[Tensor], length: int):
    def passes():
        for start in range(0, vectors[0].numel(), length):
            yield [vector[start : start + length] for vector in vectors]

    return passes


def largest(vector: Tensor, rank: int) -> float:
    values, place = vector.double().numpy(), vector.numel() - rank
    return float(np.partition(values, place)[place])


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(
        st.floats(-(2.0**90), 2.0**90, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0]), min_size=1, max_size=60
    ),
    length=st.integers(1, 20),
    magnitudes=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    sampled=st.booleans(),
    data=st.data(),
)
def test_every_rank_is_that_of_a_sort(
    values: list[float], length: int, magnitudes: bool, dtype: torch.dtype, sampled: bool, data: st.DataObject
) -> None:
    vector = torch.tensor(values, dtype=torch.float64).to(dtype)
    ranks = data.draw(st.lists(st.integers(1, len(values)), max_size=4))
    passes = in_pieces([vector, -vector], length)
    sample = Sample(passes, len(values)) if sampled else None
    found = streamed_largest(passes, [ranks, ranks[:1]], magnitudes=magnitudes, sample=sample)
    first, second = (vector.abs(), vector.abs()) if magnitudes else (vector, -vector)
    assert found == [[largest(first, rank) for rank in ranks], [largest(second, rank) for rank in ranks[:1]]]


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("magnitudes", [True, False])
def test_large_vectors_with_good_and_misleading_samples(alike: bool, magnitudes: bool) -> None:
    numel = 20 * CHUNK + 17
    vector = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    if not alike:
        vector[: 2 * CHUNK] *= 100  # the sample sees these slices far too often
        vector[3 * CHUNK : 9 * CHUNK] = 0
    group = TensorGroup("t", torch.zeros(numel), (vector, vector.flip(0)))

    def passes():
        return (piece.deltas() for piece in group.slices())

    def sampled():
        return (piece.deltas() for piece in sampled_slices(group))

    ranks = [[1, numel // 5, numel // 2, numel], [numel // 3]]
    found = streamed_largest(passes, ranks, magnitudes=magnitudes, sample=Sample(sampled, numel))
    ranked = vector.abs() if magnitudes else vector
    assert found == [[largest(ranked, rank) for rank in row] for row in ranks]


def test_a_good_sample_needs_one_pass() -> None:
    numel = 40 * CHUNK
    vector = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    calls = []

    def passes():
        calls.append(1)
        return in_pieces([vector], CHUNK)()

    sample = Sample(lambda: ([vector[i * CHUNK : (i + 1) * CHUNK]] for i in (0, 16, 32, 39)), numel)
    assert magnitude_thresholds(passes, [0.2], numel, sample=sample) == [largest(vector.abs(), numel // 5)]
    assert len(calls) == 1


def test_thresholds_keep_all_or_none_or_one() -> None:
    vector = torch.tensor([3.0, -1.0, 2.0])
    passes = in_pieces([vector] * 4, 2)
    assert magnitude_thresholds(passes, [1, 0, 0.1, 0.67], 3) == [0.0, math.inf, 3.0, 2.0]
    assert magnitude_thresholds(in_pieces([torch.zeros(0)], 1), [0.5], 0) == [math.inf]


def test_sampled_slices_are_first_every_sixteenth_and_last() -> None:
    group = TensorGroup("t", None, (torch.zeros(40 * CHUNK + 1),))
    assert [piece.start // CHUNK for piece in sampled_slices(group)] == [0, 16, 32, 40]
    assert [piece.numel for piece in sampled_slices(TensorGroup("e", None, (torch.zeros(0, 3),)))] == [0]
