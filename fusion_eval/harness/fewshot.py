"""Few-shot samplers: which documents stand before the question."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from fusion_eval.errors import ConfigError, DataError, Fault, did_you_mean

Document = Any
SEED = 1234


class ContextSampler:
    """Draws shots at random; the state of the generator goes on from document to document.

    Users' samplers derive from it and override `sample`.

    Args:
        df: the pool.
        rnd: seed.
        fewshot_indices: positions of the pool to draw from; None for all.
    """

    def __init__(
        self, df: Sequence[Document] | None = None, *, rnd: int | None = None,
        fewshot_indices: Sequence[int] | None = None, **_: Any,
    ) -> None:  # fmt: skip
        self.rnd = Random(rnd)
        self.df: list[Document] = list(df or [])
        self.fewshot_indices = fewshot_indices
        self._picked = False

    def sample(
        self, n: int, eval_doc: Document | None = None, df: Sequence[Document] | None = None, **_: Any
    ) -> Sequence[Document]:
        """`n` documents; `eval_doc`, where given, is never among them.

        Raises:
            DataError: the pool is too small.
        """
        if n == 0:
            return []
        if df:
            self.df = list(df)
        pool = self.fewshot_docs()
        if eval_doc is None:
            self._check(len(pool), n)
            return self.rnd.sample(pool, n)
        self._check(len(pool) - 1, n)
        drawn = self.rm_eval_doc(eval_doc, self.rnd.sample(pool, n + 1), n)
        if len(drawn) < n:
            others = self.rm_eval_doc(eval_doc, pool)
            self._check(len(others), n)
            drawn = self.rnd.sample(others, n)
        return drawn

    def set_rnd(self, rnd: int | None) -> ContextSampler:
        """Start the generator anew."""
        self.rnd = Random(rnd)
        return self

    def replace_df(self, df: Sequence[Document]) -> ContextSampler:
        """Another pool."""
        self.df = list(df)
        self._picked = False
        return self

    def fewshot_docs(self) -> list[Document]:
        """The pool."""
        if self.fewshot_indices and not self._picked:
            self.df = [self.df[i] for i in self.fewshot_indices]
        self._picked = True
        return self.df

    @staticmethod
    def rm_eval_doc(doc: Document, _iter: Sequence[Document], n: int | None = None) -> list[Document]:
        """The documents that differ from `doc`, at most `n`."""
        return [other for other in _iter if other != doc][:n]

    def _check(self, available: int, wanted: int) -> None:
        if wanted > available:
            raise DataError(
                Fault("num_fewshot", f"{wanted} shots are asked for", f"at most {max(available, 0)}",
                      "Lower num_fewshot or name another fewshot_split.")
            )  # fmt: skip


class FirstNSampler(ContextSampler):
    """The first documents of the pool, in order."""

    def sample(
        self, n: int, eval_doc: Document | None = None, df: Sequence[Document] | None = None, **_: Any
    ) -> Sequence[Document]:
        """The first `n` documents that are not `eval_doc`."""
        pool = self.fewshot_docs() if eval_doc is None else self.rm_eval_doc(eval_doc, self.fewshot_docs())
        self._check(len(pool), n)
        return pool[:n]


SAMPLERS: dict[str, type[ContextSampler]] = {"default": ContextSampler, "first_n": FirstNSampler}


def sampler_class(sampler: Any) -> type[ContextSampler]:
    """The class of a sampler name, or the class itself.

    Raises:
        ConfigError: an unknown name.
    """
    if isinstance(sampler, type):
        return sampler
    if sampler in SAMPLERS:
        return SAMPLERS[sampler]
    raise ConfigError(
        Fault("fewshot_config.sampler", repr(sampler), f"one of {', '.join(SAMPLERS)} or a class",
              did_you_mean(str(sampler), SAMPLERS))
    )  # fmt: skip
