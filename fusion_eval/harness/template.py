"""Jinja templates of task files: strict, compiled once, with the peer's one extra filter."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from fusion_eval.errors import DataError, Fault, missing_dependency

_UNKNOWN_WORDS = frozenset(
    {"range", "dict", "lipsum", "cycler", "joiner", "namespace", "loop", "self", "true", "false", "none"}
)


def regex_replace(string: str, pattern: str, repl: str, count: int = 0) -> str:
    """`re.sub` as a template filter."""
    return re.sub(pattern, repl, string, count=count)


@functools.cache
def environment() -> Any:
    """The Jinja environment: undefined names are errors, a trailing newline stays, nothing is escaped."""
    try:
        import jinja2
    except ImportError as error:
        raise missing_dependency("jinja2", "language", "templates of task files") from error
    env = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    env.filters["regex_replace"] = regex_replace
    return env


@functools.lru_cache(maxsize=4096)
def compiled(text: str) -> Any:
    """The compiled template.

    Raises:
        DataError: not a valid template, with its line.
    """
    import jinja2

    try:
        return environment().from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise DataError(Fault(f"template line {error.lineno}", f"{error.message} in {_short(text)}")) from error


def render(text: str, document: Mapping[str, Any]) -> str:
    """The template filled with the document's columns.

    Raises:
        DataError: a name that the document lacks, or an expression that fails.
    """
    if "{" not in text and "\r" not in text:
        return text
    template = compiled(text)
    try:
        return str(template.render(**document))
    except Exception as error:
        columns = ", ".join(sorted(str(key) for key in document))
        raise DataError(
            Fault(f"template {_short(text)}", f"{type(error).__name__}: {error}", f"only these columns: {columns}")
        ) from error


def variables(text: str) -> set[str]:
    """Names that a template takes from the document.

    Raises:
        DataError: not a valid template.
    """
    if "{" not in text:
        return set()
    from jinja2 import meta

    compiled(text)
    return set(meta.find_undeclared_variables(environment().parse(text))) - _UNKNOWN_WORDS


def _short(text: str) -> str:
    return repr(text if len(text) <= 90 else text[:87] + "...")
