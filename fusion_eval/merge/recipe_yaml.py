"""YAML that remembers its lines, so that every fault of a recipe names the place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from fusion_eval.errors import ConfigError, Fault, did_you_mean

NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
"""How numbers are written."""
_DEEPEST: Final = 40


@dataclass(frozen=True, slots=True)
class Item:
    """A YAML value (scalar, list of items, or items by key) and the line on which it, or its key, stands."""

    value: Any
    line: int

    def plain(self) -> Any:
        """The value without its lines."""
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        return self.value

    def kind(self) -> str:
        """What the value is, for people."""
        if isinstance(self.value, dict):
            return "a mapping"
        return "a list" if isinstance(self.value, list) else repr(self.value)


class Source:
    """A YAML text, and what was found in it so far.

    Args:
        file: its path, for people.
        lenient: keys that nobody knows are noted, as what has no effect; else they are faults.
    """

    def __init__(self, file: str, lenient: bool = False) -> None:
        self.file, self.lenient = file, lenient
        self.faults: list[Fault] = []
        self.notes: list[str] = []

    def where(self, line: int) -> str:
        """The place of a line."""
        return f"{self.file}, line {line}"

    def fault(self, item: Item, found: str, expected: str = "", do: str = "") -> None:
        """Note a fault at an item."""
        self.faults.append(Fault(self.where(item.line), found, expected, do))

    def note(self, item: Item, text: str) -> None:
        """Note what has no effect."""
        self.notes.append(f"{self.where(item.line)}: {text}")

    def unknown(self, item: Item, found: str, do: str) -> None:
        """A key that nobody knows."""
        if self.lenient:
            self.note(item, f"{found}, so it has no effect. {do}")
        else:
            self.fault(item, found, do=do)

    def raise_faults(self) -> None:
        """Raise all faults in one error.

        Raises:
            ConfigError: when there are any.
        """
        if self.faults:
            raise ConfigError(*dict.fromkeys(self.faults))

    def keys(
        self, item: Item, known: Iterable[str], what: str, hints: Mapping[str, str] | None = None
    ) -> dict[str, Item]:
        """The entries of a mapping whose keys are known; other keys are unknown, and what is no mapping is a fault.

        Args:
            item: the mapping.
            known: its keys.
            what: what it is, for people.
            hints: what to do about keys that belong elsewhere.
        """
        if not isinstance(item.value, dict):
            self.fault(item, f"{what} is {item.kind()}", f"a mapping with some of: {', '.join(known)}")
            return {}
        known = tuple(known)
        for key, value in item.value.items():
            if key not in known:
                hint = (hints or {}).get(key) or did_you_mean(key, known) or f"It takes: {', '.join(known)}."
                self.unknown(value, f"{what} has no key '{key}'", hint)
        return {key: value for key, value in item.value.items() if key in known}

    def items(self, item: Item, what: str) -> list[Item]:
        """The items of a list that is not empty."""
        if isinstance(item.value, list) and item.value:
            return item.value
        self.fault(item, f"{what} is {'empty' if item.value == [] else item.kind()}", "a list")
        return []

    def text(self, item: Item, what: str) -> str:
        """A string, or "" after a fault."""
        if isinstance(item.value, str) and item.value:
            return item.value
        self.fault(item, f"{what} is {item.kind()}", "a text")
        return ""

    def choice(self, item: Item, options: Iterable[str], what: str) -> str:
        """One of several words, or "" after a fault."""
        options = tuple(options)
        if item.value in options:
            return str(item.value)
        hint = did_you_mean(str(item.value), options)
        self.fault(item, f"{what} is {item.kind()}", f"one of {', '.join(options)}", hint)
        return ""

    def documents(self, text: str) -> list[Item]:
        """The documents of the text that are not empty.

        Raises:
            ConfigError: the text is no YAML.
        """
        loader = yaml.SafeLoader(text)
        try:
            found = []
            while loader.check_node():
                node: Any = loader.get_node()
                item = self._item(loader, node, node.start_mark.line + 1, 0)
                if item.value is not None:
                    found.append(item)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigError(Fault(self.where(line), f"not YAML ({error.problem})")) from error
        except yaml.YAMLError as error:
            raise ConfigError(Fault(self.file, "not YAML", do=str(error).splitlines()[0])) from error
        finally:
            loader.dispose()
        return found

    def _item(self, loader: yaml.SafeLoader, node: Any, line: int, depth: int) -> Item:
        if depth > _DEEPEST:
            raise ConfigError(Fault(self.where(line), f"more than {_DEEPEST} levels", "a recipe"))
        own = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            return Item([self._item(loader, n, n.start_mark.line + 1, depth + 1) for n in node.value], line)
        if isinstance(node, yaml.MappingNode):
            self._refuse_twice(node)
            loader.flatten_mapping(node)
            entries = {}
            for key, value in node.value:
                name = str(loader.construct_object(key))
                entries[name] = self._item(loader, value, key.start_mark.line + 1, depth + 1)
            return Item(entries, line)
        value = loader.construct_object(node)
        if isinstance(value, str) and node.style is None and NUMBER.fullmatch(value):
            value = float(value)  # 1e-5, which YAML 1.1 takes for a text
        return Item(value, line or own)

    def _refuse_twice(self, node: yaml.MappingNode) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                line = key.start_mark.line + 1
                if key.value in seen:
                    self.faults.append(
                        Fault(self.where(line), f"'{key.value}' again, as in line {seen[key.value]}", "it once")
                    )
                seen[key.value] = line


def texts(value: Any) -> Iterator[str]:
    """Every text in a plain YAML value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from texts(entry)
