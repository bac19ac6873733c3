from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from fusion_eval.errors import MethodError
from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint
from fusion_eval.merge.engine import AlignedPool, Loop, MergedCheckpoint, rule_key, stream
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.group import CHUNK, ElementwiseRule, Rule, ScannedRule, TensorGroup
from fusion_eval.merge.sinks import save_checkpoint
from tests.merge.conftest import assert_equal, small_state


def average(group: TensorGroup) -> Tensor:
    return torch.stack(group.values()).mean(0)


def scaled_deltas(group: TensorGroup) -> Tensor:
    return group.required_base() + 0.3 * sum(group.deltas())


def norm_scaled(group: TensorGroup) -> Rule:
    norm = sum(float(piece.deltas()[0].square().sum()) for piece in group.slices()) ** 0.5
    return NormScaled(norm)


class NormScaled:
    def __init__(self, norm: float) -> None:
        self.norm = norm

    def __call__(self, group: TensorGroup) -> Tensor:
        return group.required_base() + group.deltas()[0] / (1 + self.norm)


def masked(group: TensorGroup) -> Rule:
    return Masked([group.generator(index) for index in range(len(group.experts))])


class Masked:
    """Draws as it goes over the slices."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self.generators = generators

    def __call__(self, group: TensorGroup) -> Tensor:
        merged = group.required_base()
        for delta, generator in zip(group.deltas(), self.generators, strict=True):
            merged = merged + delta * (torch.rand(delta.shape, generator=generator) < 0.5)
        return merged


def row_scaled(group: TensorGroup) -> Tensor:
    """A rule over rows: each is divided by its length."""
    delta = group.deltas()[0]
    rows = delta.reshape(delta.shape[0], -1) if delta.dim() > 1 else delta.reshape(1, -1)
    return group.required_base() + (rows / (1 + rows.norm(dim=1, keepdim=True))).reshape(delta.shape)


def row_scan(group: TensorGroup) -> Rule:
    return row_scaled


RULES: dict[str, Rule] = {
    "rows": ElementwiseRule(row_scaled, rows=True),
    "scanned rows": ScannedRule(row_scan, rows=True),
    "whole": average,
    "elementwise": ElementwiseRule(scaled_deltas),
    "norms": ScannedRule(norm_scaled),
    "random": ScannedRule(masked),
}


class Memory:
    """A sink that keeps everything, and counts."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.threads: set[int] = set()
        self.lock = threading.Lock()

    def write(self, name: str, tensor: Tensor, start: int = 0) -> None:
        with self.lock:
            self.threads.add(threading.get_ident())
            old = self.tensors.get(name, torch.zeros(0, dtype=tensor.dtype))
            assert old.numel() == start
            self.tensors[name] = torch.cat([old, tensor.reshape(-1)])


