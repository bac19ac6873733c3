"""Step functions on their own: thresholds, bands, ranks, random bits, inner products, descent."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_eval.errors import MethodError
from fusion_eval.merge import steps_combine, steps_descent, steps_sparsify, steps_spectral, steps_sphere
from fusion_eval.merge.layers import layer_counts, layer_positions
from fusion_eval.merge.setting import Place, Range, key_faults, resolve, setting_faults


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=60), st.floats(0, 1e3, width=32))
def test_trim_keeps_what_is_at_least_the_threshold(values, threshold):
    delta = torch.tensor(values)
    wanted = torch.where(delta.abs() >= threshold, delta, torch.zeros(()))
    assert torch.equal(steps_sparsify.trim(delta, threshold), wanted)


def test_trim_of_float64_and_nan():
    delta = torch.tensor([0.1, -0.1, math.nextafter(0.1, 0), float("nan")], dtype=torch.float64)
    kept = steps_sparsify.trim(delta, 0.1)
    assert kept[:3].tolist() == [0.1, -0.1, 0.0]
    assert kept[3].isnan()


@given(st.integers(1, 80), st.floats(0.01, 0.99), st.floats(0, 0.5))
def test_breadcrumbs_keep_the_band_of_ranks(numel, density, gamma):
    first, last = steps_sparsify.band_ranks(density, gamma, numel)
    assert 1 <= first <= last <= numel
    assert last - first + 1 == max(1, int(density * numel))
    delta = torch.randperm(numel, generator=generator(numel)).float() + 1
    ordered = delta.sort(descending=True).values
    kept = steps_sparsify.band(delta, float(ordered[last - 1]), float(ordered[first - 1]))
    assert torch.equal(kept.sort(descending=True).values[: last - first + 1], ordered[first - 1 : last])
    assert torch.count_nonzero(kept) == last - first + 1


@given(st.lists(st.integers(0, 37), min_size=1, max_size=20))
@settings(max_examples=30)
def test_random_bits_are_one_stream_however_taken(sizes):
    parts = steps_sparsify.RandomBits(generator(3))
    taken = np.concatenate([parts.take(size) for size in sizes])
    assert np.array_equal(taken, steps_sparsify.RandomBits(generator(3)).take(sum(sizes)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shared_ranks(dtype):
    rows = np.abs(np.random.default_rng(0).integers(-5, 5, (7, 23))).astype(dtype)
    wanted = np.array([[np.sum(row <= value) - 1 for value in row] for row in rows])
    assert np.array_equal(steps_sparsify.shared_ranks(rows), wanted)


def test_rank_mask_and_factors_draw_alike():
    rows = torch.randn(9, 31, generator=generator())
    mask = steps_sparsify.rank_mask(rows, 0.5, 0.3, steps_sparsify.RandomBits(generator(1)))
    factors = steps_sparsify.rank_factors(rows, 0.5, 0.3, steps_sparsify.RandomBits(generator(1)))
    assert torch.equal(mask, factors.sign())


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.5, 0.0, 2.0], [1.0, -0.5, 0.5]])
@pytest.mark.parametrize("how", ["mean", "sum", "max"])
def test_disjoint_merge(weights, how):
    deltas = [torch.randn(200, generator=generator(seed)).round(decimals=1) for seed in range(3)]
    votes = torch.stack([w * d for w, d in zip(weights, deltas, strict=True)])
    sign = torch.where(votes.sum(0) >= 0, 1.0, -1.0)
    agrees = torch.sign(votes) == sign
    total = (votes * agrees).sum(0)
    share = (torch.tensor(weights)[:, None] * agrees).sum(0)
    wanted = {
        "sum": total,
        "mean": torch.where(share == 0, total, total / share),
        "max": (votes.abs() * agrees).max(0).values * sign,
    }[how]
    got = steps_combine.disjoint_merge(deltas, weights, how)
    same_sum = votes.double().sum(0).abs() > 1e-6  # where rounding cannot decide the sign
    torch.testing.assert_close(got[same_sum], wanted[same_sum], rtol=1e-5, atol=1e-6)


def test_opposed_votes_elect_plus():
    delta = torch.tensor([1.0, -2.0, 3.0])
    assert torch.equal(steps_combine.disjoint_merge([delta, -delta], [1.0, 1.0]), delta.abs())


def test_slerp_ends_and_middle():
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0])
    G = steps_sphere.gram([first, second])
    assert steps_sphere.slerp_coefficients(G, 0.0) == pytest.approx([1, 0])
    assert steps_sphere.slerp_coefficients(G, 1.0) == pytest.approx([0, 1])
    assert steps_sphere.slerp_coefficients(G, 0.5) == pytest.approx([math.sqrt(0.5)] * 2)
    assert steps_sphere.slerp_coefficients(torch.zeros(2, 2), 0.25) == [0.75, 0.25]


def test_karcher_mean_of_two_is_the_middle_of_the_arc():
    first, second = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 4.0])
    coefficients = steps_sphere.karcher_coefficients(steps_sphere.gram([first, second]), 50, 1e-12)
    mean = coefficients[0] * first + coefficients[1] * second
    torch.testing.assert_close(mean, torch.tensor([1.0, 1.0]) / math.sqrt(2) * 3, rtol=1e-6, atol=1e-6)


def test_directions_that_cancel_are_an_error():
    corners = [
        torch.tensor([math.cos(a), math.sin(a)], dtype=torch.float64) for a in (0, 2 * math.pi / 3, 4 * math.pi / 3)
    ]
    with pytest.raises(MethodError, match="cancel"):
        steps_sphere.multislerp_coefficients(steps_sphere.gram(corners), [1 / 3] * 3)


def test_stock_ratio_of_orthogonal_and_equal_vectors():
    assert float(steps_sphere.stock_ratio(torch.eye(3, dtype=torch.float64))) == 0
    assert float(steps_sphere.stock_ratio(torch.ones(3, 3, dtype=torch.float64))) == pytest.approx(1)


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (25, 25)])
@pytest.mark.parametrize("rank", [0, 1, 5, 12, 20])
def test_leading_directions_are_those_of_the_whole_decomposition(shape, rank):
    for scale in (1.0, 1e-7):
        spread = (
            torch.logspace(0, -1, min(shape), dtype=torch.float64) if scale == 1 else torch.logspace(0, -7, min(shape))
        )
        U, _ = torch.linalg.qr(torch.randn(shape[0], min(shape), generator=generator(1), dtype=torch.float64))
        V, _ = torch.linalg.qr(torch.randn(shape[1], min(shape), generator=generator(2), dtype=torch.float64))
        matrix = (U * spread) @ V.T
        got, wanted = steps_spectral.leading_svd(matrix, rank), steps_spectral.svd(matrix).first(rank)
        torch.testing.assert_close(got.S, wanted.S, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(got.matrix(), wanted.matrix(), rtol=1e-7, atol=1e-9)


def test_leading_directions_of_nothing():
    zero = steps_spectral.leading_svd(torch.zeros(6, 4), 2)
    assert torch.equal(zero.matrix(), torch.zeros(6, 4))


def test_polar_factor_is_the_nearest_orthonormal_matrix():
    matrix = torch.randn(6, 4, generator=generator(), dtype=torch.float64)
    Q = steps_spectral.polar(matrix)
    torch.testing.assert_close(Q.T @ Q, torch.eye(4, dtype=torch.float64))
    for seed in range(5):
        other, _ = torch.linalg.qr(torch.randn(6, 4, generator=generator(seed + 1), dtype=torch.float64))
        assert (matrix - Q).norm() <= (matrix - other).norm()


def test_wudi_gradient_is_that_of_its_objective():
    matrices = [torch.randn(5, 4, generator=generator(seed), dtype=torch.float64) for seed in range(3)]
    start = sum(matrices)

    def objective(T):
        return sum(((T - m) @ m.T).square().sum() / m.square().sum() for m in matrices)

    T = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([T], lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        objective(T).backward()
        optimizer.step()
    got = steps_descent.least_interference(matrices, 1e-2, 30)
    torch.testing.assert_close(got, T.detach(), rtol=1e-8, atol=1e-10)


def test_least_norm_weight():
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    assert steps_descent.least_norm_weight(first, second) == pytest.approx(0.8)
    assert steps_descent.least_norm_weight(first, 3 * first) == 1.0
    assert steps_descent.least_norm_weight(first, first) == 0.5


def test_positions_follow_layer_numbers():
    names = ["embed.weight", "layers.0.w", "layers.1.w", "layers.2.w", "blocks.0.w", "head.weight"]
    assert layer_counts(names) == {"layers": 3, "blocks": 1}
    positions = layer_positions(names, last="head")
    assert [positions[name] for name in names] == [0.0, 0.0, 0.5, 1.0, 1.0, 1.0]


def test_positions_of_numbered_stages_and_modules():
    stages = layer_positions(["layer1.0.w", "layer1.1.w", "layer2.0.w", "layer2.1.w", "layer10.0.w", "conv1.w"])
    assert list(stages.values()) == [0.0, 0.25, 0.5, 0.75, 1.0, 0.0]
    modules = layer_positions(["linear1.weight", "norm1.weight", "linear2.weight", "norm2.weight", "head.weight"])
    assert list(modules.values()) == [0.0, 0.0, 1.0, 1.0, 0.0]


def test_settings_resolve_by_expert_pattern_and_depth():
    setting = {"a": 0.1, "attn": [0.0, 1.0], "default": {"mlp": 0.5, "default": 0.9}}
    place = lambda name, position=0.0, expert="": Place(name, position, expert, ("a", "b"))  # noqa: E731
    assert resolve(setting, place("attn.w", 0.25, "a")) == 0.1
    assert resolve(setting, place("attn.w", 0.25, "b")) == 0.25
    assert resolve(setting, place("mlp.w", 0.25, "b")) == 0.5
    assert resolve(setting, place("norm.w")) == 0.9


def test_setting_faults():
    allowed = Range(0, 1, above=True)
    found = [str(fault) for fault in setting_faults("k", {"a": 2, "(": 0.5, "c": [0.5, "x"], "d": []}, allowed)]
    assert len(found) == 4
    assert any("k.a: 2; expected a number in (0, 1]" in text for text in found)
    assert any("k.c[1]: 'x' is not a number" in text for text in found)
    assert key_faults("k", {"attn": 1, "zzz": 2}, ["attn.w"], ["e"])[0].where == "k.zzz"


@pytest.mark.parametrize("kind", ["wide", "square", "spiked", "low_rank", "centred", "tiny"])
def test_polar_factors_are_those_of_the_decomposition(kind):
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    matrix = {
        "wide": lambda: draw(20, 40),
        "square": lambda: draw(40, 40),
        "spiked": lambda: draw(40, 30) + 1e5 * draw(40, 2) @ draw(2, 30),
        "low_rank": lambda: draw(30, 4) @ draw(4, 20),
        "centred": lambda: (lambda m: m - m.mean(0) - m.mean(1, keepdim=True) + m.mean())(draw(20, 20)),
        "tiny": lambda: 1e-30 * draw(12, 9),
    }[kind]()
    U, S, V = torch.linalg.svd(matrix, full_matrices=False)
    rank = int((1e-10 * S[0] < S).sum())
    found = steps_spectral.polar(matrix)
    torch.testing.assert_close(found @ V[:rank].T, U[:, :rank], rtol=0, atol=1e-7)
    assert (torch.linalg.svdvals(found) < 1 + 1e-7).all()


def test_a_karcher_mean_ends_where_only_rounding_is_left(monkeypatch):
    torch.manual_seed(0)
    X = torch.randn(2000, dtype=torch.float64) + 0.3 * torch.randn(9, 2000, dtype=torch.float64)
    exact = steps_sphere.karcher_coefficients(X @ X.T, max_iter=50, tol=1e-7)
    calls, log_map = [], steps_sphere._log_map
    monkeypatch.setattr(steps_sphere, "_log_map", lambda *words: (calls.append(1), log_map(*words))[1])
    found = steps_sphere.karcher_coefficients(X @ X.T, max_iter=100_000, tol=1e-15)
    assert len(calls) <= 9 * 50
    assert found == pytest.approx(exact, rel=1e-6)
