"""Class names and prompts of the twenty image data sets on which CLIP merges are compared.

The data sets are those of Task Arithmetic (arXiv:2212.04089; the first 8) and of TALL masks (arXiv:2405.07813; 14 and
20); names and prompts are CLIP's (arXiv:2103.00020), in the order of the data sets' labels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed

_FILE: Final = Path(__file__).with_name("clip_tasks.json")
_ALIASES: Final = {"cars": "stanford-cars", "flowers102": "oxford-flowers102", "pets": "oxford-iiit-pet"}


@dataclass(frozen=True, slots=True)
class ClassPrompts:
    """What a zero-shot head is made from.

    Args:
        classes: the classes' names, in the order of the labels.
        templates: prompts with `{}` in the place of a name.
    """

    classes: tuple[str, ...]
    templates: tuple[str, ...]

    def texts(self, index: int) -> list[str]:
        """The prompts of one class."""
        return [template.format(self.classes[index]) for template in self.templates]


def class_prompts(
    task: str,
    classes: Mapping[str, Sequence[str]] | None = None,
    templates: Mapping[str, Sequence[str]] | None = None,
) -> ClassPrompts:
    """The prompts of a task: the user's, where given, else the data set's.

    Args:
        task: a data set's name; `-` and `_` are the same.
        classes: names by task, for other data sets or other words.
        templates: prompts by task; `a photo of a {}.` for a data set that has none.

    Raises:
        ConfigError: no names are known for the task, or a prompt has no place for a name.
    """
    stored = _stored().get(_canonical(task))
    names = (classes or {}).get(task) or (stored.classes if stored else ())
    prompts = (templates or {}).get(task) or (stored.templates if stored else ("a photo of a {}.",))
    if not names:
        known = list(_stored())
        hint = did_you_mean(_canonical(task), known) or f"Give the class names: classes.{task}=[...]."
        raise ConfigError(Fault(f"zero-shot head '{task}'", "no class names", f"one of {listed(known, 20)}", hint))
    blank = [prompt for prompt in prompts if "{}" not in prompt]
    if blank:
        raise ConfigError(Fault(f"templates.{task}", f"'{blank[0]}'", "{} in the place of the class name"))
    return ClassPrompts(tuple(str(name) for name in names), tuple(prompts))


def known_tasks() -> tuple[str, ...]:
    """The twenty data sets, in the order of the benchmarks."""
    return tuple(json.loads(_FILE.read_text(encoding="utf-8")))


@cache
def _stored() -> dict[str, ClassPrompts]:
    data = json.loads(_FILE.read_text(encoding="utf-8"))
    return {
        _canonical(task): ClassPrompts(tuple(entry["classes"]), tuple(entry["templates"]))
        for task, entry in data.items()
    }


def _canonical(task: str) -> str:
    name = task.lower().replace("_", "-")
    return _ALIASES.get(name, name)
