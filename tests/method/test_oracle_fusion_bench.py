"""Methods against FusionBench 0.2.33's recorded outputs (scripts/record_method_oracles), where it is right.

Of the 57 cases that it ran, CASES, PRUNED, PER_TASK and the tests named in COVERED say which are compared, and LEFT_OUT
why the others are not. Inputs and outputs are float64. The float32 run must agree with the float64 run on the same
(float32) inputs to 1e-6 of a tensor's largest entry: what rounding the inputs does is not the method's doing.
"""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from safetensors import safe_open
from torch import nn

from fusion_eval.merge.steps_spectral import aligned
from fusion_eval.method.bitdelta import BitDelta
from fusion_eval.method.consensus import ConsensusTaskArithmetic
from fusion_eval.method.doge_ta import DogeTa
from fusion_eval.method.dop import Dop
from fusion_eval.method.emr import Emr
from fusion_eval.method.ensemble import Ensemble
from fusion_eval.method.expo import ExPO
from fusion_eval.method.iso_c import IsoC
from fusion_eval.method.iso_cts import IsoCts
from fusion_eval.method.magmax import MagMax
from fusion_eval.method.magnitude_pruning import MagnitudePruning
from fusion_eval.method.model_stock import ModelStock
from fusion_eval.method.opcm import Opcm
from fusion_eval.method.pipeline import Pipeline
from fusion_eval.method.simple_average import SimpleAverage
from fusion_eval.method.singular_projection import SingularProjection
from fusion_eval.method.slerp import Slerp
from fusion_eval.method.smile_upscaling import SmileUpscaling
from fusion_eval.method.step import LowRank, Sum
from fusion_eval.method.svc import SvcTaskArithmetic
from fusion_eval.method.tall_masks import TallMasks
from fusion_eval.method.task_arithmetic import TaskArithmetic
from fusion_eval.method.ties import Ties
from fusion_eval.method.trust_region import TrustRegionTaskArithmetic
from fusion_eval.method.tsv_m import TsvM
from fusion_eval.method.weight_pruning import WeightPruning
from fusion_eval.method.weighted_average import WeightedAverage
from fusion_eval.method.wudi import Wudi
from tests.method.conftest import StatePool

TASKS = ("task0", "task1", "task2", "task3")


class Oracle:
    """Recorded inputs and outputs, by tensor name."""

    def __init__(self, path):
        with safe_open(path, "pt") as file:
            self.order = json.loads(file.metadata()["order"])
            self.ran = {name for name, status in json.loads(file.metadata()["cases"]).items() if status == "ok"}
            self.shapes = {name: tuple(shape) for name, shape in json.loads(file.metadata()["shapes"]).items()}
            self.tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118

    def state(self, key):
        names = list(self.shapes)
        kept = self.tensors.get("names|" + key.removeprefix("merged|"))
        names = names if kept is None else [names[index] for index in kept.tolist()]
        sizes = [torch.Size(self.shapes[name]).numel() for name in names]
        pieces = torch.split(self.tensors[key], sizes)
        return {name: piece.reshape(self.shapes[name]) for name, piece in zip(names, pieces, strict=True)}

    def pool(self, count=4, *, with_base=True, dtype=torch.float64):
        base, *experts = (self.state(f"input|{name}") for name in ("base", *TASKS))
        cast = lambda state: {name: tensor.to(dtype) for name, tensor in state.items()}  # noqa: E731
        states = {name: cast(state) for name, state in list(zip(TASKS, experts, strict=True))[:count]}
        return StatePool(cast(base) if with_base else None, states)

    def dropped(self, names):
        """The pool with FusionBench's random masks replayed: seed 0, expert after expert, in the modules' order."""
        pool = self.pool()
        torch.manual_seed(0)
        experts = {}
        for task, state in pool.experts.items():
            experts[task] = dict(state)
            for name in names:
                delta = state[name] - pool.base[name]
                experts[task][name] = pool.base[name] + delta * (torch.rand_like(delta) > 0.5) / 0.5
        return StatePool(pool.base, experts)


