"""HumanEval with perturbed prompts: ReCode's robust pass at 1 (arXiv 2212.10264)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.errors import ConfigError, DataError, Fault, did_you_mean
from fusion_eval.harness.code.execution import document_of, require_pairs
from fusion_eval.harness.code.humaneval import HumanEval
from fusion_eval.harness.code.judge import current_judge
from fusion_eval.harness.code.passing import count, estimates
from fusion_eval.harness.code.source import Source

CATEGORIES = ("format", "func_name", "natgen", "nlaugmenter")
_FIELDS = ("task_id", "seed", "perturbation_name", "prompt", "entry_point", "test")


class PerturbedHumanEval(HumanEval):
    """Every problem in several perturbed forms.

    Args:
        category: a name of CATEGORIES.
        num_seeds: how many forms of each perturbation.
    """

    def __init__(self, category: str = "format", num_seeds: int = 5) -> None:
        if category not in CATEGORIES:
            known = ", ".join(CATEGORIES)
            raise ConfigError(Fault("category", f"'{category}'", f"one of {known}", did_you_mean(category, CATEGORIES)))
        files = (f"perturbed_humaneval/{category}", f"perturbed_humaneval-{category}")
        super().__init__(source=Source("RaymondLi/perturbed_humaneval", category, files=files, fields=_FIELDS))
        self.num_seeds = num_seeds

    @functools.cached_property
    def documents(self) -> list[dict[str, Any]]:
        """The forms with a seed below `num_seeds`."""
        return [doc for doc in super().documents if doc["seed"] < self.num_seeds]

    def identity(self, doc: Mapping[str, Any], index: int) -> str:
        """Problem, perturbation and seed."""
        return f"{doc['task_id']}/{doc['perturbation_name']}/{doc['seed']}"

    def process_results(self, generations: list[list[str]], references: list[Any]) -> dict[str, Any]:
        """Robust pass at 1 of each perturbation, and pass@k over all prompts."""
        require_pairs(generations, references)
        programs = [[self.program(code, ref) for code in row] for row, ref in zip(generations, references, strict=True)]
        verdicts = current_judge().score(programs)
        docs = [document_of(reference) for reference in references]
        passed = [[verdict.passed for verdict in row] for row in verdicts]
        return {**robust_pass(docs, passed), **estimates([count(row) for row in verdicts], self.ks)}


def robust_pass(docs: Sequence[Mapping[str, Any]], passed: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Per perturbation, `robust-pass-at-1` and `alt-robust-pass-at-1`, equation 2 of the paper and its product form.

    The first is the mean over problems of the share of samples i that are right for the prompts of all seeds; the other
    multiplies the seeds' own shares.

    Raises:
        DataError: a prompt that comes twice, or seeds with different numbers of samples.
    """
    found: dict[str, dict[str, dict[int, Sequence[bool]]]] = {}
    for doc, row in zip(docs, passed, strict=True):
        seeds = found.setdefault(doc["perturbation_name"], {}).setdefault(doc["task_id"], {})
        where = f"{doc['task_id']}, {doc['perturbation_name']}, seed {doc['seed']}"
        if doc["seed"] in seeds:
            raise DataError(Fault(where, "two documents", "one"))
        if any(len(other) != len(row) for other in seeds.values()):
            raise DataError(Fault(where, f"{len(row)} samples", "as many as for the other seeds"))
        seeds[doc["seed"]] = row
    metrics: dict[str, float] = {}
    for name, problems in found.items():
        rows = [list(seeds.values()) for seeds in problems.values()]
        every = [[all(sample) for sample in zip(*seeds, strict=True)] for seeds in rows]
        metrics[f"robust-pass-at-1/{name}"] = _mean([_mean(row) for row in every])
        metrics[f"alt-robust-pass-at-1/{name}"] = _mean([math.prod(_mean(row) for row in seeds) for seeds in rows])
    return metrics


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
