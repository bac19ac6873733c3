"""Methods against formulas written out in numpy, on shapes and task vectors at the edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fusion_eval.method.breadcrumbs import Breadcrumbs
from fusion_eval.method.cart import Cart
from fusion_eval.method.consensus import ConsensusTaskArithmetic, ConsensusTies
from fusion_eval.method.expo import ExPO
from fusion_eval.method.iso_c import IsoC
from fusion_eval.method.iso_cts import IsoCts
from fusion_eval.method.karcher import Karcher
from fusion_eval.method.knots_ties import KnotsTies
from fusion_eval.method.localize_and_stitch import LocalizeAndStitch
from fusion_eval.method.magmax import MagMax
from fusion_eval.method.model_stock import ModelStock
from fusion_eval.method.multislerp import MultiSlerp
from fusion_eval.method.nearswap import NearSwap
from fusion_eval.method.nuslerp import NuSlerp
from fusion_eval.method.pcb import Pcb
from fusion_eval.method.ram import Ram, RamPlus
from fusion_eval.method.sce import Sce
from fusion_eval.method.simple_average import SimpleAverage
from fusion_eval.method.slerp import Slerp
from fusion_eval.method.svc import SvcTaskArithmetic
from fusion_eval.method.task_arithmetic import TaskArithmetic
from fusion_eval.method.ties import Ties
from fusion_eval.method.trust_region import TrustRegionTaskArithmetic
from fusion_eval.method.tsv_m import TsvM
from fusion_eval.method.wudi import Wudi
from tests.method import formulas
from tests.method.conftest import StatePool
from tests.method.formulas import each_tensor, on_matrices, whole_vector

SHAPES = {
    "scalar": (),
    "vector": (7,),
    "layers.0.square": (6, 6),
    "layers.0.wide": (4, 9),
    "layers.1.tall": (9, 4),
    "layers.1.kernel": (3, 2, 3, 2),
    "layers.2.row": (1, 5),
    "layers.2.column": (5, 1),
    "layers.2.w[0]+(x)*.weight": (5, 4),
    "layers.3.one_direction": (6, 5),
    "layers.3.unchanged": (5, 6),
}
CASES = {
    "simple_average": (SimpleAverage(), each_tensor(formulas.average)),
    "slerp": (
        Slerp(0.3),
        each_tensor(lambda b, xs: formulas.slerp(xs[0] if len(xs) > 1 else b, xs[-1], 0.3, 0.9995)),
    ),
    "nuslerp": (NuSlerp(), each_tensor(lambda b, xs: formulas.slerp(*xs, 0.5, 1 - 1e-16))),
    "multislerp": (MultiSlerp(), each_tensor(formulas.multislerp)),
    "karcher": (Karcher(), each_tensor(formulas.karcher)),
    "task_arithmetic": (TaskArithmetic(0.3), each_tensor(formulas.task_arithmetic(0.3))),
    "expo": (ExPO(0.1), each_tensor(formulas.expo)),
    "ties": (Ties(0.2), whole_vector(lambda rows: formulas.ties(rows, 0.2))),
    "ties_sum": (Ties(0.5, combine="sum"), whole_vector(lambda rows: formulas.ties(rows, 0.5, "sum"))),
    "ties_tensor": (Ties(0.4, combine="max", scope="tensor"), each_tensor(formulas.ties_in_tensors)),
    "magmax": (MagMax(), each_tensor(formulas.magmax)),
    "model_stock": (ModelStock(), each_tensor(formulas.model_stock)),
    "consensus_ta": (
        ConsensusTaskArithmetic(),
        whole_vector(formulas.consensus(lambda rows: rows.sum(0), 0.3)),
    ),
    "consensus_ties": (
        ConsensusTies(),
        whole_vector(formulas.consensus(lambda rows: formulas.ties(rows, 0.2, "sum"), 1.0)),
    ),
    "trust_region": (TrustRegionTaskArithmetic(), whole_vector(formulas.trust_region)),
    "localize_and_stitch": (LocalizeAndStitch(), whole_vector(formulas.localize_and_stitch)),
    "breadcrumbs": (Breadcrumbs(), each_tensor(formulas.breadcrumbs)),
    "sce": (Sce(), each_tensor(formulas.sce)),
    "ram": (Ram(), each_tensor(formulas.ram(0.0))),
    "ram_plus": (RamPlus(), each_tensor(formulas.ram(0.1))),
    "nearswap": (NearSwap(), each_tensor(formulas.nearswap)),
    "pcb": (Pcb(), whole_vector(formulas.pcb)),
    "tsv_m": (TsvM(), each_tensor(on_matrices(formulas.tsv_m))),
    "iso_c": (IsoC(), each_tensor(on_matrices(formulas.iso_c))),
    "iso_cts": (IsoCts(), each_tensor(on_matrices(formulas.iso_cts))),
    "svc_ta": (SvcTaskArithmetic(), each_tensor(formulas.svc)),
    "knots_ties": (KnotsTies(), each_tensor(formulas.knots_ties)),
    "cart": (Cart(), each_tensor(formulas.cart)),
    "wudi": (Wudi(steps=60), each_tensor(on_matrices(formulas.wudi))),
}
KINDS = ("different", "equal", "one is the base", "all are the base")
TOLERANCES = {torch.float64: 1e-8, torch.bfloat16: 5e-3, torch.float16: 7e-4}


def models(count, kind, seed=0):
    random = np.random.default_rng(seed)
    base = {name: random.standard_normal(shape) for name, shape in SHAPES.items()}
    found = []
    for index in range(count):
        deltas = {name: 0.1 * random.standard_normal(shape) for name, shape in SHAPES.items()}
        deltas["layers.3.one_direction"] = 0.1 * np.outer(random.standard_normal(6), random.standard_normal(5))
        deltas["layers.3.unchanged"] = np.zeros((5, 6))
        factor = 0 if kind == KINDS[3] or (kind == KINDS[2] and index == 0) else 1
        found.append({name: base[name] + factor * delta for name, delta in deltas.items()})
    return base, [found[0]] * count if kind == KINDS[1] else found


def cast(state, dtype):
    rounded = {name: torch.as_tensor(np.asarray(value)).to(dtype) for name, value in state.items()}
    return rounded | {"steps": torch.tensor(3), "empty": torch.zeros(0, 3, dtype=dtype)}


def compared(name, count, kind, dtype):
    method, formula = CASES[name]
    base, experts = models(count, kind)
    pool = StatePool(cast(base, dtype), {f"t{index}": cast(state, dtype) for index, state in enumerate(experts)})
    if method.faults(pool):
        pytest.skip(f"not for {count} experts")
    exact = [{n: state[n].double().numpy() for n in SHAPES} for state in (pool.base, *pool.experts.values())]
    wanted = formula(exact[0], exact[1:])
    merged = method.apply(pool)
    for tensor in merged:
        if tensor in SHAPES and not (dtype != torch.float64 and tensor == "layers.3.one_direction"):
            scale = max(1e-3, np.abs(wanted[tensor]).max())
            error = np.abs(merged[tensor].double().numpy() - wanted[tensor]).max() / scale
            assert error < TOLERANCES[dtype], tensor
    assert merged["steps"] == 3
    assert merged["empty"].shape == (0, 3)


@pytest.mark.parametrize(("kind", "count"), [*((kind, count) for kind in KINDS for count in (1, 2, 3)), (KINDS[0], 8)])
@pytest.mark.parametrize("name", CASES)
def test_formula(name, kind, count):
    compared(name, count, kind, torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_sixteen_bits(name, dtype):
    """Within a rounding; without the tensor whose other directions are rounding to begin with."""
    compared(name, 2, KINDS[0], dtype)
