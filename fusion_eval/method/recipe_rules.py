"""mergekit's methods as pipelines of our steps, one per tensor, with that tensor's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from fusion_eval.errors import Fault
from fusion_eval.merge.group import ElementwiseRule, Rule, ScannedRule, TensorGroup
from fusion_eval.merge.recipe_contract import INPUT
from fusion_eval.merge.recipe_plan import Resolver, Segment
from fusion_eval.method import step as steps
from fusion_eval.method.pipeline import Flow
from fusion_eval.method.selection import Tensors
from fusion_eval.method.step import Step

Values = Mapping[str, Any]

_ORIGINS: Final = {"nuslerp": "base", "multislerp": "base", "slerp": "none"}


@dataclass(frozen=True, slots=True)
class RecipeRule:
    """A segment's rule: each tensor has a pipeline of its own.

    Args:
        method: mergekit's name of the method.
        resolver: the parameters of every tensor.
        experts: the experts' names.
        has_base: whether there is a base.
    """

    method: str
    resolver: Resolver
    experts: tuple[str, ...]
    has_base: bool

    def __call__(self, group: TensorGroup) -> Tensor:
        """The merged tensor, whole."""
        return self.flow(group.name)(group)

    def scan(self, group: TensorGroup) -> Rule:
        """The entrywise rule of one tensor."""
        rule = self.flow(group.name).as_rule()
        if isinstance(rule, ScannedRule):
            return rule.scan(group)
        return rule.function if isinstance(rule, ElementwiseRule) else rule

    def flow(self, name: str) -> Flow:
        """The pipeline of one tensor."""
        shared, each = self.resolver.shared(name), self.resolver.each(name)
        averages = self.resolver.contract.base == INPUT
        origin = "none" if averages else _ORIGINS.get(self.method, "base")
        policy = Tensors(statistics="merge" if averages else "average")
        return Flow(
            _PIPELINES[self.method](shared, Each(self.experts, each)), policy, origin if self.has_base else "none"
        )

    def narrowest(self, names: Sequence[str]) -> Rule:
        """This as the narrowest kind of rule, which lets the engine work in slices."""
        kinds = {_kind(self.flow(name).as_rule()) for name in names}
        if kinds <= {("slices", False)}:
            return ScannedRule(self.scan)
        return ScannedRule(self.scan, rows=True) if kinds == {("slices", True)} else self


def _kind(rule: Rule) -> tuple[str, bool]:
    return ("slices", rule.rows) if isinstance(rule, ElementwiseRule | ScannedRule) else ("whole", False)


@dataclass(frozen=True, slots=True)
class Each:
    """Parameters of experts."""

    experts: tuple[str, ...]
    values: Sequence[Values]

    def list(self, key: str) -> list[float]:
        """One number per expert."""
        return [float(values[key]) for values in self.values]

    def setting(self, key: str, most: float = float("inf")) -> Any:
        """A step's setting: one number, or numbers by expert."""
        numbers = [min(number, most) for number in self.list(key)]
        return numbers[0] if len(set(numbers)) == 1 else dict(zip(self.experts, numbers, strict=True))


def _sum(shared: Values, each: Each) -> Step:
    return steps.Sum(each.list("weight"), bool(shared["normalize"]))


def _elect(shared: Values, each: Each) -> Step:
    return steps.Elect("mean" if shared["normalize"] else "sum", each.list("weight"))


def _rescale(shared: Values) -> str:
    return "norm" if shared["rescale"] else "none"


def _nothing(shared: Values, each: Each) -> tuple[Step, ...]:
    return ()


def _magnitude(shared: Values, each: Each) -> tuple[Step, ...]:
    return (steps.Trim(each.setting("density", 1.0), "tensor", _rescale(shared)),)


def _random(shared: Values, each: Each) -> tuple[Step, ...]:
    return (steps.Drop(each.setting("density", 1.0), _rescale(shared)),)


