"""Programs are had by their public names, also by those that configurations of earlier versions give."""

from __future__ import annotations

import pytest

from fusion_eval import program
from fusion_eval.build import locate


@pytest.mark.parametrize("name", program.__all__)
def test_public_names_are_there(name: str) -> None:
    assert getattr(program, name).__name__ == name


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("compare_program.CompareProgram", "compare.CompareProgram"),
        ("study_program.StudyProgram", "study.StudyProgram"),
        ("study_merges.merge_cell", "study.merge_cell"),
        ("study_merges.HeadPredict", "study.HeadPredict"),
    ],
)
def test_a_configuration_of_an_earlier_version_still_names_its_program(before: str, now: str) -> None:
    assert locate(f"fusion_eval.program.{before}") is locate(f"fusion_eval.program.{now}")


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'mergee'"):
        program.mergee  # noqa: B018
