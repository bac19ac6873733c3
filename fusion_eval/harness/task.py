"""The abstract task: documents in, requests out, responses in, metric values out.

The method names are those that Python tasks of the peer override, so that such a task works on this base unmodified.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.aggregation import Aggregation, mean
from fusion_eval.harness.context import current
from fusion_eval.harness.dataset import DataRequest
from fusion_eval.harness.fewshot import ContextSampler
from fusion_eval.harness.filter.pipeline import Pipeline, default_pipeline
from fusion_eval.harness.randomness import OwnRandomness
from fusion_eval.harness.request import Request
from fusion_eval.harness.spec import TaskSpec
from fusion_eval.harness.spec_reader import SpecReader

Document = Any


class Task(ABC):
    """One benchmark.

    Args:
        config: a `TaskSpec`, or the keys of a task file.
    """

    VERSION: Any = None
    DATASET_PATH: str | None = None
    DATASET_NAME: str | None = None
    OUTPUT_TYPE: str | None = None
    UNSAFE_CODE = False
    MULTIMODAL = False
    unlisted_aggregation: Aggregation | None = staticmethod(mean)
    """How a metric is aggregated that the task does not list; None leaves it to the rows."""

    dataset: Any
    sampler: ContextSampler
    eval_split: str | None = None

    def __init__(
        self, data_dir: str | None = None, cache_dir: str | None = None, download_mode: Any = None,
        config: Mapping[str, Any] | TaskSpec | None = None,
    ) -> None:  # fmt: skip
        self._config = spec_of(config)
        self._context = current()
        self._filters: list[Pipeline] = [default_pipeline()]
        self._shot_pool: list[Document] | None = None
        self.download()

    @property
    def config(self) -> TaskSpec:
        """What the task file says."""
        return self._config

    @config.setter
    def config(self, spec: TaskSpec) -> None:
        self._config = spec

    @functools.cached_property
    def randomness(self) -> OwnRandomness:
        """The random numbers of the task's hooks."""
        return self._context.randomness if self._context.compat else OwnRandomness()

    @property
    def task_name(self) -> str:
        """The name under which results appear."""
        return self.config.task or type(self).__name__

    def download(self, *args: Any, **kwargs: Any) -> None:
        """Load `self.dataset`."""
        if self.DATASET_PATH is None:
            raise DataError(Fault(self.task_name, "names no data", "dataset_path or custom_dataset"))
        folder = self.config.source.parent if self.config.source else None
        self.dataset = self._context.data.load(
            DataRequest(self.DATASET_PATH, self.DATASET_NAME, self.config.dataset_kwargs, folder)
        )

    @abstractmethod
    def has_training_docs(self) -> bool:
        """Whether there are documents to draw shots from."""

    @abstractmethod
    def has_validation_docs(self) -> bool:
        """Whether there are validation documents."""

    @abstractmethod
    def has_test_docs(self) -> bool:
        """Whether there are test documents."""

    def training_docs(self) -> Iterable[Document]:
        """Training documents."""
        return []

    def validation_docs(self) -> Iterable[Document]:
        """Validation documents."""
        return []

    def test_docs(self) -> Iterable[Document]:
        """Test documents."""
        return []

    def fewshot_docs(self) -> Iterable[Document]:
        """The pool of shots: training, else validation, else test documents."""
        if self.has_training_docs():
            return self.training_docs()
        return self.validation_docs() if self.has_validation_docs() else self.test_docs()

    @property
    def eval_docs(self) -> Any:
        """The documents that are scored: test, else validation.

        Raises:
            DataError: there are neither.
        """
        if self.has_test_docs():
            return self.test_docs()
        if self.has_validation_docs():
            return self.validation_docs()
        raise DataError(Fault(self.task_name, "has neither test nor validation documents", "test_split or "
                              "validation_split"))  # fmt: skip

    def remark(self, doc: Document) -> str | None:
        """What is odd about a document; None for nothing."""
        return None

    @abstractmethod
    def doc_to_text(self, doc: Document) -> Any:
        """The question."""

    @abstractmethod
    def doc_to_target(self, doc: Document) -> Any:
        """The answer."""

    def doc_to_prefix(self, doc: Document) -> str | None:
        """The beginning of the answer that the model continues."""
        return None

    def doc_to_image(self, doc: Document) -> Any:
        """Images of a document."""
        raise NotImplementedError

    def doc_to_audio(self, doc: Document) -> Any:
        """Sounds of a document."""
        raise NotImplementedError

    def _process_doc(self, doc: Document) -> Any:
        return doc

    def fewshot_context(self, doc: Document, num_fewshot: int = 0, **kwargs: Any) -> Any:
        """The prompt of a document: description, shots, question, each as its class writes them."""
        description = kwargs.get("description") or ""
        shots = ""
        if num_fewshot:
            pool = self._pool()
            exclude = None if self.has_training_docs() else doc
            drawn = ContextSampler.sample(self.shot_sampler(), num_fewshot, eval_doc=exclude, df=pool)
            shots = "\n\n".join(self.doc_to_text(shot) + self.doc_to_target(shot) for shot in drawn) + "\n\n"
        return description + shots + self.doc_to_text(doc)

    def _pool(self) -> list[Document]:
        if self._shot_pool is None:
            self._shot_pool = list(self.fewshot_docs() or [])
        return self._shot_pool

    def shot_sampler(self) -> ContextSampler:
        """The sampler of shots."""
        if not hasattr(self, "sampler"):
            self.sampler = ContextSampler(self._pool(), rnd=self._context.fewshot_seed)
        return self.sampler

    def set_fewshot_seed(self, seed: int | None = None) -> None:
        """Start the sampler of shots anew."""
        self.shot_sampler().set_rnd(seed)

    @abstractmethod
    def construct_requests(self, doc: Document, ctx: Any, **kwargs: Any) -> Request | Sequence[Request]:
        """The requests of a document."""

    def next_round(self, requests: Sequence[Request]) -> list[Request]:
        """What is asked after the task's requests have answers: nothing, unless it asks in rounds."""
        return []

    @abstractmethod
    def process_results(self, doc: Document, results: Any) -> Mapping[str, Any]:
        """Metric values of a document from its (filtered) responses."""

    @abstractmethod
    def aggregation(self) -> Mapping[str, Aggregation]:
        """Metric -> function of all its values."""

    @abstractmethod
    def higher_is_better(self) -> Mapping[str, bool]:
        """Metric -> whether more is better."""

    def should_decontaminate(self) -> bool:
        """Unused: kept for tasks that define it."""
        return False

    @property
    def filters(self) -> list[Pipeline]:
        """The filter pipelines."""
        return self._filters

    @classmethod
    def count_bytes(cls, doc: str) -> int:
        """Bytes of a text in UTF-8."""
        return len(doc.encode("utf-8"))

    @classmethod
    def count_words(cls, doc: str) -> int:
        """Words of a text: one more than its runs of white space."""
        return len(re.split(r"\s+", doc))

    def get_config(self, key: str) -> Any:
        """A value of the spec, or None."""
        return getattr(self.config, key, None)


def spec_of(config: Mapping[str, Any] | TaskSpec | None) -> TaskSpec:
    """The spec that keys of a task file make.

    Raises:
        DataError: keys or values that are wrong.
    """
    if isinstance(config, TaskSpec):
        return config
    reader = SpecReader(dict(config or {}), lambda key: f"config.{key}")
    spec = reader.task()
    if reader.faults:
        raise DataError(*reader.faults)
    return spec