def pool(dtype: torch.dtype = torch.float32, large: bool = False, seed: int = 0) -> AlignedPool:
    states = [small_state(index, dtype) for index in range(4)]
    for index, state in enumerate(states):
        generator = torch.Generator().manual_seed(index)
        if large:
            state["large"] = torch.randn(3, CHUNK + 5, generator=generator).to(dtype)
            state["tall"] = torch.randn(1500, 2, 67, generator=generator).to(dtype)
        state["steps"] = torch.tensor([1, 2])
    base, *experts = [StateDictCheckpoint(state) for state in states]
    return AlignedPool(base, dict(zip("xyz", experts, strict=True)), seed)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_slices_are_the_whole_tensor(name: str, dtype: torch.dtype) -> None:
    merged, aligned = MergedCheckpoint(RULES[name], pool(dtype, large=True)), pool(dtype, large=True)
    assert merged["empty"].shape == (0, 3)
    for tensor in ("large", "tall", "scale", "layers.1.q.weight"):
        expected = RULES[name](aligned.group(tensor)).to(dtype)
        assert torch.equal(merged[tensor], expected)
        assert torch.equal(torch.cat(list(merged.pieces(tensor))), expected.reshape(-1))


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(RULES)),
    threads=st.integers(1, 5),
    world=st.integers(1, 4),
    shard_bytes=st.integers(1, 800),
)
def test_memory_is_shards_is_ranks_is_threads(
    tmp_path_factory: pytest.TempPathFactory, name: str, threads: int, world: int, shard_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("same")
    merged = MergedCheckpoint(RULES[name], pool(torch.bfloat16, seed=3))
    expected = {tensor: merged[tensor] for tensor in merged}
    folder = save_checkpoint(merged, root / "shards", shard_bytes=shard_bytes, loop=Loop(threads=threads))
    assert_equal(open_checkpoint(folder), expected)
    together: dict[str, Tensor] = {}
    for rank in range(world):
        sink = Memory()
        stream(merged, sink, rank=rank, world=world, loop=Loop(threads=threads))
        assert not together.keys() & sink.tensors.keys()
        together |= sink.tensors
    assert together.keys() == expected.keys()
    assert all(torch.equal(together[tensor], value.reshape(-1)) for tensor, value in expected.items())


def test_a_merge_of_merges(tmp_path: Path) -> None:
    inner = MergedCheckpoint(average, pool())
    outer = MergedCheckpoint(ElementwiseRule(scaled_deltas), AlignedPool(pool().reference, {"m": inner}))
    base, mean = small_state(0)["embed.weight"], inner["embed.weight"]
    torch.testing.assert_close(outer["embed.weight"], base + 0.3 * (mean - base))


def test_result_has_the_dtype_of_the_reference_and_one_rounding() -> None:
    base = StateDictCheckpoint({"t": torch.tensor([1.0], dtype=torch.bfloat16)})
    experts = {n: StateDictCheckpoint({"t": torch.tensor([v])}) for n, v in (("a", 1.003), ("b", 1.0051))}
    merged = MergedCheckpoint(average, AlignedPool(base, experts))
    assert merged["t"].dtype == torch.bfloat16
    assert torch.equal(merged["t"], torch.tensor([(1.003 + 1.0051) / 2]).bfloat16())


def test_integers_are_copied_and_differences_noted() -> None:
    aligned = pool()
    aligned.experts["y"] = StateDictCheckpoint(small_state(9))
    merged = MergedCheckpoint(average, aligned)
    assert torch.equal(merged["steps"], torch.tensor([1, 2]))
    assert torch.equal(merged["mask"], small_state()["mask"])
    assert dict(merged.notes) == {"steps": "torch.int64 tensor copied from the reference; y differ"}


@pytest.mark.parametrize("rule", [average, ElementwiseRule(average)])
def test_what_is_not_finite_is_refused_and_explained(rule: Rule) -> None:
    aligned = pool()
    aligned.experts["y"] = StateDictCheckpoint({**small_state(1), "scale": torch.tensor(float("nan"))})
    with pytest.raises(
        MethodError, match=r"tensor 'scale': the merge is not finite in torch.float32; y has such values"
    ):
        MergedCheckpoint(rule, aligned)["scale"]
    infinite = ElementwiseRule(lambda group: group.values()[0] / 0)
    with pytest.raises(MethodError, match="not finite"):
        MergedCheckpoint(infinite, pool())["head.bias"]
    with pytest.raises(MethodError, match=r"not finite in torch\.float16"):
        MergedCheckpoint(ElementwiseRule(lambda group: group.values()[0] * 1e6), pool(torch.float16))["head.bias"]


def test_infinities_that_models_share_are_kept() -> None:
    state = {"bias": torch.tensor([0.0, float("-inf")])}
    aligned = AlignedPool(None, {name: StateDictCheckpoint(state) for name in "ab"})
    assert torch.equal(MergedCheckpoint(average, aligned)["bias"], state["bias"])


def test_infinities_that_models_share_are_kept_in_differences_too() -> None:
    base = {"bias": torch.tensor([0.0, float("-inf"), 1.0])}
    expert = {"bias": torch.tensor([1.0, float("-inf"), 1.0])}
    aligned = AlignedPool(StateDictCheckpoint(base), {"a": StateDictCheckpoint(expert)})
    rule = ElementwiseRule(lambda group: group.required_base() + 0.5 * group.deltas()[0])
    assert torch.equal(MergedCheckpoint(rule, aligned)["bias"], torch.tensor([0.5, float("-inf"), 1.0]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_one_model_has_alone_is_an_error_or_allowed_with_a_note(value: float) -> None:
    states = {"a": {"w": torch.tensor([1.0, value])}, "b": {"w": torch.tensor([1.0, 2.0])}}
    aligned = AlignedPool(None, {name: StateDictCheckpoint(state) for name, state in states.items()})
    with pytest.raises(MethodError, match="a has such values"):
        MergedCheckpoint(ElementwiseRule(average), aligned)["w"]
    allowed = MergedCheckpoint(ElementwiseRule(average), aligned, finite=False)
    assert float(allowed["w"][0]) == 1.0
    assert not torch.isfinite(allowed["w"][1])
    assert "a has such values" in allowed.notes["w"]


def test_another_shape_is_refused() -> None:
    with pytest.raises(MethodError, match=r"the method made \(1,\) of \(7,\)"):
        MergedCheckpoint(lambda group: group.values()[0][:1], pool())["head.bias"]


def test_inputs_are_never_changed() -> None:
    aligned = pool(large=True)
    before = [model.fingerprint() for model in aligned.models]
    for rule in RULES.values():
        stream(MergedCheckpoint(rule, aligned), Memory())
    assert [model.fingerprint() for model in aligned.models] == before


def test_a_failing_tensor_stops_the_loop() -> None:
    def rule(group: TensorGroup) -> Tensor:
        if group.name == "layers.1.q.weight":
            raise ValueError("no")
        return group.values()[0]

    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="no"):
        stream(MergedCheckpoint(rule, pool()), Memory(), loop=Loop(threads=3))
    assert torch.get_num_threads() == before


class Needy(StateDictCheckpoint):
    """Tensors that claim memory while they are read."""

    def __init__(self, needs: list[int]) -> None:
        super().__init__({str(index): torch.zeros(1 << 21) for index in range(len(needs))})
        self.needs, self.used, self.peak, self.lock = needs, 0, 0, threading.Lock()

    def working_bytes(self, name: str) -> int:
        return self.needs[int(name)]

    def pieces(self, name: str) -> Iterator[Tensor]:
        need = self.needs[int(name)]
        with self.lock:
            self.used += need
            self.peak = max(self.peak, self.used)
        yield from super().pieces(name)
        with self.lock:
            self.used -= need


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=8))
def test_memory_is_bounded_by_the_neediest_tensor(needs: list[int]) -> None:
    checkpoint = Needy(needs)
    stream(checkpoint, Memory(), loop=Loop(threads=4))
    assert checkpoint.peak <= max(needs) + (128 << 20)


