"""mergekit's arithmetic as it is: in the dtype of the inputs, with its constants; for `compat: true`.

Formulas after mergekit 0.1.5's documentation and the papers it names; only its random masks are not reproduced, for
they depend on the order of all tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import torch
from torch import Tensor

from fusion_eval.merge.group import Rule, TensorGroup, working
from fusion_eval.merge.recipe_plan import Resolver, Segment

Values = Mapping[str, Any]

_DELTAS: Final = {
    "task_arithmetic": ("none", False),
    "ties": ("magnitude", True),
    "dare_linear": ("random", False),
    "dare_ties": ("random", True),
    "breadcrumbs": ("outliers", False),
    "breadcrumbs_ties": ("outliers", True),
    "della": ("ranks", True),
    "della_linear": ("ranks", False),
}
"""Which entries of a task vector stay, and whether a sign is elected."""


@dataclass(frozen=True, slots=True)
class CompatRule:
    """A segment's rule in the peer's arithmetic.

    Args:
        method: mergekit's name of the method.
        resolver: the parameters of every tensor.
        dtype: the dtype that inputs are cast to, or None.
    """

    method: str
    resolver: Resolver
    dtype: torch.dtype | None

    def __call__(self, group: TensorGroup) -> Tensor:
        """The merged tensor, in the dtype that holds all inputs."""
        tensors = [*group.experts, *(() if group.base is None else (group.base,))]
        if self.dtype is not None:
            tensors = [tensor.to(self.dtype) for tensor in tensors]
        common = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
        tensors = [tensor.to(common) for tensor in tensors]
        base = None if group.base is None else tensors.pop()
        shared, each = self.resolver.shared(group.name), self.resolver.each(group.name)
        generators = [group.generator(index) for index in range(len(tensors))]
        return merged(self.method, base, tensors, shared, each, generators)


def compat_rule(segment: Segment) -> Rule:
    """The rule of a segment in the peer's arithmetic."""
    recipe = segment.recipe
    return CompatRule(recipe.method, segment.resolver, getattr(torch, recipe.dtype) if recipe.dtype else None)


def merged(
    method: str,
    base: Tensor | None,
    xs: Sequence[Tensor],
    shared: Values,
    each: Sequence[Values],
    generators: Sequence[torch.Generator],
) -> Tensor:
    """One tensor merged by a method."""
    if method in _DELTAS:
        assert base is not None
        return deltas(method, base, xs, shared, each, generators)
    weights = [float(values.get("weight", 1.0)) for values in each]
    if method == "linear":
        return linear(xs, weights, bool(shared["normalize"]))
    if method == "passthrough":
        return xs[0] * float(each[0]["scale"]) if each[0]["scale"] != 1.0 else xs[0]
    if method == "karcher":
        return karcher(xs, int(shared["max_iter"]), float(shared["tol"]))
    if method == "nuslerp":
        return nuslerp(base, xs, weights, shared)
    if method == "multislerp":
        return multislerp(base, xs, weights, shared)
    assert base is not None
    if method == "slerp":
        return slerp(base, xs[0], float(shared["t"]))
    if method == "sce":
        return sce(base, xs, float(shared["select_topk"]))
    if method in ("ram", "ramplus_tl"):
        return ram(base, xs, shared)
    if method == "model_stock":
        return model_stock(base, xs, bool(shared["filter_wise"]))
    return nearswap(base, xs[0], float(shared["t"])) if method == "nearswap" else arcee_fusion(base, xs[0])


def linear(xs: Sequence[Tensor], weights: Sequence[float], normalize: bool) -> Tensor:
    """The weighted sum in float32, in order, one rounding."""
    total = torch.zeros_like(working(xs[0]))
    w = torch.tensor(weights, dtype=torch.float32)
    for x, weight in zip(xs, w, strict=True):
        total = torch.addcmul(total, x.to(total.dtype), weight.expand([1] * x.ndim))
    return (total / w.sum() if normalize else total).to(xs[0].dtype)


