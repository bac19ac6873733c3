"""Zero-shot classification by whole models with two towers: pictures against the model's own class texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fusion_eval.errors import Fault
from fusion_eval.evaluation.batches import EvaluationLoader
from fusion_eval.mixins import auto_register_config
from fusion_eval.report.values import TaskResult
from fusion_eval.taskpool.data_sets import HeadSource
from fusion_eval.taskpool.image_classification import ImageClassificationTaskPool

_CLASSIFIERS = "fusion_eval.modelpool.ZeroShotClassifiers"
_PROCESSOR = "transformers.AutoImageProcessor.from_pretrained"


@auto_register_config
class ZeroShotTaskPool(ImageClassificationTaskPool):
    """Accuracy and loss of whole CLIP, SigLIP and similar models; both towers are the evaluated model's own.

    `CLIPVisionModelTaskPool` evaluates vision towers against the texts of the CLIP that they descend from.

    Args:
        test_datasets: data sets by task.
        base_model: folder or hub id that image processor and tokenizer come with.
        revision: its commit, tag or branch.
        classes: class names by task, for data sets that are not among the twenty of the benchmarks.
        templates: prompts by task, with `{}` in the place of the class name.
        processor: by default the model's image processor.
        dataloader_kwargs: keywords of `torch.utils.data.DataLoader`.
        **kwargs: see `ClassificationTaskPool`.
    """

    def __init__(
        self,
        test_datasets: Mapping[str, Any],
        *,
        base_model: str,
        revision: str | None = None,
        classes: Mapping[str, Sequence[str]] | None = None,
        templates: Mapping[str, Sequence[str]] | None = None,
        processor: Any = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._node = {
            "_target_": _CLASSIFIERS, "processor": base_model, "revision": revision, "classes": classes,
            "templates": templates,
        }  # fmt: skip
        if processor is None:
            source = {"pretrained_model_name_or_path": base_model, "revision": revision or "main"}
            processor = {"_target_": _PROCESSOR, **source}
        super().__init__(test_datasets, processor=processor, dataloader_kwargs=dataloader_kwargs, **kwargs)
        self._classifiers: Any = None

    @property
    def classifiers(self) -> Any:
        """Makes a model the classifier of a task."""
        if self._classifiers is None:
            from fusion_eval.build import build

            self._classifiers = build(self._node, _key_="taskpool")
        return self._classifiers

    def faults(self) -> list[Fault]:
        """Tasks without class names, and what is wrong with any classification."""
        return [*super().faults(), *self.classifiers.faults(self.task_names)]

    def use_heads(self, source: HeadSource) -> None:
        """Heads of the model pool are not needed."""

    def _evaluate(self, model: nn.Module, loader: EvaluationLoader, model_name: str) -> TaskResult:
        return super()._evaluate(self.classifiers.classifier(model, loader.name), loader, model_name)

    def _classes(self, task: str) -> int | None:
        return len(self.classifiers.prompts(task).classes)
