"""The merge itself: checkpoints side by side, and a merge as a checkpoint."""

from __future__ import annotations

import functools
import hashlib
import math
import pickle
import pickletools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from fusion_eval.errors import AlignmentError, Fault, MethodError, listed
from fusion_eval.merge.alignment import alignment_faults, stored_names
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.group import CHUNK, ElementwiseRule, Rule, ScannedRule, TensorGroup
from fusion_eval.merge.helpers import Ledger
from fusion_eval.merge.loop import Loop, Sink, stream
from fusion_eval.version import __version__

__all__ = ["AlignedPool", "Loop", "MergedCheckpoint", "Sink", "alignment_faults", "stream"]


_WIDE = 10  # float32 copies that float64 factors, Gram matrices and their products amount to


class AlignedPool:
    """A base and experts whose tensors have equal names and shapes, checked without reading them.

    A weight that one model ties and another stores twice is one weight.

    Args:
        base: the base's weights, or None.
        experts: the experts' weights by name, at least one.
        seed: the run's seed.

    Raises:
        AlignmentError: listing every tensor that is missing somewhere or has another shape.
    """

    def __init__(self, base: Checkpoint | None, experts: Mapping[str, Checkpoint], seed: int = 0) -> None:
        self.base, self.experts, self.seed = base, dict(experts), seed
        self._reference = base if base is not None else next(iter(self.experts.values()))
        faults = alignment_faults(base, self.experts)
        if faults:
            raise AlignmentError(*faults)
        self._stored = {name: stored_names(self._reference, expert) for name, expert in self.experts.items()}

    @property
    def reference(self) -> Checkpoint:
        """The model that gives names, order, dtypes and integer buffers: the base, else the first expert."""
        return self._reference

    @property
    def models(self) -> tuple[Checkpoint, ...]:
        """All checkpoints, the base first."""
        return (*(() if self.base is None else (self.base,)), *self.experts.values())

    def group(self, name: str) -> TensorGroup:
        """The tensors called `name`, read now."""
        base = None if self.base is None else self.base[name]
        experts = tuple(self.expert_tensor(expert, name) for expert in self.experts)
        return TensorGroup(name, base, experts, tuple(self.experts), self.seed)

    def expert_tensor(self, expert: str, name: str) -> Tensor:
        """One expert's tensor called `name`, read now."""
        return self.experts[expert][self._stored[expert].get(name, name)]

    def prefetch(self, name: str) -> None:
        """Say that the tensors called `name` are wanted soon."""
        if self.base is not None:
            self.base.prefetch(name)
        for expert, checkpoint in self.experts.items():
            checkpoint.prefetch(self._stored[expert].get(name, name))

    def working_bytes(self, name: str) -> int:
        """Memory that reading the tensors called `name` needs."""
        own = 0 if self.base is None else self.base.working_bytes(name)
        pairs = ((expert, self._stored[key].get(name, name)) for key, expert in self.experts.items())
        return own + sum(expert.working_bytes(stored) for expert, stored in pairs)

    def key(self) -> str | None:
        """The models' keys and the seed, or None where one is unknown."""
        keys = [checkpoint.key() for checkpoint in self.models]
        return None if None in keys else f"{list(self.experts)}|{keys}|{self.base is None}|{self.seed}"


