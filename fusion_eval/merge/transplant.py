"""Rows for tokens that a model lacks, made of the model's own rows: the ways of mergekit-tokensurgeon."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from fusion_eval.errors import missing_dependency
from fusion_eval.merge.approximation import Approximation
from fusion_eval.merge.pursuit import matching_pursuit
from fusion_eval.merge.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Encoder

_BLOCK_BYTES: Final = 64 << 20


def combinations(atoms: Tensor, targets: Tensor, how: Approximation) -> tuple[Tensor, Tensor]:
    """Places of atoms (t, k) and coefficients (t, k) that approximate each target, in float64.

    Args:
        atoms: (n, d), a donor's rows of tokens that both models have.
        targets: (t, d), its rows of the new tokens.
        how: `omp` (arXiv:2506.06607) or `common_interpolation`.
    """
    if how.method == "omp":
        return matching_pursuit(atoms, targets, how.count)
    atoms, targets = atoms.double(), targets.double()
    count = min(how.count, len(atoms))
    size = max(1, _BLOCK_BYTES // (8 * max(1, len(atoms) + count * atoms.shape[1])))
    blocks = [_nearest(atoms, targets[start : start + size], count, how) for start in range(0, len(targets), size)]
    if not blocks or not count:
        return torch.zeros(len(targets), count, dtype=torch.long), torch.zeros(len(targets), count, dtype=torch.float64)
    return torch.cat([places for places, _ in blocks]), torch.cat([numbers for _, numbers in blocks])


def _nearest(atoms: Tensor, targets: Tensor, count: int, how: Approximation) -> tuple[Tensor, Tensor]:
    """The nearest atoms, weighed by the inverse distance or by likeness, or by (affine) least squares."""
    if how.cosine:
        units = [torch.nn.functional.normalize(each, dim=1) for each in (targets, atoms)]
        scores, places = (units[0] @ units[1].T).topk(count, dim=1)
        likeness = scores
    else:
        distances, places = torch.cdist(targets, atoms).topk(count, dim=1, largest=False)
        likeness = 1 / distances.clamp(min=1e-12)
    if how.scheme == "distance_proportional":
        return places, likeness / likeness.sum(1, keepdim=True)
    chosen = atoms[places]
    if how.scheme == "least_squares":
        return places, torch.einsum("tdk,td->tk", torch.linalg.pinv(chosen), targets)
    last = chosen[:, -1:]
    numbers = torch.einsum("tdk,td->tk", torch.linalg.pinv(chosen[:, :-1] - last), targets - last[:, 0])
    return places, torch.cat([numbers, 1 - numbers.sum(1, keepdim=True)], 1)


def piece_weights(count: int, pieces: str, head: bool) -> Tensor:
    """The weights of a token's pieces: early ones count more in an embedding, late ones in a head.

    `first_last` takes the piece that is next to the rest of the text: an embedding's last one, a head's first one.
    """
    if pieces == "first_last":
        return torch.eye(count, dtype=torch.float64)[0 if head else -1]
    if pieces == "weighted_mean":
        ramp = torch.arange(1, count + 1, dtype=torch.float64)
        return (ramp if head else ramp.flip(0)) / ramp.sum()
    return torch.full((count,), 1.0 if pieces == "sum" else 1 / count, dtype=torch.float64)


def drawn(table: Tensor, count: int, method: str, key: str) -> Tensor:
    """Rows that say nothing of their tokens, the same on every run.

    `mean` of the table, `zero`, `randn` of a normal as wide as the table's entries, or `john_hewitt`: of the normal
    with the mean and the covariance of the table (Hewitt, Initializing new word embeddings for pretrained language
    models, 2021).

    Args:
        table: (n, d).
        count: how many.
        method: the way.
        key: what the generator's state follows from.
    """
    rows = table.double()
    shape, generator = (count, rows.shape[1]), torch.Generator().manual_seed(zlib.crc32(key.encode()))
    if method == "zero":
        return torch.zeros(shape, dtype=torch.float64)
    mean = rows.mean(0)
    if method == "mean":
        return mean.repeat(count, 1)
    if method == "randn":
        return torch.randn(shape, generator=generator, dtype=torch.float64) * rows.square().mean().sqrt()
    noise = torch.randn((count, len(rows)), generator=generator, dtype=torch.float64)
    found: Tensor = mean + noise @ (rows - mean) / max(1, len(rows) - 1) ** 0.5
    return found


class Splitter:
    """Tokens of one tokenizer as tokens of another.

    Args:
        target: whose tokens are split.
        own: whose tokens they are split into.

    Raises:
        MissingDependencyError: tokenizers is not installed.
    """

    def __init__(self, target: Tokenizer, own: Tokenizer) -> None:
        self._target, self._own = _encoder(target), _encoder(own)

    def pieces(self, number: int) -> list[int]:
        """The ids of a token's pieces."""
        text = self._target.decode([number], skip_special_tokens=False)
        found: list[int] = self._own.encode(text, add_special_tokens=False).ids
        return found


def _encoder(tokenizer: Tokenizer) -> Encoder:
    try:
        from tokenizers import Tokenizer as Made
    except ImportError as error:
        raise missing_dependency("tokenizers", "huggingface", "approximate: {method: subword}") from error
    made: Any = Made
    found: Encoder = made.from_str(json.dumps(dict(tokenizer.data)))
    return found


def pieced(table: Tensor, pieces: Sequence[int], how: str, head: bool) -> Tensor:
    """The row of a token from the rows of its pieces."""
    rows = table[list(pieces)].double()
    found: Tensor = torch.einsum("k,k...->...", piece_weights(len(rows), how, head), rows)
    return found
