"""Documents and fields of the task that a YAML file describes."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Mapping
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness import field
from fusion_eval.harness.dataset import DataRequest, split_of
from fusion_eval.harness.spec import FewshotSpec, TaskSpec
from fusion_eval.harness.task import Document, Task

logger = logging.getLogger(__name__)


class YamlDocuments(Task):
    """The data side of a YAML task: splits, processing, and what `doc_to_*` mean."""

    _split_docs: dict[str, Any]
    _one_file: bool = False

    def download(self, dataset_kwargs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Load `self.dataset` from `custom_dataset`, or by path and name."""
        spec = self.config
        if callable(spec.custom_dataset):
            with self.randomness.lent():
                self.dataset = _call_custom(spec)
            return
        if self.DATASET_PATH is None:
            raise DataError(Fault(self.task_name, "names no data", "dataset_path or custom_dataset"))
        folder = spec.source.parent if spec.source else None
        named = (spec.test_split, spec.validation_split, spec.training_split, self.shot.split)
        splits = tuple(dict.fromkeys(name for name in named if name)) or ("test",)
        request = DataRequest(self.DATASET_PATH, self.DATASET_NAME, dict(dataset_kwargs or {}), folder, splits)
        self._one_file = request.one_file
        if self._one_file and len(splits) > 1:
            logger.warning("%s: %s is %s at once; no document is its own shot", self.task_name, request.path,
                           " and ".join(splits))  # fmt: skip
        self.dataset = self._context.data.load(request)

    def has_training_docs(self) -> bool:
        """Whether the file names a training split."""
        return self.config.training_split is not None

    def has_validation_docs(self) -> bool:
        """Whether the file names a validation split."""
        return self.config.validation_split is not None

    def has_test_docs(self) -> bool:
        """Whether the file names a test split, or no split while the data has a natural one."""
        return self._test_split() is not None

    def _test_split(self) -> str | None:
        spec = self.config
        if spec.test_split is not None or spec.validation_split is not None:
            return spec.test_split
        names = list(self.dataset)
        return next((name for name in ("test", "validation") if name in names), names[0] if len(names) == 1 else None)

    def training_docs(self) -> Any:
        """The processed training split, or None."""
        return self._docs(self.config.training_split)

    def validation_docs(self) -> Any:
        """The processed validation split, or None."""
        return self._docs(self.config.validation_split)

    def test_docs(self) -> Any:
        """The processed test split, or None."""
        return self._docs(self._test_split())

    def _docs(self, split: str | None) -> Any:
        if split is None:
            return None
        if split not in self._split_docs:
            docs = split_of(self.dataset, split, f"{self.task_name} ({split})")
            self._split_docs[split] = self._processed(docs, self.config.process_docs)
        return self._split_docs[split]

    def _processed(self, docs: Any, process: Any) -> Any:
        if not callable(process):
            return docs
        with self.randomness.lent():
            return process(docs)

    def fewshot_docs(self) -> Any:
        """The pool of shots: the few-shot split, else `samples`, else the training, validation or test documents."""
        shot = self.shot
        if shot.split is not None:
            if shot.process_docs is self.config.process_docs:
                return self._docs(shot.split)
            docs = split_of(self.dataset, shot.split, f"{self.task_name} (fewshot_split)")
            return self._processed(docs, shot.process_docs)
        if shot.samples is not None:
            samples: Any = shot.samples
            return samples() if callable(samples) else list(samples)
        return super().fewshot_docs()

    @property
    def features(self) -> list[str]:
        """Columns of the documents that are scored."""
        docs = self.eval_docs
        if hasattr(docs, "features") and docs.features is not None:
            return list(docs.features)
        return list(docs[0]) if len(docs) else []

    @functools.cached_property
    def columns(self) -> frozenset[str]:
        """`features` for quick look-ups."""
        return frozenset(self.features)

    @functools.cached_property
    def shot(self) -> FewshotSpec:
        """The few-shot settings, inherited ones filled in."""
        return self.config.shot

    @functools.cached_property
    def multiple_input(self) -> int:
        """The number of choices where they are contexts (the question is an index into them), else 0."""
        if self.config.doc_to_choice is None or self.config.doc_to_text is None:
            return 0
        first = self.eval_docs[0]
        return len(self.doc_to_choice(first)) if isinstance(self.doc_to_text(first), int) else 0

    @functools.cached_property
    def multiple_target(self) -> int:
        """The number of golds of the first document where it has a list of them, else 0."""
        if self.config.doc_to_target is None:
            return 0
        target = self.doc_to_target(self.eval_docs[0])
        return len(target) if isinstance(target, list) else 0

    def doc_to_text(self, doc: Document, doc_to_text: Any = None) -> Any:
        """The question: text, or an index into the choices."""
        template = self.config.doc_to_text if doc_to_text is None else doc_to_text
        return field.text_of(template, doc, self.columns, self.config.doc_to_choice is not None)

    def doc_to_target(self, doc: Document, doc_to_target: Any = None) -> Any:
        """The answer: text, an index, or a list."""
        template = self.config.doc_to_target if doc_to_target is None else doc_to_target
        if template is None and self.OUTPUT_TYPE == "loglikelihood_rolling":
            return self.doc_to_text(doc)
        return field.target_of(template, doc, self.columns, self.config.doc_to_choice is not None)

    def doc_to_choice(self, doc: Document, doc_to_choice: Any = None) -> list[str]:
        """The choices."""
        template = self.config.doc_to_choice if doc_to_choice is None else doc_to_choice
        return field.choices_of(template, doc, self.columns)

    def doc_to_image(self, doc: Document, doc_to_image: Any = None) -> Any:
        """The images, or None."""
        template = self.config.doc_to_image if doc_to_image is None else doc_to_image
        return None if template is None else field.media_of(template, doc, self.columns, "doc_to_image")

    def doc_to_audio(self, doc: Document, doc_to_audio: Any = None) -> Any:
        """The sounds, or None."""
        template = self.config.doc_to_audio if doc_to_audio is None else doc_to_audio
        return None if template is None else field.media_of(template, doc, self.columns, "doc_to_audio")

    def doc_to_prefix(self, doc: Document) -> str | None:
        """The beginning of the answer."""
        return field.column_or_template(self.config.gen_prefix, doc)


def _call_custom(spec: TaskSpec) -> Any:
    assert callable(spec.custom_dataset)
    keywords = {**spec.metadata, **spec.dataset_kwargs}
    keywords.setdefault("config_source", str(spec.source) if spec.source else "inline")
    parameters = inspect.signature(spec.custom_dataset).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = {p.name for p in parameters}
        keywords = {key: value for key, value in keywords.items() if key in names}
    return spec.custom_dataset(**keywords)
