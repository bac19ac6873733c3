"""What a component is to those who build and check configurations."""

from __future__ import annotations

import inspect


class Component:
    """A class that builds the nodes among its arguments itself, and takes only keywords that its constructors name."""


def accepted_keywords(cls: type) -> set[str]:
    """Every keyword that a constructor along the class's bases names, as far as `**kwargs` pass it on."""
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        names.update(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names