@pytest.fixture(scope="module")
def oracle(assets_dir):
    return Oracle(assets_dir / "method" / "fusion_bench.safetensors")


def largest_error(got, wanted):
    errors = []
    for name, tensor in wanted.items():
        scale = max(1e-3, tensor.abs().max().item())
        errors.append((got[name].double() - tensor).abs().max().item() / scale)
    return max(errors)


NUMEL = 5190
WHOLE_MODEL = (int(0.2 * NUMEL) + 1.5) / NUMEL  # its TIES keeps one entry more than the top 20 %
LINEAR = r"(proj|fc\d|head)\.weight"
ENCODER = {"include": r"encoder.*(proj|fc\d)\.weight"}  # DOGE-TA changes nothing else there
ENCODER_NUMEL = 4096
NO_TABLE = {"tables": "embed"}
CASES = [
    ("simple_average", SimpleAverage(), 4, 1e-12),
    ("weighted_average_norm", WeightedAverage([1, 2, 3, 4]), 4, 1e-12),
    ("weighted_average_raw", WeightedAverage([0.1, 0.2, 0.3, 0.4], normalize=False), 4, 1e-12),
    ("task_arithmetic_0.3", TaskArithmetic(0.3), 4, 1e-12),
    ("task_wise_merge", TaskArithmetic(1.0, torch.linspace(0.1, 0.5, 4).tolist()), 4, 1e-6),  # recorded in float32
    ("slerp_t0.5", Slerp(0.5), 2, 1e-12),
    ("slerp_t0.2", Slerp(0.2), 2, 1e-12),
    ("expo_0.1", ExPO(0.1), 4, 1e-12),
    ("ties_sum", Ties(WHOLE_MODEL, 0.3, "sum"), 4, 1e-12),
    ("ties_mean", Ties(WHOLE_MODEL, 0.3, "mean"), 4, 1e-12),
    ("ties_max", Ties(WHOLE_MODEL, 0.3, "max"), 4, 1e-12),
    ("magmax_0.5", MagMax(0.5), 4, 1e-12),
    ("model_stock_2", ModelStock(), 2, 5e-6),  # its angles are float32, and it adds 1e-8 to small norms
    ("consensus_ta_derived", ConsensusTaskArithmetic(0.3, 0.6, 2), 4, 1e-7),  # recorded with a float32 factor
    ("trust_region_zero_shot", TrustRegionTaskArithmetic(0.3, 0.99), 4, 1e-12),
    ("iso_c", IsoC(), 4, 1e-10),
    ("iso_cts", IsoCts(), 4, 1e-10),
    ("tsvm", TsvM(), 4, 1e-10),
    ("tsvm_single_task_models@merged", TsvM(), 4, 1e-10),
    ("tsvm_2", TsvM(), 4, 1e-9),
    ("tsvm_alpha_list", TsvM(weights=[0.8, 1.2, 0.8, 1.2]), 4, 1e-10),
    ("tsvm_lossless", TsvM(rank=1.0), 4, 1e-6),  # its buffers are float32
    ("wudi_50", Wudi(steps=50), 4, 1e-6),  # Adam divides by what rounding left of a gradient
    ("svc_task_arithmetic", SvcTaskArithmetic(0.3), 4, 1e-11),
    ("doge_ta", DogeTa(density=(int(0.3 * ENCODER_NUMEL) + 1.5) / ENCODER_NUMEL, tensors=ENCODER), 4, 1e-12),
    ("opcm", Opcm(0.5, tensors=NO_TABLE), 4, 1e-10),
    ("dop_20", Dop(steps=20, tensors=NO_TABLE), 4, 1e-12),
    ("singular_projection_low", SingularProjection(4, tensors=NO_TABLE), 1, 1e-6),
    ("magnitude_diff_prune", MagnitudePruning(scope="row", tensors={"include": LINEAR}), 1, 1e-6),
]
SAME_AS = {"tsvm_single_task_models@merged": "tsvm", "tsvm_2": "tsvm"}  # what is recorded once
COVERED = {
    "model_stock": "test_model_stock_of_four_averages_cosines_where_fusion_bench_averages_angles",
    "emr": "test_emr",
    "emr_unified": "test_emr_unified",
    "tall_masks_fn": "test_tall_masks",
    "bitdelta_binary_diff": "test_bitdelta",
    "tsvm_single_task_models": "test_single_tasks_of_tsv_m_add_up_to_it",
    "tsvm_rank_reduction": "test_rank_reduction_without_orthogonal_vectors",
    "layer_wise_merge": "test_weights_by_tensor_and_expert",
    "knots_subspace_alignment": "test_alignment_gives_the_task_vectors_back",
    "tsvm_lossless_eigen": "test_all_directions_by_eigenvalues_are_a_thousandth_off",
    "unstructured_magnitude_prune": "test_weights_are_pruned_by_rows",
    "semistructured_2_4_prune": "test_weights_are_pruned_by_rows",
    "magnitude_diff_prune_default": "test_pruning_rescaled_by_false_is_the_base",
    "dare_task_arithmetic": "test_dare_with_its_masks",
    "dare_task_arithmetic_linear_only": "test_dare_with_its_masks",
    "dare_simple_average": "test_dare_with_its_masks",
    "dare_ties": "test_dare_with_its_masks",
    "smile_k4_top1": "test_networks",
    "smile_dense_avg": "test_networks",
    "ensemble_mean": "test_networks",
    "ensemble_weighted": "test_networks",
    "ensemble_max": "test_networks",
}
DATA = "needs data, gradients or labels: not a merge of weights alone"
LEFT_OUT = {
    "svc_iso_c": "all singular values are equal, so its directions are arbitrary, not their signs alone",
    "adamerging_layer_wise_5": DATA,
    "adamerging_task_wise_5": DATA,
    "regmean_0.9": DATA,
    "fisher_norm": DATA,
    "fisher_raw": DATA,
    "wemoe_gate0": DATA,
}