class MergedCheckpoint(Checkpoint):
    """A merge as a checkpoint: a tensor is merged when it is read.

    Floating tensors go through the rule and are rounded once, to the reference's dtype; integer and boolean tensors
    (counters, position ids) are copied from the reference, and `notes` says where an expert has other values.

    Args:
        rule: what to do with one parameter; called from several threads.
        pool: the models.
        device: where the rule runs.
        finite: whether values that are not finite are errors; else they are noted. Infinities that all models share, as
            masks have them, are always kept.

    Raises:
        MethodError: when a merged tensor is read that is not finite though it should be, or of another shape.
    """

    def __init__(
        self, rule: Rule, pool: AlignedPool, device: torch.device | str = "cpu", *, finite: bool = True
    ) -> None:
        self.rule, self.pool, self.device, self.finite = rule, pool, torch.device(device), finite
        self._notes = Ledger()

    @property
    def notes(self) -> Mapping[str, str]:
        """What people should know, by tensor; complete once every tensor was read."""
        return MappingProxyType(self._notes)

    def read(self, name: str) -> Tensor:
        """The merged tensor."""
        spec = self.spec(name)
        pieces = self.pieces(name)
        first = next(pieces)
        if first.numel() == spec.numel:
            return first.reshape(spec.shape)
        merged = torch.empty(spec.numel, dtype=spec.dtype)
        merged[: first.numel()] = first
        start = first.numel()
        for piece in pieces:
            merged[start : start + piece.numel()] = piece
            start += piece.numel()
        return merged.reshape(spec.shape)

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The merged tensor in flat runs, computed as they are asked for."""
        dtype = self.spec(name).dtype
        if not dtype.is_floating_point:
            yield self._copied(name).reshape(-1)
            return
        if not self.spec(name).numel:
            yield torch.empty(0, dtype=dtype)
            return
        group = self.pool.group(name)
        for piece, merged in self._merged(group):
            if _suspicious(piece, merged, dtype):
                merged = self._looked_into(piece, merged.reshape(-1), dtype)
            yield merged.to(dtype).cpu().reshape(-1)

    def spec(self, name: str) -> TensorSpec:
        """As in the reference model."""
        return self.pool.reference.spec(name)

    def working_bytes(self, name: str) -> int:
        """A few slices; or float32 copies of every expert, the base and the result, and float64 work on them."""
        tensors, numel = len(self.pool.experts) + 2, self.spec(name).numel
        if isinstance(self.rule, ElementwiseRule | ScannedRule):
            numel = min(numel, 2 * CHUNK)
        else:
            tensors += _WIDE
        return 4 * numel * tensors + self.pool.working_bytes(name)

    def prefetch(self, name: str) -> None:
        """Say that a tensor is wanted soon."""
        self.pool.prefetch(name)

    @property
    def tied(self) -> Mapping[str, str]:
        """As in the reference model."""
        return self.pool.reference.tied

    @property
    def source(self) -> str:
        """What was merged."""
        return f"a merge of {listed(list(self.pool.experts))}"

    def key(self) -> str | None:
        """The pool's key and the rule's, or None where one is unknown."""
        pool, rule = self.pool.key(), rule_key(self.rule)
        return None if pool is None or rule is None else f"{pool}|{rule}|{self.device.type}|{self.finite}|{__version__}"

    def __contains__(self, name: object) -> bool:
        return name in self.pool.reference

    def __iter__(self) -> Iterator[str]:
        return iter(self.pool.reference)

    def __len__(self) -> int:
        return len(self.pool.reference)

    def _merged(self, group: TensorGroup) -> Iterator[tuple[TensorGroup, Tensor]]:
        """Runs of the inputs and what the rule makes of them."""
        rule = self.rule
        if self.device.type != "cpu":
            moved = _moved(group, self.device)
            yield moved, rule(moved)
        elif isinstance(rule, ElementwiseRule | ScannedRule):
            yield from rule.merged(group)
        else:
            yield group, rule(group)

    def _looked_into(self, group: TensorGroup, merged: Tensor, dtype: torch.dtype) -> Tensor:
        """Values that may not be finite: infinities that all models share are kept, others are errors or noted."""
        shared, values = _shared_infinities(group)
        if bool(shared.any()):
            merged = torch.where(shared, values.to(merged.dtype), merged)
        broken = ~(merged.isfinite() & (merged.abs() <= torch.finfo(dtype).max)) & ~shared
        if not bool(broken.any()):
            return merged
        inputs = {"the base": group.base} if group.base is not None else {}
        inputs |= dict(zip(group.expert_names, group.experts, strict=False))
        owners = [name for name, tensor in inputs.items() if tensor is not None and not bool(tensor.isfinite().all())]
        found = f"the merge is not finite in {dtype}" + (f"; {listed(owners)} has such values" if owners else "")
        if not self.finite:
            self._notes[group.name] = found
            return merged
        do = "Leave that model out, change the method's weights, or allow it: +method.tensors.nonfinite=keep."
        raise MethodError(Fault(f"tensor '{group.name}'", found, "finite numbers", do))

    def _copied(self, name: str) -> Tensor:
        tensor = self.pool.reference[name].clone()
        others = [e for e in self.pool.experts if not torch.equal(self.pool.expert_tensor(e, name), tensor)]
        if others:
            self._notes[name] = f"{tensor.dtype} tensor copied from the reference; {listed(others)} differ"
        return tensor


def rule_key(rule: Rule) -> str | None:
    """What identifies a rule: its pickled state and the source that it may run, or None if it has no such state."""
    try:
        state = pickle.dumps(rule)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        return None
    digest = hashlib.sha256(state)
    digest.update(_own_source())
    words = {text for _, text, _ in pickletools.genops(state) if isinstance(text, str)}
    for name in sorted(words & sys.modules.keys()):
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and file.endswith(".py"):
            digest.update(Path(file).read_bytes())
    return digest.hexdigest()


@functools.cache
def _own_source() -> bytes:
    """A hash of the engine's and the methods' source, so that no merge resumes with other code."""
    digest = hashlib.sha256()
    for folder in ("merge", "method"):
        for file in sorted((Path(__file__).parents[1] / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.digest()


def _moved(group: TensorGroup, device: torch.device) -> TensorGroup:
    base = None if group.base is None else group.base.to(device)
    experts = tuple(expert.to(device) for expert in group.experts)
    return TensorGroup(group.name, base, experts, group.expert_names, group.seed, group.start)


def _suspicious(group: TensorGroup, merged: Tensor, dtype: torch.dtype) -> bool:
    """Whether some value may not be finite in a dtype, by one cheap pass; another size than the inputs' is refused."""
    if merged.numel() != group.numel:
        found = f"the method made {tuple(merged.shape)} of {tuple(group.experts[0].shape)}"
        raise MethodError(Fault(f"tensor '{group.name}'", found, "the shape of the inputs"))
    limit = torch.finfo(dtype).max
    if not math.isfinite(float(merged.sum())):
        return True
    return limit < 1e30 and merged.numel() > 0 and float(merged.abs().amax()) > limit


def _shared_infinities(group: TensorGroup) -> tuple[Tensor, Tensor]:
    """Where all models have the same infinity, as masks have, and the values there; flat."""
    first, *others = (tensor.reshape(-1) for tensor in (*(() if group.base is None else (group.base,)), *group.experts))
    shared = first.isinf()
    for other in others:
        shared &= other == first
    return shared, first
