"""Every method takes selectors, policies, and options by pattern, depth and expert."""

from __future__ import annotations

import re

import pytest
import torch
from omegaconf import OmegaConf

from fusion_eval.merge.per_task import TaskCheckpoints
from tests.method.conftest import StatePool, pool_of
from tests.method.test_configs import FILES, instantiate

CONFIGS = {path.stem: path for path in FILES}
SELECTING = sorted(
    name for name, path in CONFIGS.items() if "tensors" in OmegaConf.load(path) and name not in ("smile_upscaling",)
)
NAME = "layers.0.linear.weight"
ODD = "layers.2.w[0]+(x)*.weight"
SETTINGS = {  # the options whose numbers may differ, and a value that each method's others allow
    "scaling": 0.4,
    "density": 0.5,
    "alpha": 0.3,
    "t": 0.3,
    "gamma": 0.02,
    "common": 0.6,
    "select_topk": 0.4,
    "mask_threshold": 0.5,
    "epsilon": 0.1,
}
WHOLE_MODEL = {  # found over all tensors, or one number by nature
    ("awd", "alpha"),
    ("consensus_ties", "density"),
    ("doge_ta", "density"),
    ("dop", "alpha"),
    ("lines", "alpha"),
    ("localize_and_stitch", "density"),
    ("opcm", "alpha"),
    ("pcb", "density"),
    ("tall_masks", "mask_threshold"),
    ("ties", "density"),
}


def config(name, **changes):
    found = OmegaConf.load(CONFIGS[name])
    found.tensors.update(changes)
    return found


def fitting(method, count=3):
    for number in (count, 2, 1):
        pool = pool_of(number)
        for state in (pool.base, *pool.experts.values()):
            state[ODD] = state[NAME].T.clone()
        if not method.faults(pool):
            return pool
    raise AssertionError


def models(merged):
    return dict(merged).values() if isinstance(merged, TaskCheckpoints) else [merged]


def plain_average(pool, name):
    return torch.stack([state[name] for state in pool.experts.values()]).mean(0)


@pytest.mark.parametrize("others", ["base", "average"])
@pytest.mark.parametrize("name", SELECTING)
def test_tensors_that_are_not_selected(name, others):
    """By regular expressions, with a name in which their characters stand for themselves."""
    chosen = config(
        name, include=[rf"^{re.escape(ODD)}$", "layers"], exclude=["bias$", rf"^{re.escape(NAME)}$"], others=others
    )
    method = instantiate(chosen)
    pool = fitting(method)
    everything = fitting(instantiate(config(name)))
    for model, whole in zip(
        models(method.apply(pool)), models(instantiate(config(name)).apply(everything)), strict=True
    ):
        for left in ("embed.weight", "head.weight", NAME, "layers.0.linear.bias"):
            wanted = pool.base[left] if others == "base" else plain_average(pool, left)
            torch.testing.assert_close(model[left], wanted, rtol=1e-6, atol=1e-6)
        assert model[ODD].shape == whole[ODD].shape
        assert bool(model[ODD].isfinite().all())


@pytest.mark.parametrize("statistics", ["base", "average", "merge"])
@pytest.mark.parametrize("name", SELECTING)
def test_statistics_and_counters(name, statistics):
    method = instantiate(config(name, statistics=statistics))
    pool = fitting(method)
    for model in models(method.apply(pool)):
        assert torch.equal(model["layers.1.norm.num_batches_tracked"], pool.base["layers.1.norm.num_batches_tracked"])
        found = model["layers.1.norm.running_var"]
        if statistics == "base":
            assert torch.equal(found, pool.base["layers.1.norm.running_var"])
        if statistics == "average":
            torch.testing.assert_close(found, plain_average(pool, "layers.1.norm.running_var"), rtol=1e-6, atol=1e-6)


def options():
    for name in SELECTING:
        for option, value in SETTINGS.items():
            if isinstance(OmegaConf.load(CONFIGS[name]).get(option), int | float) and (name, option) not in WHOLE_MODEL:
                yield name, option, value


@pytest.mark.parametrize(("name", "option", "value"), list(options()))
def test_an_option_by_pattern_and_depth(name, option, value):
    """A tensor with a number of its own is as with that number for all; so is a layer of a gradient."""
    given = config(name)
    start = given[option]
    uniform = OmegaConf.merge(given, {option: value})
    by_pattern = OmegaConf.merge(given, {option: {"layers.1.linear": value, "default": start}})
    by_depth = OmegaConf.merge(given, {option: [start, value, value]})
    methods = [instantiate(each) for each in (uniform, given, by_pattern, by_depth)]
    pool = fitting(methods[0])
    (own, before, pattern, depth) = (method.apply(pool, seed=3) for method in methods)
    for changed in (pattern, depth):
        assert torch.equal(changed["layers.1.linear.weight"], own["layers.1.linear.weight"])
        assert torch.equal(changed[NAME], before[NAME])


def test_a_pool_of_the_options_is_not_empty():
    assert len(list(options())) > 25
    assert isinstance(fitting(instantiate(config("ties"))), StatePool)
