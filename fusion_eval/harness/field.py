"""What `doc_to_text`, `doc_to_target` and `doc_to_choice` mean for one document."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from typing import Any

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.template import render

Document = Mapping[str, Any]


def text_of(template: Any, document: Document, columns: Collection[str], has_choices: bool) -> Any:
    """The question: a string, or an index into the choices.

    A column gives its value as it is; a rendered string of digits becomes an int where the task has choices.
    """
    if isinstance(template, int):
        return template
    if isinstance(template, str):
        if template in columns:
            return document[template]
        rendered = render(template, document)
        return ast.literal_eval(rendered) if has_choices and rendered.isdigit() else rendered
    if callable(template):
        return template(document)
    raise ConfigError(Fault("doc_to_text", repr(template), "a column, a template, a number or a function"))


def target_of(template: Any, document: Document, columns: Collection[str], has_choices: bool) -> Any:
    """The answer: a string, an index into the choices, or a list of either.

    As `text_of`; besides, a rendered string between brackets becomes a list where it is one.
    """
    if isinstance(template, int):
        return template
    if isinstance(template, str):
        return _rendered_target(template, document, columns, has_choices)
    if isinstance(template, list):
        return template
    if callable(template):
        return template(document)
    raise ConfigError(Fault("doc_to_target", repr(template), "a column, a template, a number, a list or a function"))


def _rendered_target(template: str, document: Document, columns: Collection[str], has_choices: bool) -> Any:
    if template in columns:
        return document[template]
    rendered = render(template, document)
    if has_choices and rendered.isdigit():
        return ast.literal_eval(rendered)
    if len(rendered) >= 2 and rendered[0] == "[" and rendered[-1] == "]":
        try:
            return ast.literal_eval(rendered)
        except (SyntaxError, ValueError):
            return rendered
    return rendered


def choices_of(template: Any, document: Document, columns: Collection[str]) -> list[str]:
    """The choices of a document."""
    if isinstance(template, str):
        if template in columns:
            return document[template]  # type: ignore[no-any-return]
        return _literal("doc_to_choice", render(template, document))  # type: ignore[no-any-return]
    if isinstance(template, list):
        return template
    if isinstance(template, dict):
        return list(template.values())
    if callable(template):
        return template(document)  # type: ignore[no-any-return]
    raise ConfigError(Fault("doc_to_choice", repr(template), "a column, a template, a list, a mapping or a function"))


def media_of(template: Any, document: Document, columns: Collection[str], key: str) -> Any:
    """Images or sounds of a document; None where there are none."""
    if isinstance(template, list):
        found = [media_of(item, document, columns, key) for item in template]
        return [item for item in found if item is not None]
    if isinstance(template, str):
        return document[template] if template in columns else _literal(key, render(template, document))
    return template(document) if callable(template) else None


def column_or_template(template: str | None, document: Document) -> str | None:
    """A column's value, else the rendered template; None and "" give None."""
    if not template:
        return None
    return document[template] if template in document else render(template, document)


def _literal(key: str, rendered: str) -> Any:
    try:
        return ast.literal_eval(rendered)
    except (SyntaxError, ValueError) as error:
        shown = rendered if len(rendered) <= 120 else rendered[:117] + "..."
        raise ConfigError(Fault(key, f"renders to {shown!r}", "a Python list of strings")) from error
