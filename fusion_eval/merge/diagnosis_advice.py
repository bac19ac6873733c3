"""What the numbers of a diagnosis mean for merging: every sentence cites the number that it rests on.

The thresholds of methods were set on validation items of four families of small experts (scripts/calibrate_advice);
docs/inspect.md compares advice and outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from fusion_eval.errors import listed
from fusion_eval.merge.diagnosis import GAUSSIAN_TOP
from fusion_eval.merge.diagnosis_pool import BASE, Diagnosis, nan_mean, off_diagonal

Kind = Literal["warning", "for", "against"]

UNRELATED: Final = 0.2  # cosines of weights: other initialisations are near 0, fine-tuned models above 0.9
PARALLEL: Final = 0.99
OPPOSED: Final = -0.1
UNEQUAL: Final = 2.0  # largest norm of a task vector over the smallest
HELD: Final = 0.7  # of the squared norm in the directions that TSV-M keeps: no pool had less than 0.78 in calibration
TOP: Final = 0.88  # of the squared norm in the largest fifth of the entries, below which TIES lost to a plain sum
DENSE: Final = 0.72  # the same, below which changes are spread over all entries, as after AdamW
CONFLICT: Final = 0.3  # share of opposite signs; 0.5 by chance
SHORT: Final = 0.6  # length of the average's task vector in those of the experts
STOCK: Final = 0.5  # model stock's part of the average
MANY: Final = 6  # experts from which on all directions, equally strong, may beat each one's first
SEVERAL: Final = 4  # experts from which on their first directions together need a smaller scaling, unless dense
SMALL_ANGLE: Final = 15.0  # degrees, below which a great circle and a straight line are the same for practice


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence and the numbers that it rests on.

    Args:
        kind: "warning", or "for" and "against" a method.
        text: the sentence.
        numbers: what it cites, by name.
        overrides: what to write on the command line, where it is for a method.
    """

    kind: Kind
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    overrides: str = ""


def findings(found: Diagnosis) -> tuple[Finding, ...]:
    """Warnings first, then what speaks for a method, most promising first, then what speaks against one."""
    warnings = [*_broken(found), *_equal(found), *_unrelated(found), *_alike(found), *_unequal(found)]
    experts = len(found.experts)
    if found.sampled or found.sketched:
        warnings.extend(_approximate(found))
    if any("unrelated" in warning.numbers for warning in warnings):
        return tuple(warnings)
    advice: list[Finding] = []
    if experts > 1 and found.has_base:
        advice += [*_spectral(found), *_trimming(found), *_arithmetic(found), *_per_task(found), *_averages(found)]
    if experts > 1:
        advice += _slerp(found)
    order = {"for": 0, "against": 1}
    return (*warnings, *sorted(advice, key=lambda finding: order[finding.kind]))


def _broken(found: Diagnosis) -> Iterator[Finding]:
    if found.broken:
        models = sorted({model for models in found.broken.values() for model in models})
        text = (
            f"{len(found.broken)} tensors hold NaN or infinite values in {listed(models)}: "
            f"{listed(list(found.broken))}. They are in no other number here, and no merge of them will work."
        )
        yield Finding("warning", text, {"broken": len(found.broken)})
    if found.integers:
        text = f"{len(found.integers)} integer tensors differ between models, and merges keep the reference's: "
        yield Finding("warning", f"{text}{listed(found.integers)}.", {"integers": len(found.integers)})


def _equal(found: Diagnosis) -> Iterator[Finding]:
    for a, b in found.equal:
        if BASE in (a, b):
            other = a if b == BASE else b
            text = f"'{other}' equals the base: 0 weights differ. It adds nothing and weakens an average."
        else:
            text = f"'{a}' and '{b}' are identical: 0 weights differ. Leave one out, or it counts twice."
        yield Finding("warning", text, {"differing": 0})


def _unrelated(found: Diagnosis) -> Iterator[Finding]:
    kinship = found.kinship()
    reference = "the base" if found.has_base else f"'{found.experts[0]}'"
    for name, cosine in zip(found.experts, kinship, strict=True):
        if cosine < UNRELATED:
            text = (
                f"'{name}' does not descend from {reference}: the cosine of their weights is {cosine:.2f} "
                "(fine-tuned models: above 0.9). Merging in weight space will destroy it."
            )
            yield Finding("warning", text, {"unrelated": float(cosine)})


def _alike(found: Diagnosis) -> Iterator[Finding]:
    """Task vectors along one line."""
    if not found.has_base:
        return
    whole = found.whole().sums
    cosines, norms = whole.cosines(), whole.norms()
    for i, j in zip(*np.triu_indices(len(norms), 1), strict=True):
        a, b, cosine = found.experts[i], found.experts[j], float(cosines[i, j])
        if cosine > PARALLEL and (a, b) not in found.equal:
            text = (
                f"'{a}' and '{b}' hold one task vector at strengths 1 : {norms[j] / norms[i]:.2f} (cosine "
                f"{cosine:.3f}): one is a scaled or rounded copy of the other."
            )
            yield Finding("warning", text, {"cosine": cosine, "strength": float(norms[j] / norms[i])})
        elif cosine < OPPOSED:
            text = (
                f"'{a}' and '{b}' pull in opposite directions (cosine {cosine:.2f}): each undoes the other's learning."
            )
            yield Finding("warning", text, {"cosine": cosine})


def _unequal(found: Diagnosis) -> Iterator[Finding]:
    norms = found.whole().sums.norms()
    if not found.has_base or len(norms) < 2 or not norms.min() > 0:
        return
    ratio, big, small = float(norms.max() / norms.min()), int(norms.argmax()), int(norms.argmin())
    if ratio > UNEQUAL:
        text = (
            f"the task vector of '{found.experts[big]}' is {ratio:.1f} times as long as that of "
            f"'{found.experts[small]}' and will outvote it: consider method.weights in inverse proportion."
        )
        yield Finding("warning", text, {"ratio": ratio})


