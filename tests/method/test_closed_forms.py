"""Methods that no recorded output covers, against their papers' formulas written out on whole vectors."""

from __future__ import annotations

import math

import pytest
import torch

from fusion_eval.errors import ConfigError, MethodError
from fusion_eval.method.awd import Awd
from fusion_eval.method.cart import Cart
from fusion_eval.method.consensus import ConsensusTies
from fusion_eval.method.della import Della, DellaLinear
from fusion_eval.method.emr import Emr
from fusion_eval.method.iso_c import IsoC
from fusion_eval.method.knots_ties import KnotsTies
from fusion_eval.method.lines import Lines
from fusion_eval.method.localize_and_stitch import LocalizeAndStitch
from fusion_eval.method.magnitude_pruning import MagnitudePruning
from fusion_eval.method.model_recombination import ModelRecombination
from fusion_eval.method.pcb import Pcb
from fusion_eval.method.pipeline import Pipeline
from fusion_eval.method.sce import Sce
from fusion_eval.method.singular_projection import SingularProjection
from fusion_eval.method.step import (
    CalibrateSpectrum,
    DepthScale,
    Elect,
    ProjectOnOrigin,
    Scale,
    Sum,
    TaskSingularVectors,
    Trim,
)
from fusion_eval.method.task_arithmetic import TaskArithmetic
from fusion_eval.method.ties import Ties
from fusion_eval.method.tsv_c import TsvC
from fusion_eval.method.tsv_m import TsvM
from fusion_eval.method.weight_pruning import WeightPruning
from tests.method.conftest import StatePool, pool_of

MERGE_ALL = {"statistics": "merge"}
MATRIX = "layers.0.linear.weight"


def floats(pool):
    return [name for name, tensor in pool.base.items() if tensor.is_floating_point()]


def flat(pool):
    """The task vectors of a pool as rows, and what brings a row back into tensors."""
    names = floats(pool)
    rows = torch.stack(
        [torch.cat([(s[n].double() - pool.base[n].double()).reshape(-1) for n in names]) for s in pool.experts.values()]
    )

    def split(row):
        pieces = torch.split(row, [pool.base[name].numel() for name in names])
        return {
            name: pool.base[name].double() + piece.reshape(pool.base[name].shape)
            for name, piece in zip(names, pieces, strict=True)
        }

    return rows, split


def agree(merged, wanted, tolerance=2e-6):
    for name, tensor in wanted.items():
        torch.testing.assert_close(merged[name].double(), tensor, rtol=tolerance, atol=tolerance)


def top(row, density):
    cut = row.abs().sort(descending=True).values[max(1, int(density * len(row))) - 1]
    return row * (row.abs() >= cut)


def test_pcb():
    pool = pool_of(3)
    rows, split = flat(pool)
    count, size = rows.shape
    ordered = rows.abs().sort(dim=1).values
    low, high = ordered[:, int(size * 1e-4)], ordered[:, int(size * (1 - 1e-4) - 1)]
    clipped = rows.abs().clamp(low[:, None], high[:, None])
    own = ((clipped - low[:, None]) / (high - low)[:, None]) ** 2
    score = torch.exp(count * own) * torch.tanh(rows * rows.sum(0))
    cut = score.sort(dim=1).values[:, int(size * 0.9)][:, None]
    kept = (score.clamp(min=cut) - cut) / (score.max(1, keepdim=True).values - cut)
    merged = (rows.sign() * clipped * kept).sum(0) / kept.sum(0).clamp(min=1e-12)
    agree(Pcb(0.1, 1.0, tensors=MERGE_ALL).apply(pool), split(merged), 1e-4)


def test_localize_and_stitch():
    pool = pool_of(3)
    rows, split = flat(pool)
    kept = torch.stack([top(row, 0.3) for row in rows])
    merged = kept.sum(0) / (kept != 0).sum(0).clamp(min=1)
    agree(LocalizeAndStitch(0.3, 0.8, tensors=MERGE_ALL).apply(pool), split(0.8 * merged))


def test_consensus_ties():
    pool = pool_of(3)
    rows, split = flat(pool)
    kept = torch.stack([top(row, 0.4) for row in rows])
    sign = torch.where(kept.sum(0) >= 0, 1.0, -1.0)
    merged = (kept * (kept.sign() == sign)).sum(0)
    masks = rows.abs() > 0.4 * (merged - rows).abs()
    wanted = split(0.9 * merged * (masks.sum(0) >= 2))
    agree(ConsensusTies(0.4, 0.9, 0.4, 2, tensors=MERGE_ALL).apply(pool), wanted)