def _outliers(shared: Values, each: Each) -> tuple[Step, ...]:
    return (steps.MaskOutliers(each.setting("density", 1.0), each.setting("gamma"), _rescale(shared)),)


def _ranks(shared: Values, each: Each) -> tuple[Step, ...]:
    return (steps.DropByRank(each.setting("density", 1.0), each.setting("epsilon"), _rescale(shared)),)


Pipeline = Callable[[Values, Each], tuple[Step, ...]]


def _deltas(sparsify: Pipeline, combine: Callable[[Values, Each], Step]) -> Pipeline:
    """The one machine of the eight methods on task vectors."""
    return lambda shared, each: (
        *sparsify(shared, each),
        combine(shared, each),
        steps.Scale(float(shared["lambda"])),
    )


def _nuslerp(shared: Values, each: Each) -> tuple[Step, ...]:
    if shared["nuslerp_flatten"]:
        return (steps.NuSlerp(each.list("weight")),)
    return (steps.NuSlerpRows(each.list("weight"), "column" if shared["nuslerp_row_wise"] else "row"),)


_PIPELINES: Final[Mapping[str, Pipeline]] = {
    "linear": lambda shared, each: (_sum(shared, each),),
    "slerp": lambda shared, each: (steps.Slerp(shared["t"]),),
    "nuslerp": _nuslerp,
    "multislerp": lambda shared, each: (
        steps.MultiSlerp(each.list("weight"), shared["normalize_weights"], shared["eps"]),
    ),
    "karcher": lambda shared, each: (steps.Karcher(int(shared["max_iter"]), shared["tol"]),),
    "passthrough": lambda shared, each: (steps.Sum(), steps.Scale(float(each.values[0]["scale"]))),
    "task_arithmetic": _deltas(_nothing, _sum),
    "ties": _deltas(_magnitude, _elect),
    "dare_linear": _deltas(_random, _sum),
    "dare_ties": _deltas(_random, _elect),
    "breadcrumbs": _deltas(_outliers, _sum),
    "breadcrumbs_ties": _deltas(_outliers, _elect),
    "della": _deltas(_ranks, _elect),
    "della_linear": _deltas(_ranks, _sum),
    "sce": lambda shared, each: (steps.SelectVariance(min(1.0, shared["select_topk"])), steps.EraseMinority()),
    "ram": lambda shared, each: (steps.Ram(0.0, 0.2, shared["epsilon"]),),
    "ramplus_tl": lambda shared, each: (steps.Ram(shared["r"], shared["alpha"], shared["epsilon"]),),
    "model_stock": lambda shared, each: (steps.StockRows() if shared["filter_wise"] else steps.Stock(),),
    "nearswap": lambda shared, each: (steps.NearSwap(shared["t"]),),
    "arcee_fusion": lambda shared, each: (steps.FuseImportant(),),
}


def rule_of(segment: Segment) -> Rule:
    """The rule of a segment, in float32 with one rounding."""
    pool = segment.pool
    rule = RecipeRule(segment.recipe.method, segment.resolver, tuple(pool.experts), pool.base is not None)
    return rule.narrowest(floating(segment))


def rule_faults(segment: Segment) -> list[Fault]:
    """Values out of range, each told once with a tensor for which it holds."""
    pool = segment.pool
    rule = RecipeRule(segment.recipe.method, segment.resolver, tuple(pool.experts), pool.base is not None)
    found: dict[str, Fault] = {}
    for name in floating(segment):
        for each in rule.flow(name).steps:
            for fault in each.faults(""):
                key = fault.where.strip(".")
                told = Fault(f"{segment.where}, {key}", f"{fault.found} for tensor '{name}'", fault.expected, fault.do)
                found.setdefault(f"{key}{fault.found}", told)
    return list(found.values())


def floating(segment: Segment) -> list[str]:
    """The names of a segment's floating tensors."""
    reference = segment.pool.reference
    return [name for name in reference if reference.spec(name).dtype.is_floating_point]