def _approximate(found: Diagnosis) -> Iterator[Finding]:
    sums = found.whole().sums
    if found.sampled:
        share = sums.seen / sums.numel
        yield Finding("warning", f"only {share:.1%} of all entries were looked at (program.entries).", {"seen": share})
    if found.sketched:
        text = f"{found.sketched} matrices were sketched (program.exact_side): their stable ranks are bounds."
        yield Finding("warning", text, {"sketched": found.sketched})


def _spectral(found: Diagnosis) -> Iterator[Finding]:
    share, count, top = found.first_share(), len(found.experts), nan_mean(found.top)
    if math.isnan(share):
        return
    cut = f"the first 1/{count} of each task vector's singular directions hold {share:.0%} of its squared norm"
    numbers = {"first_share": share, "experts": count, "top": top}
    if share >= HELD:
        scaling = 0.7 if count >= SEVERAL and not top < DENSE else 1.0
        text = f"TSV-M: {cut}, so keeping them costs {1 - share:.0%}."
        yield Finding("for", text, numbers, f"method=tsv_m method.scaling={scaling}")
    else:
        yield Finding("against", f"TSV-M: {cut} only.", numbers)
    if count >= MANY:
        text = (
            f"Iso-C: {count} experts are many for one matrix, and it makes all directions equally strong; it was best "
            "in one of four families of experts, TSV-M in the others."
        )
        yield Finding("for", text, numbers, "method=iso_c method.scaling=1.3")


def _trimming(found: Diagnosis) -> Iterator[Finding]:
    whole, top = found.whole().sums, nan_mean(found.top)
    conflict, cancelled = off_diagonal(whole.conflicts()), whole.cancelled()
    held = f"the largest 20 % of each task vector's entries hold {top:.0%} of its squared norm"
    numbers = {"top": top, "conflict": conflict, "cancelled": cancelled}
    if top < TOP:
        text = f"TIES: {held} only (normally distributed ones {GAUSSIAN_TOP:.0%}), so trimming costs."
        yield Finding("against", text, numbers)
    elif conflict >= CONFLICT:
        text = (
            f"TIES: {held} (normally distributed ones {GAUSSIAN_TOP:.0%}); signs conflict in {conflict:.0%} of entries "
            f"(50 % by chance), and a plain sum cancels {cancelled:.0%} of all change."
        )
        yield Finding("for", text, numbers, "method=ties method.density=0.5 method.scaling=1.0")


def _arithmetic(found: Diagnosis) -> Iterator[Finding]:
    growth, count = found.whole().sums.growth(), len(found.experts)
    if not growth > 0:
        return
    scaling = 1 / math.sqrt(count * growth)
    text = (
        f"Task arithmetic: the squared norm of the sum is {growth:.2f} times the summed squared norms (orthogonal: 1, "
        f"identical: {count}), so with scaling {scaling:.2f} the merge is as far from the base as one expert."
    )
    numbers = {"growth": growth, "scaling": scaling}
    yield Finding("for", text, numbers, f"method=task_arithmetic method.scaling={scaling:.2f}")


def _per_task(found: Diagnosis) -> Iterator[Finding]:
    cancelled = found.whole().sums.cancelled()
    if cancelled > CONFLICT:
        text = (
            f"a model per task (TALL masks, EMR, TSV-C), where the task is known at inference: one merged model "
            f"cancels {cancelled:.0%} of all change."
        )
        yield Finding("for", text, {"cancelled": cancelled}, "method=tall_masks")


def _averages(found: Diagnosis) -> Iterator[Finding]:
    whole, count = found.whole().sums, len(found.experts)
    length = math.sqrt(max(whole.growth(), 0) / count) if not math.isnan(whole.growth()) else math.nan
    if length < SHORT:
        text = f"simple averages: the average lies {length:.2f} times as far from the base as an expert."
        yield Finding("against", text, {"length": length})
    cosine = off_diagonal(whole.cosines())
    ratio = max(0.0, count * cosine / (1 + (count - 1) * cosine)) if cosine > -1 / count else math.nan
    if ratio < STOCK:
        text = (
            f"model stock: with a mean cosine of {cosine:.3f} between task vectors it takes about {ratio:.0%} of the "
            "average and the rest of the base."
        )
        yield Finding("against", text, {"cosine": cosine, "ratio": ratio})


def _slerp(found: Diagnosis) -> Iterator[Finding]:
    count = len(found.experts)
    if count > 2:
        yield Finding("against", f"slerp: it takes 2 models, and there are {count}.", {"experts": count})
        return
    cosine = _weights_cosine(found)
    angle = math.degrees(math.acos(cosine))
    if angle < SMALL_ANGLE:
        gain = 1 / math.cos(math.radians(angle / 2)) - 1
        text = f"slerp: the models lie {angle:.1f} degrees apart, where the average's norm is {gain:.2%} short."
        yield Finding("against", text, {"angle": angle, "gain": gain})
    else:
        text = f"slerp: the models lie {angle:.1f} degrees apart, so an average would be too short."
        yield Finding("for", text, {"angle": angle}, "method=slerp")


def _weights_cosine(found: Diagnosis) -> float:
    """The cosine between the weights of the first two experts."""
    sums = found.whole().sums
    if not found.has_base:
        return float(sums.cosines()[0, 1])
    lift = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    weights = lift @ sums.products[:3, :3] @ lift.T
    return float(np.clip(weights[0, 1] / math.sqrt(weights[0, 0] * weights[1, 1]), -1, 1))