def slerp(base: Tensor, other: Tensor, t: float) -> Tensor:
    """Shoemake's interpolation of the flat tensors; linear above a cosine of 0.9995."""
    a, b, share = working(base).flatten(), working(other).flatten(), torch.tensor(t, dtype=torch.float32)
    cosine = (_unit(a) * _unit(b)).sum().clamp(-1, 1)
    if cosine.abs() > 0.9995:
        first, second = 1 - share, share
    else:
        angle = torch.acos(cosine)
        first, second = torch.sin((1 - share) * angle) / torch.sin(angle), torch.sin(share * angle) / torch.sin(angle)
    return (first * a + second * b).to(base.dtype).reshape(base.shape)


def _unit(x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x)
    return x / norm if norm > 1e-8 else x


def nuslerp(base: Tensor | None, xs: Sequence[Tensor], weights: Sequence[float], shared: Values) -> Tensor:
    """Interpolation by weights, of the tensor, its rows or its columns."""
    total = sum(weights)
    t = 0.5 if abs(total) < 1e-6 else weights[1] / total
    first, second = (x if base is None else x - base for x in xs)
    shape, turned = first.shape, not shared["nuslerp_flatten"] and bool(shared["nuslerp_row_wise"])
    if shared["nuslerp_flatten"]:
        first, second = first.reshape(-1), second.reshape(-1)
    elif turned:
        first, second = first.transpose(0, -1), second.transpose(0, -1)
    units = [x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-7) for x in (first, second)]
    cosine = (units[0] * units[1]).sum(-1, keepdim=True).clamp(-1, 1)
    parallel = (1 - cosine * cosine) <= 1e-16
    angle = torch.acos(torch.where(parallel, 0, cosine))
    curved = (torch.sin((1 - t) * angle) * first + torch.sin(t * angle) * second) / torch.sin(angle)
    result = torch.where(parallel, (1 - t) * first + t * second, curved)
    result = (result.transpose(0, -1) if turned else result).reshape(shape)
    return result if base is None else base + result


def multislerp(base: Tensor | None, xs: Sequence[Tensor], weights: Sequence[float], shared: Values) -> Tensor:
    """The mean in the tangent space at the mean direction."""
    stack = torch.stack(list(xs)) if base is None else torch.stack(list(xs)) - base
    flat, eps = stack.reshape(len(xs), -1), float(shared["eps"])
    w = torch.tensor(weights, dtype=flat.dtype)
    w = w / w.sum() if shared["normalize_weights"] else w
    norms = torch.linalg.vector_norm(flat, dim=-1, keepdim=True)
    units = flat / (norms + eps)
    mean = (units * w[:, None]).sum(0)
    mean = mean / torch.linalg.vector_norm(mean)
    tangent = ((units - (units * mean).sum(-1, keepdim=True) * mean) * w[:, None]).sum(0)
    length = torch.linalg.vector_norm(tangent) + eps
    result = mean * torch.cos(length) + tangent * (torch.sin(length) / length)
    scaled: Tensor = (result * (norms[:, 0] * w).sum()).reshape(xs[0].shape)
    return scaled if base is None else scaled + base


