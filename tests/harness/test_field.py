from __future__ import annotations

import pytest

from fusion_eval.errors import ConfigError
from fusion_eval.harness.field import choices_of, column_or_template, media_of, target_of, text_of

DOC = {"q": "why", "n": 2, "digits": "1", "c": ["a", "b"], "img": "pixels"}


def test_columns_keep_their_type_and_templates_become_text() -> None:
    assert text_of("n", DOC, DOC, True) == 2
    assert text_of("{{n}}", DOC, DOC, False) == "2"
    assert text_of("{{n}}", DOC, DOC, True) == 2
    assert text_of("digits", DOC, DOC, True) == "1"
    assert text_of(3, DOC, DOC, False) == 3
    assert text_of(lambda d: d["q"] + "?", DOC, DOC, False) == "why?"
    assert text_of("{{'²'}}", DOC, DOC, False) == "²"


def test_rendered_lists_of_targets_are_lists() -> None:
    assert target_of("{{c}}", DOC, DOC, False) == ["a", "b"]
    assert target_of("[not a list]", DOC, DOC, False) == "[not a list]"
    assert target_of([1, 2], DOC, DOC, False) == [1, 2]


def test_choices() -> None:
    assert choices_of("c", DOC, DOC) == ["a", "b"]
    assert choices_of("{{[q, 'x']}}", DOC, DOC) == ["why", "x"]
    assert choices_of({"k": "v"}, DOC, DOC) == ["v"]
    with pytest.raises(ConfigError, match="a Python list"):
        choices_of("{{q}} and", DOC, DOC)


def test_media_and_prefixes() -> None:
    assert media_of(["img", lambda d: None], DOC, DOC, "doc_to_image") == ["pixels"]
    assert column_or_template("q", DOC) == "why"
    assert column_or_template("A{{n}}", DOC) == "A2"
    assert column_or_template(None, DOC) is column_or_template("", DOC) is None
