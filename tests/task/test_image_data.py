from __future__ import annotations

import pytest
import torch

from fusion_eval.errors import DataError
from fusion_eval.task.image_data import held_out, with_columns


def test_the_parts_are_disjoint_complete_and_fixed():
    data = list(range(1000))
    validation, train = held_out(data, 0.2, 3), held_out(data, 0.2, 3, "train")
    assert len(validation) == 200
    assert sorted([*validation, *train]) == data
    assert list(validation) == list(held_out(data, 0.2, 3))
    assert list(validation) != list(held_out(data, 0.2, 4))
    assert list(validation) == sorted(validation)


def test_hugging_face_data_sets_stay_what_they_are():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"jpg": [[1.0]] * 20, "cls": list(range(20)), "__key__": ["k"] * 20})
    part = held_out(with_columns(data, {"jpg": "image", "cls": "label"}), 0.25)
    assert part.column_names == ["image", "label"]
    indices = torch.randperm(20, generator=torch.Generator().manual_seed(0))[:5]
    assert part["label"][:] == sorted(indices.tolist())
    with pytest.raises(DataError, match=r"no columns png; expected some of jpg, cls, __key__"):
        with_columns(data, {"png": "image"})


@pytest.mark.parametrize("arguments", [(0.0,), (1.0,), (0.01,), (0.5, 0, "test")])
def test_empty_and_unknown_parts_are_refused(arguments):
    with pytest.raises(DataError, match="held_out"):
        held_out(range(10), *arguments)