def karcher(xs: Sequence[Tensor], max_iter: int, tol: float) -> Tensor:
    """The Riemannian mean, iterated in the tensors' dtype."""
    norms = [torch.linalg.vector_norm(working(x)) for x in xs]
    units = [(x / norm).to(x.dtype) for x, norm in zip(xs, norms, strict=True)]
    share = 1.0 / len(xs)
    weight = share / sum([share] * len(xs))
    mean = torch.zeros_like(units[0])
    for unit in units:
        mean += weight * unit
    mean = (mean / torch.linalg.vector_norm(working(mean))).to(mean.dtype)
    for _ in range(max_iter):
        tangent = torch.zeros_like(mean)
        for unit in units:
            cosine = torch.dot(mean.flatten(), unit.flatten()).clamp(-1, 1)
            angle = torch.arccos(cosine)
            if angle.item() >= tol:
                tangent += weight * (angle / torch.sin(angle)) * (unit - cosine * mean)
        length = torch.linalg.vector_norm(working(tangent))
        if length.item() < tol:
            break
        mean = (torch.cos(length) * mean + torch.sin(length) * (tangent / length)).to(mean.dtype)
        norm = torch.linalg.vector_norm(working(mean))
        mean = (mean / norm).to(mean.dtype) if norm.item() > tol else mean
    average = sum((share * norm for norm in norms[1:]), share * norms[0])
    result: Tensor = average * mean
    return result


def deltas(
    method: str,
    base: Tensor,
    xs: Sequence[Tensor],
    shared: Values,
    each: Sequence[Values],
    generators: Sequence[torch.Generator],
) -> Tensor:
    """The eight methods on task vectors: sparsify, elect, combine, scale."""
    kind, elect = _DELTAS[method]
    vectors = [
        sparsify(x - base, kind, values, bool(shared["rescale"]), generator)
        for x, values, generator in zip(xs, each, generators, strict=True)
    ]
    w = torch.tensor([float(values["weight"]) for values in each], dtype=base.dtype).reshape(-1, *[1] * base.ndim)
    votes = torch.stack(vectors) * w
    if elect:
        agreeing = votes.sign() == ((votes.sum(0) >= 0).to(base.dtype) * 2 - 1)
        mix, divisor = (votes * agreeing).sum(0), (w * agreeing).sum(0)
        divisor[divisor == 0] = 1
    else:
        mix, divisor = votes.sum(0), w.sum(0)
        divisor[divisor.abs() < 1e-8] = 1
    mix = mix / divisor if shared["normalize"] else mix
    return base + (mix * float(shared["lambda"]) if shared["lambda"] != 1 else mix)


def sparsify(delta: Tensor, kind: str, values: Values, rescale: bool, generator: torch.Generator) -> Tensor:
    """A task vector with some entries kept."""
    density, size = float(values["density"]), delta.numel()
    if kind == "none" or density >= 1:
        return delta
    wide = delta if delta.dtype == torch.bfloat16 else working(delta)
    if kind == "random":
        keep = torch.bernoulli(torch.full(delta.shape, density, dtype=wide.dtype), generator=generator)
        return _rescaled(wide, keep, rescale).to(delta.dtype)
    if kind == "ranks":
        rows, epsilon = wide if delta.ndim > 1 else wide[None], float(values["epsilon"])
        rank = rows.abs().argsort(1).argsort(1).to(wide.dtype) + 1
        low, high = rank.min(1, keepdim=True).values, rank.max(1, keepdim=True).values
        chance = (density - epsilon) + ((rank - low) / (high - low)).clamp(0, 1) * 2 * epsilon
        keep = torch.bernoulli(chance, generator=generator).to(wide.dtype)
        return _rescaled(rows, keep, rescale).to(delta.dtype).reshape(delta.shape)
    magnitudes, keep = working(delta.abs().reshape(-1)), torch.zeros(size, dtype=delta.dtype)
    if kind == "magnitude":
        if density > 0:
            keep[torch.argsort(magnitudes, descending=True)[: max(1, int(density * size))]] = 1
    else:
        target, top = int(density * size), int(float(values["gamma"]) * size)
        low_end = max(0, size - target - top)
        keep[torch.sort(magnitudes).indices[low_end : low_end + target]] = 1
    return _rescaled(delta, keep.reshape(delta.shape), rescale)


def _rescaled(delta: Tensor, keep: Tensor, on: bool) -> Tensor:
    kept = delta * keep
    before, after = delta.abs().sum(), kept.abs().sum()
    return kept if not on or before < 1e-7 or after < 1e-7 else kept * (before / after)


