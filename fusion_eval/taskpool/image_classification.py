"""Image classification: pictures through a processor, then a model and a head per task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from fusion_eval.errors import DataError, Fault, listed
from fusion_eval.mixins import auto_register_config
from fusion_eval.task.inputs import target_key
from fusion_eval.taskpool.classification import ClassificationTaskPool

IMAGE_KEYS = ("pixel_values", "image", "img", "x")


@auto_register_config
class ImageClassificationTaskPool(ClassificationTaskPool):
    """Accuracy and loss of one image model on several data sets.

    Args:
        test_datasets: data sets of (image, label) pairs or of rows with an image and a label column.
        processor: turns an image into a tensor: a Hugging Face image processor or any callable; None where the data
            sets yield tensors already.
        dataloader_kwargs: keywords of `torch.utils.data.DataLoader`.
        **kwargs: see `ClassificationTaskPool`.
    """

    def __init__(
        self,
        test_datasets: Mapping[str, Any],
        *,
        processor: Any = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(test_datasets, dataloader_kwargs=dataloader_kwargs, **kwargs)
        self._transform: Callable[[Any], Tensor] | None = None

    def prepare(self, name: str, dataset: Dataset[Any], options: dict[str, Any]) -> Dataset[Any]:
        """The data set with every image processed."""
        if self.processor is None or isinstance(dataset, IterableDataset):  # type: ignore[attr-defined]
            return dataset
        if self._transform is None:
            from fusion_eval.build import build

            self._transform = image_transform(build(self.processor, _key_="taskpool.processor"))  # type: ignore[attr-defined]
        return ProcessedImages(dataset, self._transform, f"task '{name}'")


class ProcessedImages(Dataset[tuple[Tensor, Any]]):
    """(processed image, label) pairs of another data set."""

    def __init__(self, dataset: Dataset[Any], transform: Callable[[Any], Tensor], where: str) -> None:
        self.dataset, self.transform, self.where = dataset, transform, where

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        image, label = self._parts(self.dataset[index])
        return self.transform(image), label

    def _parts(self, row: Any) -> tuple[Any, Any]:
        if isinstance(row, Mapping):
            label = target_key(row, self.where)
            for key in IMAGE_KEYS:
                if key in row:
                    return row[key], row[label]
            raise DataError(Fault(self.where, f"no image among {listed(list(row))}", f"one of {', '.join(IMAGE_KEYS)}"))
        if isinstance(row, list | tuple) and len(row) == 2:
            return row[0], row[1]
        raise DataError(Fault(self.where, f"an item that is a {type(row).__name__}", "a pair (image, label) or a row"))


def image_transform(processor: Any) -> Callable[[Any], Tensor]:
    """A processor as a function from one image to a tensor."""
    if "images" not in inspect.signature(processor.__call__).parameters:
        return processor  # type: ignore[no-any-return]

    def transform(image: Any) -> Tensor:
        return torch.as_tensor(processor(images=image, return_tensors="pt")["pixel_values"][0])

    return transform
