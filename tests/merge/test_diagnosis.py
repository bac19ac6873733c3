"""What is said of a pool before it is merged, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fusion_eval.errors import CheckpointError
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.diagnosis import GAUSSIAN_TOP, Entrywise, entrywise, equal_models
from fusion_eval.merge.diagnosis_matrix import matrix_traits
from fusion_eval.merge.diagnosis_pool import Look, Survey, diagnose, diagnosis, kind_name, layer_name, survey
from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.group import CHUNK, TensorGroup


def group_of(base: Tensor | None, *experts: Tensor) -> TensorGroup:
    names = tuple(f"e{index}" for index in range(len(experts)))
    return TensorGroup("w", base, experts, names, seed=0)


def sums_of(base: Tensor, *deltas: Tensor) -> Entrywise:
    return entrywise(group_of(base, *(base + delta for delta in deltas)))[0]


def pool_of(base: dict[str, Tensor] | None, *experts: dict[str, Tensor]) -> AlignedPool:
    named = {f"e{index}": StateDictCheckpoint(state) for index, state in enumerate(experts)}
    return AlignedPool(None if base is None else StateDictCheckpoint(base), named)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


BASE = torch.zeros(8)
ONE = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0])
OTHER = torch.tensor([0.0, 0, 0, 0, 2, 2, 2, 2])


def test_orthogonal_task_vectors() -> None:
    sums = sums_of(BASE, ONE, OTHER)
    assert sums.cosines().tolist() == [[1, 0], [0, 1]]
    assert sums.norms().tolist() == [2, 4]
    assert math.isnan(sums.conflicts()[0, 1])  # no entry is nonzero in both
    assert sums.changed().tolist() == [0.5, 0.5]
    assert sums.growth() == 1
    assert sums.cancelled() == 0


def test_identical_and_opposite_task_vectors() -> None:
    sums = sums_of(BASE, ONE, ONE, -ONE)
    assert sums.cosines().tolist() == [[1, 1, -1], [1, 1, -1], [-1, -1, 1]]
    assert sums.conflicts().tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    assert sums.cancelled() == pytest.approx(2 / 3)
    assert sums.growth() == pytest.approx(1 / 3)
    assert sums_of(BASE, ONE, ONE).growth() == 2


def test_scaled_task_vectors_are_parallel_and_keep_their_norms() -> None:
    base = normal(100, seed=1).double()
    delta = normal(100, seed=2).double()
    sums = sums_of(base, delta, 3 * delta)
    assert sums.cosines()[0, 1] == pytest.approx(1, abs=1e-12)
    assert sums.norms()[1] / sums.norms()[0] == pytest.approx(3, rel=1e-12)
    assert sums.relative_norms()[0] == pytest.approx(float(delta.norm() / base.norm()), rel=1e-12)
    assert sums.kinship()[1] == pytest.approx(
        float((base @ (base + 3 * delta)) / base.norm() / (base + 3 * delta).norm()), rel=1e-12
    )


def test_a_zero_task_vector_has_no_cosine_and_no_share() -> None:
    sums, magnitudes = entrywise(group_of(BASE, BASE.clone(), ONE))
    assert np.isnan(sums.cosines()[0]).all()
    assert sums.relative_norms().tolist() != [0, 0]  # the base is zero: undefined, not a number
    assert np.isnan(sums.relative_norms()).all()
    assert math.isnan(magnitudes.top_share()[0])


def test_sums_of_slices_are_those_of_the_whole_and_of_several_parameters() -> None:
    base, a, b = (normal(CHUNK + 77, seed=seed) for seed in range(3))
    sums, _ = entrywise(group_of(base, a, b))
    deltas = torch.stack([a - base, b - base]).double()
    assert sums.gram() == pytest.approx((deltas @ deltas.T).numpy(), rel=1e-12)
    opposed = int((deltas[0].sign() * deltas[1].sign() < 0).sum())
    assert sums.opposed[0, 1] == opposed
    halves = [entrywise(group_of(base[part], a[part], b[part]))[0] for part in (slice(0, 1000), slice(1000, None))]
    assert (halves[0] + halves[1]).opposed[0, 1] == opposed
    assert (halves[0] + halves[1]).numel == CHUNK + 77


def test_without_a_base_the_weights_are_compared() -> None:
    sums, _ = entrywise(group_of(None, ONE, ONE + OTHER))
    assert not sums.has_base
    assert sums.cosines()[0, 1] == pytest.approx(2 / math.sqrt(20))
    assert math.isnan(sums.base_norm())
    assert sums.kinship() == pytest.approx([1, 2 / math.sqrt(20)])


@pytest.mark.parametrize(
    ("values", "expected", "tolerance"),
    [
        (normal(400_000), GAUSSIAN_TOP, 0.004),
        (torch.distributions.Laplace(0, 1).icdf((torch.arange(100_000) + 0.5) / 100_000), 0.7810, 0.004),
        (torch.ones(1000), 0.2, 1e-9),
        (torch.cat([torch.ones(200), torch.zeros(800)]), 1.0, 1e-9),
    ],
    ids=["normal", "laplace", "equal", "sparse"],
)
def test_the_part_of_the_norm_in_the_largest_fifth(values: Tensor, expected: float, tolerance: float) -> None:
    zero = torch.zeros_like(values)
    assert entrywise(group_of(zero, values))[1].top_share()[0] == pytest.approx(expected, abs=tolerance)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=5, max_size=300))
@settings(max_examples=50, deadline=None)
def test_the_part_of_the_norm_is_within_its_bound(values: list[float]) -> None:
    vector = torch.tensor(values)
    vector = torch.where(vector.abs() < 1e-18, 0, vector)  # squares of these vanish in float32
    found = float(entrywise(group_of(torch.zeros_like(vector), vector))[1].top_share()[0])
    squares = vector.double().square().sort(descending=True).values
    if not float(squares.sum()):
        assert math.isnan(found)
        return
    reached = np.interp(0.2 * len(values), range(len(values) + 1), [0, *squares.cumsum(0).tolist()])
    assert found == pytest.approx(reached / float(squares.sum()), rel=0.016, abs=1e-12)


def test_equal_models_are_found() -> None:
    found = equal_models(group_of(BASE, BASE.half(), ONE, ONE), {(-1, 0), (-1, 1), (0, 1), (0, 2), (1, 2)})
    assert found == {(-1, 0), (1, 2)}


def test_a_sample_is_marked_and_scaled() -> None:
    base = torch.zeros(10 * CHUNK)
    sums, magnitudes = entrywise(group_of(base, torch.ones_like(base)), entries=3 * CHUNK)
    assert (sums.numel, sums.seen) == (10 * CHUNK, 3 * CHUNK)
    assert sums.norms()[0] ** 2 == pytest.approx(10 * CHUNK)
    assert magnitudes.counts.sum() == 10 * CHUNK


def low_rank(rank: int, rows: int, columns: int, seed: int) -> Tensor:
    return normal(rows, rank, seed=seed) @ normal(rank, columns, seed=seed + 1) / rank


@pytest.mark.parametrize("shape", [(40, 24), (24, 40), (24, 5, 8)])
def test_known_ranks(shape: tuple[int, ...]) -> None:
    base = torch.zeros(shape)
    rest = math.prod(shape[1:])
    for rank in (1, 3, 7):
        traits = matrix_traits(group_of(base, low_rank(rank, shape[0], rest, rank).reshape(shape)))
        assert traits.exact
        assert traits.rank[0] == rank
        assert 1 <= traits.stable[0] <= traits.effective[0] <= rank + 1e-3


def test_an_orthogonal_matrix_has_full_stable_and_effective_rank() -> None:
    q = torch.linalg.qr(normal(32, 32).double()).Q
    traits = matrix_traits(group_of(torch.zeros(32, 32, dtype=torch.float64), q, 5 * q))
    assert traits.stable == pytest.approx([32, 32])
    assert traits.effective == pytest.approx([32, 32])
    assert traits.first == pytest.approx([0.5, 0.5])
    assert traits.overlap[0, 0] == pytest.approx(1)


def test_singular_values_agree_with_the_decomposition() -> None:
    delta = normal(60, 33, seed=4)
    traits = matrix_traits(group_of(torch.zeros(60, 33), delta))
    S = torch.linalg.svdvals(delta.double())
    shares = S / S.sum()
    assert traits.stable[0] == pytest.approx(float((S / S[0]).square().sum()), rel=1e-9)
    assert traits.effective[0] == pytest.approx(float(torch.exp(-(shares * shares.log()).sum())), rel=1e-9)


def test_overlap_of_equal_orthogonal_and_random_subspaces() -> None:
    eye = torch.eye(64)
    a, b = eye[:, :4] @ eye[:4], eye[:, 4:8] @ eye[4:8]
    traits = matrix_traits(group_of(torch.zeros(64, 64), a, b, 2 * a))
    assert traits.overlap == pytest.approx(np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]]), abs=1e-9)
    random = matrix_traits(group_of(torch.zeros(64, 64), *(normal(64, 64, seed=seed) for seed in range(6))))
    off = random.overlap[np.triu_indices(6, 1)]
    assert off.mean() == pytest.approx(random.chance, rel=0.15)


def test_a_sketch_s_bounds_hold_and_meet_for_low_ranks() -> None:
    delta = normal(300, 200, seed=1)
    sketch = matrix_traits(group_of(torch.zeros(300, 200), delta), exact_side=100)
    true = matrix_traits(group_of(torch.zeros(300, 200), delta))
    assert not sketch.exact
    assert sketch.stable_low[0] <= true.stable[0] <= sketch.stable[0] + 1e-9
    assert math.isnan(sketch.effective[0])
    narrow = low_rank(5, 300, 200, 3)
    sketch = matrix_traits(group_of(torch.zeros(300, 200), narrow), exact_side=100)
    assert sketch.stable_low[0] == pytest.approx(sketch.stable[0], rel=1e-4)


def test_what_is_no_matrix_has_no_traits() -> None:
    for shape in ((7,), (), (1, 9), (9, 1)):
        assert matrix_traits(group_of(torch.zeros(shape), torch.ones(shape))) is None


def test_a_zero_matrix_is_undefined_not_zero() -> None:
    traits = matrix_traits(group_of(torch.zeros(6, 6), torch.zeros(6, 6), torch.eye(6)))
    assert math.isnan(traits.stable[0])
    assert math.isnan(traits.effective[0])
    assert traits.rank[0] == 0
    assert math.isnan(traits.overlap[0, 1])


def state(seed: int) -> dict[str, Tensor]:
    names = ("layers.0.q.weight", "layers.1.q.weight", "layers.10.q.weight")
    return {
        **{name: normal(6, 4, seed=seed + index) for index, name in enumerate(names)},
        "norm.bias": normal(4, seed=seed + 9),
        "empty": torch.empty(0, 3),
        "steps": torch.tensor([seed]),
    }


def test_a_pool_by_tensor_layer_and_kind() -> None:
    base = state(0)
    found = diagnose(pool_of(base, state(20), dict(base), state(20)))
    assert [part.name for part in found.layers()] == ["layers.0", "layers.1", "layers.10", "norm"]
    assert [part.name for part in found.kinds()] == ["layers.*.q.weight", "norm.bias"]
    assert found.whole().sums.numel == 76
    assert sum(part.sums.numel for part in found.layers()) == 76
    assert found.equal == (("base", "e1"), ("e0", "e2")) or found.equal == (("e1", "base"), ("e0", "e2"))
    assert found.integers == ("steps",)
    assert not found.sampled
    assert np.isfinite(found.first_share())


def test_what_is_not_finite_is_named_and_left_out() -> None:
    base, a, b = state(0), state(20), state(40)
    a["layers.0.q.weight"][0, 0] = torch.nan
    b["layers.0.q.weight"][0, 0] = torch.inf
    base["norm.bias"][0] = torch.inf
    found = diagnose(pool_of(base, a, b))
    assert found.broken == {"layers.0.q.weight": ("e0", "e1"), "norm.bias": ("base",)}
    assert [tensor.name for tensor in found.tensors] == ["layers.1.q.weight", "layers.10.q.weight"]
    assert np.isfinite(found.whole().sums.cosines()).all()


def test_a_pool_without_floating_weights_is_refused() -> None:
    with pytest.raises(CheckpointError, match="none of 1 tensors is floating"):
        diagnose(pool_of({"steps": torch.tensor([1])}, {"steps": torch.tensor([2])}))


def test_shares_of_ranks_make_the_whole() -> None:
    pool = pool_of(state(0), state(20), state(40))
    names = list(pool.reference)
    parts: list[Survey] = [list(survey(pool, names[rank::3]))[-1] for rank in range(3)]
    several, one = diagnosis(pool, parts), diagnose(pool)
    assert [tensor.name for tensor in several.tensors] == [tensor.name for tensor in one.tensors]
    assert np.array_equal(several.whole().sums.products, one.whole().sums.products)
    assert np.array_equal(several.top, one.top)


def test_permuting_experts_permutes_the_matrices() -> None:
    base, a, b, c = (state(seed) for seed in (0, 20, 40, 60))
    one, other = diagnose(pool_of(base, a, b, c)), diagnose(pool_of(base, c, a, b))
    order = [1, 2, 0]
    cosines = other.whole().sums.cosines()
    assert one.whole().sums.cosines() == pytest.approx(cosines[np.ix_(order, order)], abs=1e-12)
    assert one.whole().sums.growth() == pytest.approx(other.whole().sums.growth(), rel=1e-12)


def test_matrices_can_be_left_out() -> None:
    found = diagnose(pool_of(state(0), state(20)), Look(matrices=False))
    assert all(tensor.matrix is None for tensor in found.tensors)
    assert math.isnan(found.first_share())


def test_names_of_layers_and_kinds() -> None:
    assert layer_name("model.layers.12.mlp.up.weight") == "model.layers.12"
    assert layer_name("0.weight") == "0"
    assert layer_name("embed.weight") == "embed"
    assert kind_name("model.layers.12.experts.3.up.weight") == "model.layers.*.experts.*.up.weight"