def sce(base: Tensor, xs: Sequence[Tensor], topk: float) -> Tensor:
    """Select, calculate, erase; weights are equal where the mean squares sum to less than 1e-6."""
    stack = torch.stack([x - base for x in xs])
    if topk < 1:
        spread = torch.var(stack, dim=0, unbiased=False)
        keep = torch.zeros(spread.numel(), dtype=base.dtype)
        keep[torch.topk(spread.reshape(-1), k=int(torch.count_nonzero(spread) * topk)).indices] = 1
        stack = stack * keep.reshape(base.shape)
    agreeing = stack.sign() == ((stack.sum(0) >= 0).to(base.dtype) * 2 - 1)
    w = stack.square().reshape(len(xs), -1).mean(1)
    total = w.sum().item()
    w = torch.ones_like(w) / len(w) if abs(total) < 1e-6 else w / total
    w = w.reshape(-1, *[1] * base.ndim) * agreeing
    return base + (stack * w).sum(0) / w.sum(0).clamp(min=1e-6)


def ram(base: Tensor, xs: Sequence[Tensor], shared: Values) -> Tensor:
    """RAM, and RAM+ where there is an `r`."""
    stack = torch.stack([x - base for x in xs]).reshape(len(xs), -1)
    on = stack.abs() > float(shared["epsilon"])
    count = on.sum(0, keepdim=True)
    stack = stack * on
    own = stack * (count == 1)
    if "r" in shared:
        overlap, unique = (on & (count > 1)).sum(1), (on & (count == 1)).sum(1)
        ratio = overlap / unique.clamp(min=float(shared["epsilon"]))
        own = own * (1 + float(shared["r"]) * ratio.clamp(0, float(shared["alpha"])))[:, None]
    return base + (own + stack * (count > 1) / count.clamp(min=1)).sum(0).reshape(base.shape)


def model_stock(base: Tensor, xs: Sequence[Tensor], filter_wise: bool) -> Tensor:
    """The average shrunk to the base by the mean cosine."""
    shape = base.shape
    rows = [(x[None] if x.ndim == 1 else x) if filter_wise else x.reshape(-1) for x in (base, *xs)]
    start, ends = rows[0], rows[1:]
    vectors = [end - start for end in ends]
    cosines = [_cosine(u, v) for u, v in itertools.combinations(vectors, 2)]
    cosine, count = torch.stack(cosines).mean(0)[..., None], len(xs)
    divisor = 1 + (count - 1) * cosine
    t = torch.where(divisor.abs() < 1e-6, 0, count * cosine / divisor)
    mean = sum(ends[1:], ends[0]) / count
    return (t * mean + (1 - t) * start).reshape(shape)


def _cosine(u: Tensor, v: Tensor) -> Tensor:
    product = (torch.linalg.vector_norm(u, dim=-1) * torch.linalg.vector_norm(v, dim=-1)).clamp(min=1e-6)
    cosine: Tensor = ((u * v).sum(-1) / product).clamp(-1, 1)
    return cosine


def nearswap(base: Tensor, other: Tensor, t: float) -> Tensor:
    """Entries near the base are swapped for the other's."""
    weight = (t / (base - other).abs().clamp(min=1e-6)).clamp(0, 1)
    return weight * other + (1 - weight) * base


def arcee_fusion(base: Tensor, other: Tensor) -> Tensor:
    """Entries whose importance is an outlier are taken from the other."""
    p, q = torch.softmax(other, -1) + 1e-8, torch.softmax(base, -1) + 1e-8
    importance = (other - base).abs() * torch.sum(p * torch.log(p / q), -1, keepdim=True)
    ordered = torch.sort(importance.reshape(-1)).values
    low, median, high = (ordered[int(share * (len(ordered) - 1))] for share in (0.25, 0.5, 0.75))
    return base + (other - base) * (importance >= median + 1.5 * (high - low)).float()