def test_cart():
    pool = pool_of(3)
    merged = Cart(0.7, 0.4).apply(pool)
    values = torch.stack([state[MATRIX].double() for state in pool.experts.values()])
    average = values.mean(0)
    total = torch.zeros_like(average)
    for value in values:
        U, S, V = torch.linalg.svd(value - average, full_matrices=False)
        rank = int(0.4 * len(S))
        total += U[:, :rank] @ torch.diag(S[:rank]) @ V[:rank]
    torch.testing.assert_close(merged[MATRIX].double(), average + 0.7 * total, rtol=1e-5, atol=1e-5)


def test_knots_ties():
    pool = pool_of(3)
    deltas = [state[MATRIX].double() - pool.base[MATRIX].double() for state in pool.experts.values()]
    U, S, V = torch.linalg.svd(torch.cat(deltas, 1), full_matrices=False)
    parts = torch.split(torch.diag(S) @ V, deltas[0].shape[1], dim=1)
    kept = torch.stack([top(part.reshape(-1), 0.3).reshape(part.shape) for part in parts])
    sign = torch.where(kept.sum(0) >= 0, 1.0, -1.0)
    agrees = kept.sign() == sign
    merged = U @ ((kept * agrees).sum(0) / agrees.sum(0).clamp(min=1))
    got = KnotsTies(0.3, 0.5).apply(pool)[MATRIX]
    torch.testing.assert_close(got.double(), pool.base[MATRIX].double() + 0.5 * merged, rtol=1e-5, atol=1e-5)


def test_awd_makes_task_vectors_less_alike():
    generator = torch.Generator().manual_seed(3)
    draw = lambda: torch.randn(40, 30, generator=generator)  # noqa: E731
    common, base = draw(), {"w": draw()}
    pool = StatePool(base, {f"t{index}": {"w": base["w"] + common + draw()} for index in range(4)})
    plain = TaskArithmetic(1.0).apply(pool)["w"] - base["w"]
    redundant = (plain - (Awd(1.0, alpha=0.0, steps=2000).apply(pool)["w"] - base["w"])) / 4
    rest = torch.stack([(state["w"] - base["w"] - redundant).reshape(-1) for state in pool.experts.values()])
    cosines = torch.nn.functional.normalize(rest) @ torch.nn.functional.normalize(rest).T
    before = torch.stack([(state["w"] - base["w"]).reshape(-1) for state in pool.experts.values()])
    alike = torch.nn.functional.normalize(before) @ torch.nn.functional.normalize(before).T
    off = ~torch.eye(4, dtype=torch.bool)
    assert alike[off].abs().mean() > 0.4
    assert cosines[off].abs().mean() < 0.1
    unchanged = Awd(1.0, alpha=100.0).apply(pool)["w"] - base["w"]
    assert (unchanged - plain).norm() < 0.1 * plain.norm()  # a dear norm keeps the redundant vector small