def test_many_threads_work_and_the_bar_shows_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = StateDictCheckpoint({str(i): torch.zeros(1 << 20) for i in range(12)})
    sink = Memory()
    stream(checkpoint, sink, loop=Loop(threads=3, progress=True))
    assert len(sink.tensors) == 12
    assert 1 <= len(sink.threads) <= 3
    assert "B/s" in capsys.readouterr().err


def test_keys_tell_inputs_seeds_and_rules_apart(tmp_path: Path) -> None:
    for index in range(2):
        save_file(small_state(index), tmp_path / f"{index}.safetensors")

    def keys(rule: Rule, expert: int = 1, seed: int = 0) -> str | None:
        models: list[Checkpoint] = [open_checkpoint(tmp_path / f"{index}.safetensors") for index in (0, expert)]
        return MergedCheckpoint(rule, AlignedPool(models[0], {"e": models[1]}, seed)).key()

    known = [keys(average), keys(average, 0), keys(average, seed=1), keys(ElementwiseRule(scaled_deltas))]
    assert None not in known
    assert len(set(known)) == 4
    assert keys(average) == known[0]
    assert keys(lambda group: group.values()[0]) is None


def test_a_rule_whose_source_changes_has_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "my_rule_module.py"
    file.write_text("def mine(group):\n    return group.values()[0]\n")
    mine = importlib.import_module("my_rule_module").mine
    before = rule_key(ElementwiseRule(mine))
    assert before is not None
    assert rule_key(ElementwiseRule(mine)) == before
    file.write_text("def mine(group):\n    return group.values()[1]\n")
    assert rule_key(ElementwiseRule(mine)) != before


def test_eight_thousand_small_tensors_take_linear_time() -> None:
    states = [{f"t.{i}": torch.zeros(4, 4) for i in range(8000)} for _ in range(3)]
    aligned = AlignedPool(None, {str(i): StateDictCheckpoint(state) for i, state in enumerate(states)})
    sink = Counting()
    stream(MergedCheckpoint(ElementwiseRule(average), aligned), sink)
    assert sink.count == 8000


class Counting:
    count = 0
    lock = threading.Lock()

    def write(self, name: str, tensor: Tensor, start: int = 0) -> None:
        with self.lock:
            self.count += 1
