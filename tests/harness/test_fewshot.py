from __future__ import annotations

from random import Random

import pytest

from fusion_eval.errors import ConfigError, DataError
from fusion_eval.harness.fewshot import ContextSampler, FirstNSampler, sampler_class


def test_the_stream_is_pythons_and_goes_on() -> None:
    pool = list(range(20))
    sampler, own = ContextSampler(pool, rnd=1234), Random(1234)
    for _ in range(3):
        assert sampler.sample(3) == own.sample(pool, 3)
        assert sampler.sample(2, eval_doc=5) == [x for x in own.sample(pool, 3) if x != 5][:2]
    sampler.set_rnd(1234)
    assert sampler.sample(3) == Random(1234).sample(pool, 3)


def test_duplicates_of_the_document_never_become_shots() -> None:
    sampler = ContextSampler([7] * 30 + [1, 2], rnd=0)
    for _ in range(20):
        assert sorted(sampler.sample(2, eval_doc=7)) == [1, 2]


def test_a_pool_that_is_too_small_is_told() -> None:
    with pytest.raises(DataError, match="5 shots are asked for; expected at most 3"):
        ContextSampler([1, 2, 3]).sample(5)
    with pytest.raises(DataError, match="at most 1"):
        FirstNSampler([1, 2]).sample(2, eval_doc=1)


def test_first_n_and_indices() -> None:
    assert FirstNSampler([4, 5, 6]).sample(2, eval_doc=4) == [5, 6]
    assert FirstNSampler([4, 5, 6], fewshot_indices=[2, 0]).sample(2) == [6, 4]


def test_unknown_samplers_are_told() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'first_n'"):
        sampler_class("first")