def test_every_case_is_compared_or_left_out_for_a_reason(oracle):
    compared = {case.partition("@")[0] for case, *_ in CASES} | set(COVERED)
    assert compared | set(LEFT_OUT) == oracle.ran
    assert not compared & set(LEFT_OUT)
    assert len(oracle.ran) == 57
    assert all(test in globals() for test in COVERED.values())


def pool_for(oracle, case, count, dtype=torch.float64):
    return oracle.pool(count, with_base=count != 2 or case == "model_stock_2", dtype=dtype)


@pytest.mark.parametrize(("case", "method", "count", "tolerance"), CASES, ids=[case[0] for case in CASES])
def test_case(oracle, case, method, count, tolerance):
    merged = method.apply(pool_for(oracle, case, count))
    assert largest_error(merged, oracle.state(f"merged|{SAME_AS.get(case, case)}")) < tolerance


@pytest.mark.parametrize(("case", "method", "count"), [case[:3] for case in CASES], ids=[case[0] for case in CASES])
def test_float32(oracle, case, method, count):
    narrow = pool_for(oracle, case, count, torch.float32)
    widened = lambda state: None if state is None else {name: tensor.double() for name, tensor in state.items()}  # noqa: E731
    wide = StatePool(widened(narrow.base), {task: widened(state) for task, state in narrow.experts.items()})
    merged = method.apply(narrow)
    assert all(merged[name].dtype == torch.float32 for name in merged)
    assert largest_error(merged, dict(method.apply(wide))) < 1e-6