def test_sce_with_the_papers_weights():
    pool = pool_of(3)
    deltas = torch.stack([state[MATRIX].double() - pool.base[MATRIX].double() for state in pool.experts.values()])
    variance = deltas.var(0, unbiased=False).reshape(-1)
    cut = variance.sort(descending=True).values[int(0.25 * len(variance)) - 1]
    deltas = deltas * (variance >= cut).reshape(deltas.shape[1:])
    weights = (deltas**2).mean((1, 2)) / (deltas**2).mean((1, 2)).sum()
    masks = deltas.sign() == torch.where(deltas.sum(0) >= 0, 1.0, -1.0)
    shares = (weights[:, None, None] * masks).sum(0)
    merged = (weights[:, None, None] * masks * deltas).sum(0) / torch.where(shares == 0, 1.0, shares)
    got = Sce(0.25).apply(pool)[MATRIX]
    torch.testing.assert_close(got.double(), pool.base[MATRIX].double() + merged, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rescale", ["probability", "none", "norm"])
def test_della_keeps_by_rank(rescale):
    """One expert: how often an entry stays is its probability, and its mean is the delta when rescaled by it."""
    generator = torch.Generator().manual_seed(0)
    base = {"w": torch.zeros(3, 21)}
    delta = torch.randn(3, 21, generator=generator) + 0.2
    pool = StatePool(base, {"a": {"w": delta}})
    density, epsilon, runs = 0.5, 0.3, 1500
    method = DellaLinear(density, epsilon, 1.0, rescale)
    merged = torch.stack([method.apply(pool, seed=seed)["w"] for seed in range(runs)])
    ranks = delta.abs().argsort(1).argsort(1)
    probability = density - epsilon + 2 * epsilon * ranks / 20
    kept = (merged != 0).double().mean(0)
    assert ((kept - probability).abs() < 5 * (probability * (1 - probability) / runs).sqrt() + 1e-3).all()
    if rescale == "probability":
        spread = merged.std(0) / math.sqrt(runs)
        assert ((merged.mean(0) - delta).abs() < 5 * spread).all()
    if rescale == "norm":
        torch.testing.assert_close(merged.abs().sum((1, 2)), delta.abs().sum().expand(runs), rtol=1e-4, atol=0)
    if rescale == "none":
        assert torch.equal(merged[0][merged[0] != 0], delta[merged[0] != 0])


def test_della_elects_among_what_it_keeps():
    pool = pool_of(3)
    alone = {
        task: DellaLinear(0.6, 0.2, 1.0).apply(StatePool(pool.base, {task: state}), seed=4)[MATRIX] - pool.base[MATRIX]
        for task, state in pool.experts.items()
    }
    kept = torch.stack(list(alone.values())).double()
    sign = torch.where(kept.sum(0) >= 0, 1.0, -1.0)
    agrees = kept.sign() == sign
    merged = (kept * agrees).sum(0) / agrees.sum(0).clamp(min=1)
    got = Della(0.6, 0.2, 0.7, combine="mean").apply(pool, seed=4)[MATRIX]
    torch.testing.assert_close(got.double(), pool.base[MATRIX] + 0.7 * merged, rtol=1e-5, atol=1e-6)


def test_tsv_c_keeps_the_first_directions_of_each_task():
    pool = pool_of(3)
    models = TsvC().apply(pool)
    for task, state in pool.experts.items():
        U, S, V = torch.linalg.svd(state[MATRIX].double() - pool.base[MATRIX].double(), full_matrices=False)
        rank = len(S) // 3
        wanted = pool.base[MATRIX].double() + U[:, :rank] @ torch.diag(S[:rank]) @ V[:rank]
        torch.testing.assert_close(models[task][MATRIX].double(), wanted, rtol=1e-5, atol=1e-6)
        assert torch.equal(models[task]["layers.0.linear.bias"], state["layers.0.linear.bias"])


def test_recombined_models_use_each_layer_of_each_expert_once():
    pool = pool_of(3)
    models = [ModelRecombination(index).apply(pool, seed=5) for index in range(3)]
    for name in floats(pool):
        if "running" in name:
            continue
        chosen = [
            next(task for task, state in pool.experts.items() if torch.equal(state[name], model[name]))
            for model in models
        ]
        assert sorted(chosen) == ["task0", "task1", "task2"]
    first = models[0]
    layer = [name for name in floats(pool) if name.startswith("layers.0.")]
    sources = {next(t for t, s in pool.experts.items() if torch.equal(s[name], first[name])) for name in layer}
    assert len(sources) == 1


def test_magnitude_pruning_and_negation():
    pool = pool_of(1)
    delta = pool.experts["task0"][MATRIX] - pool.base[MATRIX]
    kept = top(delta.reshape(-1), 0.5).reshape(delta.shape)
    for rescale, factor in (("none", 1.0), ("density", 2.0)):
        merged = MagnitudePruning(0.5, rescale=rescale).apply(pool)[MATRIX]
        torch.testing.assert_close(merged, pool.base[MATRIX] + factor * kept, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(TaskArithmetic(-1.0).apply(pool)[MATRIX], pool.base[MATRIX] - delta)


@pytest.mark.parametrize("rescale", ["none", "norm"])
def test_pruning_by_rows(rescale):
    pool = pool_of(1)
    merged = MagnitudePruning(0.5, rescale=rescale, scope="row").apply(pool)
    for name in (MATRIX, "layers.0.conv.weight", "layers.0.linear.bias"):
        delta = (pool.experts["task0"][name] - pool.base[name]).double()
        rows = delta.reshape(len(delta) if delta.dim() > 1 else 1, -1)
        kept = torch.stack([top(row, 0.5) for row in rows]).reshape(delta.shape)
        factor = delta.abs().sum() / kept.abs().sum() if rescale == "norm" else 1.0
        torch.testing.assert_close(merged[name].double(), pool.base[name] + factor * kept, rtol=1e-5, atol=1e-6)


def test_groups_of_a_row_that_do_not_come_out_even():
    pool = pool_of(1)
    state = pool.experts["task0"]
    merged = WeightPruning(groups=[1, 4]).apply(pool)
    for name in (MATRIX, "layers.0.conv.weight"):
        rows = state[name].reshape(len(state[name]), -1)
        kept = torch.cat([top_of_each(group) for group in rows.split(4, 1)], 1)
        assert torch.equal(merged[name], kept.reshape(state[name].shape))
    assert torch.equal(merged["layers.0.linear.bias"], state["layers.0.linear.bias"])
    assert torch.equal(WeightPruning(tensors={"tables": "embed"}).apply(pool)["embed.weight"], state["embed.weight"])


def top_of_each(rows):
    return rows * (rows.abs() == rows.abs().max(1, keepdim=True).values)


@pytest.mark.parametrize("groups", [[2], [0, 4], [5, 4], [1.5, 4], ["2", 4]])
def test_groups_that_are_none_are_refused(groups):
    with pytest.raises(ConfigError, match="groups"):
        WeightPruning(groups=groups)


@pytest.mark.parametrize("rank", [2, None])
def test_the_parts_of_a_projection_are_disjoint(rank):
    pool = pool_of(2)
    base = pool.base[MATRIX].double()
    U, S, V = torch.linalg.svd(base, full_matrices=False)
    first = int((S.cumsum(0) < S.sum() / 2).sum()) + 1 if rank is None else rank
    total = sum(state[MATRIX].double() - base for state in pool.experts.values())
    for part, chosen in (("low", slice(0, first)), ("high", slice(first, None))):
        left, right = U[:, chosen] @ U[:, chosen].T, V[chosen].T @ V[chosen]
        got = SingularProjection(rank, part, 0.5).apply(pool)[MATRIX].double()
        torch.testing.assert_close(got, base + 0.5 * left @ total @ right, rtol=1e-6, atol=1e-6)


def test_a_projection_needs_something_to_start_from():
    with pytest.raises(MethodError, match=r"method\.origin"):
        Pipeline([ProjectOnOrigin(2), Sum()], origin="none").apply(pool_of(2))[MATRIX]


def test_kernels_are_averaged_flattened_or_taken_as_stacks_of_matrices():
    pool = pool_of(3)
    name = "layers.0.conv.weight"
    deltas = [state[name].double() - pool.base[name].double() for state in pool.experts.values()]
    whole = sum(deltas)

    def iso(matrix):
        U, S, V = torch.linalg.svd(matrix, full_matrices=False)
        return S.mean() * (U @ V)

    wanted = {
        "average": whole / 3,
        "flatten": iso(whole.reshape(4, 27)).reshape(whole.shape),
        "stack": torch.stack([iso(part) for part in whole.reshape(-1, 3, 3)]).reshape(whole.shape),
    }
    for kernels, delta in wanted.items():
        merged = IsoC(tensors={"kernels": kernels}).apply(pool)
        torch.testing.assert_close(merged[name].double() - pool.base[name], delta, rtol=1e-5, atol=1e-6)
        assert torch.equal(merged[MATRIX], IsoC().apply(pool)[MATRIX])


def test_steps_after_one_on_flattened_kernels_see_them_so():
    pool = pool_of(3)
    name = "layers.0.conv.weight"
    merged = Pipeline([TaskSingularVectors(), CalibrateSpectrum(0.1)], tensors={"kernels": "flatten"}).apply(pool)
    plain = TsvM(tensors={"kernels": "flatten"}).apply(pool)[name].double() - pool.base[name]
    deltas = [(state[name].double() - pool.base[name]).reshape(4, -1) for state in pool.experts.values()]
    wanted = calibrated(plain.reshape(4, -1), deltas, 0.1).reshape(plain.shape)
    torch.testing.assert_close(merged[name].double() - pool.base[name], wanted, rtol=1e-4, atol=1e-5)


def test_a_task_compressed_by_flattened_kernels():
    pool = pool_of(2)
    name = "layers.0.conv.weight"
    model = TsvC(1.0, tensors={"kernels": "flatten"}).apply(pool)["task1"]
    torch.testing.assert_close(model[name], pool.experts["task1"][name], rtol=1e-5, atol=1e-6)
    cut = TsvC(0.25, tensors={"kernels": "flatten"}).apply(pool)["task1"][name] - pool.base[name]
    assert torch.linalg.matrix_rank(cut.reshape(4, -1), rtol=1e-3) == 1


def calibrated(merged, deltas, alpha):
    U, S, V = torch.linalg.svd(merged, full_matrices=False)
    gammas = []
    for u in U.T:
        shares = [max(alpha, float((u @ merged) @ (u @ d) / ((u @ d) @ (u @ d)))) for d in deltas]
        gammas.append(len(deltas) / sum(shares))
    return U @ torch.diag(torch.tensor(gammas, dtype=S.dtype) * S) @ V


@pytest.mark.parametrize("over", ["tsv_m", "ties"])
def test_spectral_calibration_of_any_merge(over):
    pool = pool_of(3)
    if over == "tsv_m":
        steps, plain = [TaskSingularVectors()], TsvM()
    else:
        steps, plain = [Trim(0.2), Elect("sum"), Scale(0.3)], Ties(0.2, 0.3, "sum")
    merged = plain.apply(pool)[MATRIX].double() - pool.base[MATRIX].double()
    deltas = [state[MATRIX].double() - pool.base[MATRIX].double() for state in pool.experts.values()]
    got = Pipeline([*steps, CalibrateSpectrum(0.1)]).apply(pool)[MATRIX]
    wanted = pool.base[MATRIX].double() + calibrated(merged, deltas, 0.1)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


def test_depth_scaling_over_ties_finds_alpha_from_the_norms():
    pool = pool_of(3)
    plain = Ties(0.2, tensors=MERGE_ALL).apply(pool)
    summed = TaskArithmetic(1.0, tensors=MERGE_ALL).apply(pool)
    norm = lambda model: sum((model[n] - pool.base[n]).double().abs().sum() for n in floats(pool))  # noqa: E731
    alpha = norm(summed) / norm(plain) / 3
    merged = Pipeline([Trim(0.2), Elect(), DepthScale(None, 0.5)], tensors=MERGE_ALL).apply(pool)
    for name, position in (("layers.0.linear.weight", 0.0), ("layers.1.linear.weight", 1.0)):
        wanted = pool.base[name] + (alpha + 0.5 * position) * (plain[name] - pool.base[name])
        torch.testing.assert_close(merged[name], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("last", [None, "head"])
def test_lines_scales_by_depth_and_what_lies_outside_like_the_first_layer(last):
    pool = pool_of(3)
    merged = Lines(beta=0.5, last=last).apply(pool)
    depths = {
        "embed.weight": 0,
        "layers.0.linear.bias": 0,
        "layers.1.linear.weight": 1,
        "head.weight": last is not None,
    }
    for name, depth in depths.items():
        total = sum(state[name].double() - pool.base[name].double() for state in pool.experts.values())
        wanted = pool.base[name].double() + (1 / 3 + 0.5 * depth) * total
        torch.testing.assert_close(merged[name].double(), wanted, rtol=1e-5, atol=1e-6)


def test_awd_reaches_the_optimum_of_its_objective():
    """What descending on every entry of the redundant vector finds, and from there no better point in the span."""
    from scipy.optimize import minimize

    generator = torch.Generator().manual_seed(5)
    common = torch.randn(12, generator=generator, dtype=torch.float64)
    taus = torch.stack([common + torch.randn(12, generator=generator, dtype=torch.float64) for _ in range(3)])
    alpha = 0.1

    def objective(delta):
        rest = torch.nn.functional.normalize(taus - torch.as_tensor(delta), dim=1)
        cosines = rest @ rest.T
        return float((cosines.abs().sum() - 3) / 6 + alpha * torch.as_tensor(delta).norm())

    base = {"w": torch.zeros(12, dtype=torch.float64)}
    pool = StatePool(base, {f"t{index}": {"w": tau} for index, tau in enumerate(taus)})
    merged = Awd(1.0, alpha=alpha, steps=3000).apply(pool)["w"]
    delta = (taus.sum(0) - merged) / 3
    assert objective(delta) < 0.6 * objective(torch.zeros(12))
    best = min(
        minimize(objective, start, method="Nelder-Mead", options={"maxfev": 20000, "maxiter": 20000}).fun
        for start in (0.5 * taus.mean(0).numpy(), delta.numpy())
    )
    assert objective(delta) < best + 0.01


def test_emr_over_task_singular_vectors():
    pool = pool_of(3)
    merged = Emr([TaskSingularVectors()], tensors=MERGE_ALL).apply(pool)
    unified = TsvM(tensors=MERGE_ALL).apply(pool)
    shared = {name: unified[name].double() - pool.base[name].double() for name in floats(pool)}
    for task, state in pool.experts.items():
        own = {name: state[name].double() - pool.base[name].double() for name in shared}
        masks = {name: own[name] * shared[name] > 0 for name in shared}
        scale = sum(t.abs().sum() for t in own.values()) / sum((shared[n] * masks[n]).abs().sum() for n in shared)
        wanted = {name: pool.base[name].double() + scale * masks[name] * shared[name] for name in shared}
        agree(merged[task], wanted, 1e-4)
