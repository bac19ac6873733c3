"""Text classification: texts through a tokenizer, then a model that gives logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from fusion_eval.errors import DataError, Fault, listed
from fusion_eval.mixins import auto_register_config
from fusion_eval.task.inputs import target_key
from fusion_eval.taskpool.classification import ClassificationTaskPool

_MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@auto_register_config
class TextClassificationTaskPool(ClassificationTaskPool):
    """Accuracy and loss of one text classifier on several data sets.

    Args:
        test_datasets: data sets of rows with token ids, or with texts when a tokenizer is given, and a label.
        dataloader_kwargs: keywords of `torch.utils.data.DataLoader`.
        tokenizer: a Hugging Face tokenizer, or a node that builds one.
        text_keys: the columns to tokenise, one or two; by default the columns that hold texts, in their order.
        max_length: longest input in tokens; by default the tokenizer's.
        **kwargs: see `ClassificationTaskPool`.
    """

    def __init__(
        self,
        test_datasets: Mapping[str, Any],
        dataloader_kwargs: Mapping[str, Any] | None = None,
        *,
        tokenizer: Any = None,
        text_keys: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
        max_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(test_datasets, dataloader_kwargs=dataloader_kwargs, **kwargs)
        self._built_tokenizer: Any = None

    def prepare(self, name: str, dataset: Dataset[Any], options: dict[str, Any]) -> Dataset[Any]:
        """The same data set; rows are tokenised or padded when they are collated."""
        if options.get("collate_fn") is None:
            first = dataset[0] if len(dataset) else {}  # type: ignore[arg-type]
            if isinstance(first, Mapping) and first:
                options["collate_fn"] = self._collate(name, first)
        return dataset

    def _collate(self, name: str, row: Mapping[str, Any]) -> Callable[[list[Mapping[str, Any]]], dict[str, Any]]:
        where = f"task '{name}'"
        label = target_key(row, where)
        if "input_ids" in row:
            return PadRows(label)
        tokenizer = self._tokenizer(where, row)
        keys = self.text_keys.get(name) if isinstance(self.text_keys, Mapping) else self.text_keys  # type: ignore[attr-defined]
        keys = list(keys or [key for key, value in row.items() if isinstance(value, str)][:2])
        missing = [key for key in keys if key not in row]
        if missing or not keys:
            raise DataError(
                Fault(
                    f"taskpool.text_keys ({where})",
                    f"{listed(missing) or 'no text'} not among {listed(list(row))}",
                    "columns with texts",
                )
            )
        return TokenizeRows(tokenizer, keys, label, self.max_length)  # type: ignore[attr-defined]

    def _tokenizer(self, where: str, row: Mapping[str, Any]) -> Any:
        if self.tokenizer is None:  # type: ignore[attr-defined]
            raise DataError(
                Fault(
                    where,
                    f"rows with {listed(list(row))} and no tokenizer",
                    "input_ids, or a tokenizer",
                    "Set taskpool.tokenizer to a node with _target_: transformers.AutoTokenizer.from_pretrained.",
                )
            )
        if self._built_tokenizer is None:
            from fusion_eval.build import build

            self._built_tokenizer = build(self.tokenizer, _key_="taskpool.tokenizer")  # type: ignore[attr-defined]
        return self._built_tokenizer


class TokenizeRows:
    """Rows with texts as a padded batch."""

    def __init__(self, tokenizer: Any, keys: Sequence[str], label: str, max_length: int | None) -> None:
        self.tokenizer, self.keys, self.label, self.max_length = tokenizer, keys, label, max_length

    def __call__(self, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Model inputs and labels."""
        texts = [[row[key] for row in rows] for key in self.keys]
        batch = self.tokenizer(*texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt")
        return {**batch, "labels": torch.tensor([int(row[self.label]) for row in rows])}


class PadRows:
    """Rows with token ids as a batch, padded on the right; the mask is made where the rows have none."""

    def __init__(self, label: str) -> None:
        self.label = label

    def __call__(self, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Model inputs and labels."""
        batch: dict[str, Any] = {}
        for key in _MODEL_INPUTS:
            if key in rows[0]:
                columns = [torch.as_tensor(row[key]) for row in rows]
                batch[key] = torch.nn.utils.rnn.pad_sequence(columns, batch_first=True)
        if "attention_mask" not in batch:
            ones = [torch.ones(len(torch.as_tensor(row["input_ids"])), dtype=torch.int64) for row in rows]
            batch["attention_mask"] = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True)
        return {**batch, "labels": torch.tensor([int(row[self.label]) for row in rows])}
