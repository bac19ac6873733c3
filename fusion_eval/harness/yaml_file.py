"""YAML task files: values with the line they come from, `!function` kept as a reference, `include` merged."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fusion_eval.errors import ConfigError, Fault, missing_dependency

logger = logging.getLogger(__name__)

Peer = Literal["lm_eval", "lmms_eval"]
"""Whose rules a task file follows: language tasks are those of lm_eval, multimodal ones those of LMMS-Eval."""


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A `!function module.name` that nobody has imported yet.

    Args:
        target: the text after the tag, for instance `utils.process_docs`.
        file: the file that contains the tag; `target` is relative to its folder.
        line: its line in that file, from 1.
    """

    target: str
    file: Path
    line: int

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionRef:
        return self  # frozen; copies of files would copy thousands

    @property
    def name(self) -> str:
        """The last part of the target: the attribute that is meant."""
        return self.target.rpartition(".")[2]

    def __str__(self) -> str:
        return f"!function {self.target} ({self.file}:{self.line})"


@dataclass(slots=True)
class YamlFile:
    """A mapping read from one file and all that it includes.

    Args:
        path: the file that was asked for.
        values: top-level keys after merging; `FunctionRef` where the file says `!function`.
        lines: key -> (file, line) of the definition that won.
        duplicates: (file, line, key) of every top-level key that a file repeats (the last one counts).
        includes: every file that was read besides `path`.
    """

    path: Path
    values: dict[str, Any]
    lines: dict[str, tuple[Path, int]] = field(default_factory=dict)
    duplicates: list[tuple[Path, int, str]] = field(default_factory=list)
    includes: list[Path] = field(default_factory=list)

    def where(self, key: str) -> str:
        """`file:line` of a key, or the file where the key is absent."""
        if key not in self.lines:
            return str(self.path)
        file, line = self.lines[key]
        return f"{file}:{line}"


class YamlReader:
    """Reads task files; each file, template or not, is parsed once per reader.

    Args:
        peer: of several includes the last one wins with lm_eval, the first with LMMS-Eval. Included files are looked
            for beside the file; with LMMS-Eval then in the working directory too (which it tries first).
    """

    def __init__(self, peer: Peer = "lm_eval") -> None:
        self.peer = peer
        self._parsed: dict[Path, YamlFile] = {}

    def read(self, path: Path) -> YamlFile:
        """The merged content of `path`: its own keys override those of its includes.

        Raises:
            ConfigError: unreadable, not YAML, not a mapping, or an include that is missing or circular.
        """
        found = self._merged(path.expanduser().resolve(), ())
        values, lines = copy.deepcopy(found.values), dict(found.lines)
        return YamlFile(found.path, values, lines, list(found.duplicates), list(found.includes))

    def _merged(self, path: Path, parents: tuple[Path, ...]) -> YamlFile:
        if path in parents:
            chain = " -> ".join(p.name for p in (*parents, path))
            raise ConfigError(Fault(str(path), f"includes itself: {chain}", do="Remove one include of the circle."))
        own = self._parse(path)
        if "include" not in own.values:
            return own
        merged = YamlFile(path, {}, duplicates=list(own.duplicates))
        names = _include_names(own)
        for name in names if self.peer == "lm_eval" else reversed(names):
            target = include_target(path.parent, name, self.peer)
            if not target.is_file():
                where = own.where("include")
                raise ConfigError(Fault(where, f"includes {name}, which does not exist", str(target), "Fix the path."))
            _overlay(merged, self._merged(target.resolve(), (*parents, path)))
        _overlay(merged, own, own_file=True)
        merged.values.pop("include", None)
        merged.lines.pop("include", None)
        return merged

    def _parse(self, path: Path) -> YamlFile:
        if path not in self._parsed:
            self._parsed[path] = parse_file(path)
        return self._parsed[path]


def include_target(folder: Path, name: str, peer: Peer) -> Path:
    """Where an included file lies."""
    beside = folder / Path(name).expanduser()
    here = Path.cwd() / Path(name).expanduser()
    return here if peer == "lmms_eval" and not beside.is_file() and here.is_file() else beside


def _include_names(file: YamlFile) -> list[str]:
    found = file.values["include"]
    names = found if isinstance(found, list) else [found]
    if all(isinstance(name, str) for name in names):
        return list(names)
    raise ConfigError(Fault(file.where("include"), f"include is {found!r}", "a path or a list of paths"))


def _overlay(below: YamlFile, above: YamlFile, own_file: bool = False) -> None:
    """Lay `above` over `below`, key by key (nested mappings are replaced, not merged)."""
    for key, value in above.values.items():
        if key == "task_list" and not own_file:
            continue
        below.values[key] = value
        below.lines[key] = above.lines.get(key, (above.path, 1))
    if not own_file:
        below.duplicates += above.duplicates
        below.includes += [above.path, *above.includes]


def parse_file(path: Path) -> YamlFile:
    """One file without its includes."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Fault(str(path), f"cannot be read: {error}", "a readable UTF-8 file")) from error
    return parse_text(text, path)


def parse_text(text: str, path: Path) -> YamlFile:
    """A mapping from YAML 1.1 text; `path` is where relative functions and messages point to.

    Raises:
        ConfigError: not YAML or not a mapping, with file and line.
    """
    yaml = _yaml()
    loader = _loader_class(yaml)(text)
    loader.task_file = path
    try:
        node = loader.get_single_node()
        values = loader.construct_document(node) if node is not None else None
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_fault(path, error)) from error
    finally:
        loader.dispose()
    if not isinstance(values, dict):
        raise ConfigError(Fault(str(path), f"holds a {type(values).__name__}", "a mapping of task keys"))
    file = YamlFile(path, values)
    _note_lines(file, node)
    return file


def _note_lines(file: YamlFile, node: Any) -> None:
    seen: set[str] = set()
    for key_node, _ in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in seen:
            file.duplicates.append((file.path, line, key))
        seen.add(key)
        file.lines[key] = (file.path, line)


def _syntax_fault(path: Path, error: Any) -> Fault:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = getattr(error, "problem", None) or str(error)
    return Fault(where, f"is not valid YAML: {problem}", do="Quote strings that hold ': ', '#', '{' or tabs.")


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise missing_dependency("pyyaml", "language", "task files") from error
    return yaml


_LOADERS: dict[str, type[Any]] = {}


def _loader_class(yaml: Any) -> type[Any]:
    """PyYAML's safe loader (the C one where it is built) plus the tag `!function`."""
    if "loader" in _LOADERS:
        return _LOADERS["loader"]
    base = yaml.CSafeLoader if getattr(yaml, "__with_libyaml__", False) else yaml.SafeLoader

    class TaskLoader(base):  # type: ignore[misc, valid-type]
        """Safe loader of task files."""

        task_file: Path = Path()

    def function(loader: Any, node: Any) -> FunctionRef:
        return FunctionRef(str(loader.construct_scalar(node)), loader.task_file, node.start_mark.line + 1)

    TaskLoader.add_constructor("!function", function)
    _LOADERS["loader"] = TaskLoader
    return TaskLoader


def function_refs(value: Any) -> list[FunctionRef]:
    """Every function reference below a value, in order."""
    if isinstance(value, FunctionRef):
        return [value]
    if isinstance(value, Mapping):
        return [ref for item in value.values() for ref in function_refs(item)]
    if isinstance(value, (list, tuple)):
        return [ref for item in value for ref in function_refs(item)]
    return []