def test_model_stock_of_four_averages_cosines_where_fusion_bench_averages_angles(oracle):
    """The paper (arXiv:2403.19522, eq. 5) has one angle; of several, mergekit averages cosines and so do we."""
    pool, wanted = oracle.pool(), oracle.state("merged|model_stock")
    ours = ModelStock().apply(pool)
    for name, base in pool.base.items():
        deltas = [(state[name] - base).reshape(-1) for state in pool.experts.values()]
        pairs = [(a, b) for index, a in enumerate(deltas) for b in deltas[index + 1 :]]
        cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in pairs]
        angle = sum(map(math.acos, cosines)) / len(cosines)
        average = sum(state[name] for state in pool.experts.values()) / 4
        for cosine, found in ((math.cos(angle), wanted[name]), (sum(cosines) / len(cosines), ours[name])):
            ratio = 4 * cosine / (1 + 3 * cosine)
            torch.testing.assert_close(found, ratio * average + (1 - ratio) * base, rtol=0, atol=5e-6)


def test_single_tasks_of_tsv_m_add_up_to_it(oracle):
    pool = oracle.pool()
    parts = [oracle.state(f"merged|tsvm_single_task_models@{task}") for task in TASKS]
    merged = TsvM().apply(pool)
    for name, base in pool.base.items():
        if base.dim() == 2:
            total = base + sum(part[name].double() - base for part in parts)
            torch.testing.assert_close(merged[name], total, rtol=0, atol=1e-6)


def test_rank_reduction_without_orthogonal_vectors(oracle):
    pool, wanted = oracle.pool(), oracle.state("merged|tsvm_rank_reduction")
    merged = Pipeline([LowRank(0.25), Sum()]).apply(pool)
    for name, base in pool.base.items():
        if base.dim() == 2:
            torch.testing.assert_close(merged[name], wanted[name].double(), rtol=0, atol=1e-6)


def test_all_directions_by_eigenvalues_are_a_thousandth_off(oracle):
    """Its (U^T U)^(-1/2) of 64 vectors in 16 dimensions inverts rounding; right is what its decomposition gives."""
    merged = TsvM(rank=1.0).apply(oracle.pool())
    assert 1e-4 < largest_error(merged, oracle.state("merged|tsvm_lossless_eigen")) < 1e-3
    assert largest_error(merged, oracle.state("merged|tsvm_lossless")) < 1e-6


@pytest.mark.parametrize(
    ("case", "groups"), [("unstructured_magnitude_prune", None), ("semistructured_2_4_prune", [2, 4])]
)
def test_weights_are_pruned_by_rows(oracle, case, groups):
    base = oracle.state("input|base")
    merged = WeightPruning(0.5, groups).apply(StatePool(None, {"model": base}))
    assert largest_error(merged, oracle.state(f"merged|{case}")) < 1e-6


def test_weights_by_tensor_and_expert(oracle):
    names = oracle.order
    numbers = torch.linspace(0.1, 0.5, 4 * len(names), dtype=torch.float64).reshape(4, -1).tolist()
    weights = {
        task: {f"^{re.escape(name)}$": value for name, value in zip(names, row, strict=True)}
        for task, row in zip(TASKS, numbers, strict=True)
    }
    merged = TaskArithmetic(1.0, weights).apply(oracle.pool())
    assert largest_error(merged, oracle.state("merged|layer_wise_merge")) < 1e-6


def test_alignment_gives_the_task_vectors_back(oracle):
    """Its U diag(S) V_t is tau_t, which is all that was recorded of it."""
    pool = oracle.pool()
    for name, base in pool.base.items():
        if base.dim() == 2:
            deltas = [state[name] - base for state in pool.experts.values()]
            basis, parts = aligned(deltas)
            for delta, part in zip(deltas, parts, strict=True):
                torch.testing.assert_close(basis @ part, delta, rtol=0, atol=1e-12)


def test_pruning_rescaled_by_false_is_the_base(oracle):
    """Its default multiplies the change by False, which leaves the base; ours keeps the change."""
    pool = oracle.pool(1)
    merged = MagnitudePruning(scope="row", tensors={"include": LINEAR}).apply(pool)
    assert largest_error(merged, pool.base) > 0.01


DARES = {
    "dare_task_arithmetic": TaskArithmetic(0.3),
    "dare_task_arithmetic_linear_only": TaskArithmetic(0.3),
    "dare_simple_average": TaskArithmetic(0.25),
    "dare_ties": Ties(WHOLE_MODEL, 0.3, "sum"),
}


@pytest.mark.parametrize("case", DARES)
def test_dare_with_its_masks(oracle, case):
    """Random masks are of another generator here; with its own replayed, the rest of each method agrees."""
    names = [name for name in oracle.order if not case.endswith("linear_only") or re.search(LINEAR, name)]
    merged = DARES[case].apply(oracle.dropped(names))
    assert largest_error(merged, oracle.state(f"merged|{case}")) < 1e-6


class Block(nn.Module):
    """A pre-norm transformer block with one head, as recorded."""

    def __init__(self):
        super().__init__()
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(16, 16) for _ in range(3))
        self.out_proj, self.fc1, self.fc2 = nn.Linear(16, 16, bias=False), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        h = self.layer_norm1(x)
        shares = torch.softmax(self.q_proj(h) @ self.k_proj(h).mT / 4, -1)
        x = x + self.out_proj(shares @ self.v_proj(h))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.layer_norm2(x))))


class Recorded(nn.Module):
    """The network whose outputs were recorded."""

    def __init__(self):
        super().__init__()
        self.embed, self.encoder = nn.Embedding(40, 16), nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 6)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.encoder:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class NetworkPool(StatePool):
    def load(self, name):
        model = Recorded().double()
        model.load_state_dict(dict(self.checkpoint(name)))
        return model.eval()


@pytest.mark.parametrize(
    ("case", "method"),
    [
        ("smile_k4_top1", SmileUpscaling(2, 4, 1)),
        ("smile_dense_avg", SmileUpscaling(2, None, 4, tensors={"include": LINEAR, "others": "average"})),
        ("ensemble_mean", Ensemble()),
        ("ensemble_weighted", Ensemble(weights=[1, 2, 3, 4])),
        ("ensemble_weighted", Ensemble(weights={"task3": 4, "task1": 2, "task2": 3, "task0": 1})),
        ("ensemble_max", Ensemble("max")),
    ],
)
def test_networks(oracle, case, method):
    pool = oracle.pool()
    assert method.faults(pool) == []
    network = method.apply(NetworkPool(pool.base, pool.experts))
    with torch.no_grad():
        found = network(oracle.tensors["x"])
    tolerance = 1e-7 if case == "ensemble_weighted" else 1e-9  # its weights are float32
    torch.testing.assert_close(found, oracle.tensors[f"output|{case}"], rtol=0, atol=tolerance)


def test_emr_unified(oracle):
    pool = oracle.pool()
    shared = Emr(rescale="tensors").apply(pool).shared
    wanted = oracle.state("merged|emr_unified")
    assert largest_error(shared, {name: pool.base[name] + tensor for name, tensor in wanted.items()}) < 1e-6


@pytest.mark.parametrize("task", TASKS)
def test_emr(oracle, task):
    merged = Emr(rescale="tensors").apply(oracle.pool())
    assert largest_error(merged[task], oracle.state(f"merged|emr@{task}")) < 1e-6  # its numbers are float32


@pytest.mark.parametrize("task", TASKS)
def test_tall_masks(oracle, task):
    merged = TallMasks(0.6).apply(oracle.pool())
    assert largest_error(merged[task], oracle.state(f"merged|tall_masks_fn@{task}")) < 1e-12


def test_bitdelta(oracle):
    merged = BitDelta().apply(oracle.pool())
    assert largest_error(merged["task0"], oracle.state("merged|bitdelta_binary_diff")) < 1e-6
