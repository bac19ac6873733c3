"""Index of task folders: name -> file, read from the heads of the files and cached by modification time."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fusion_eval.cache import cache_folder
from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.yaml_file import FunctionRef, Peer, YamlReader, include_target, parse_text

logger = logging.getLogger(__name__)

Kind = Literal["task", "class", "group", "tag"]
_FORMAT = 5
_IGNORED = frozenset({"__pycache__", ".ipynb_checkpoints", ".git"})
_SHOWN = ("dataset_path", "dataset_name", "output_type")
_HEAD_KEYS = ("task", "group", "class", "tag", "include", *_SHOWN)
_NAMES = "|".join(_HEAD_KEYS)
_HEAD = re.compile(rf'^(?:"({_NAMES})"|({_NAMES}))[ \t]*:(.*)$', re.M)
_PLAIN = re.compile(r"^[A-Za-z_./][\w./+\-]*$")
_QUOTED = re.compile(r"""^(?:"([^"\\]*)"|'([^']*)')$""")
_LIST_ITEM = re.compile(r"^[ \t]*-[ \t]+(.*)$")
_YAML_WORDS = frozenset({"yes", "no", "on", "off", "true", "false", "null", "y", "n", "~"})


@dataclass(frozen=True, slots=True)
class Entry:
    """A name that can be evaluated.

    Args:
        name: task, group or tag.
        kind: a YAML task, a Python `class`, a group, or a tag (the set of tasks that carry it).
        path: its file; None for a tag, and for a group that only its tasks name.
        members: tasks of a tag, sorted; tasks that join a group by naming it in their own files.
        root: the folder whose index it comes from; None for a single file.
        about: what the files say under `dataset_path`, `dataset_name` and `output_type`.
    """

    name: str
    kind: Kind
    path: Path | None = None
    members: tuple[str, ...] = ()
    root: Path | None = None
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Index:
    """All names below some folders.

    Args:
        entries: name -> entry.
        clashes: names that several files of one folder define: (name, file kept, file ignored).
        unreadable: files whose head could not be read, with the reason; they are not dropped silently.
        anonymous: YAML files that name no task (templates, as a rule).
        overridden: names that a later folder defines anew: (name, file that no longer counts, file that does).
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    clashes: list[tuple[str, Path, Path]] = field(default_factory=list)
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    anonymous: list[Path] = field(default_factory=list)
    overridden: list[tuple[str, Path | None, Path | None]] = field(default_factory=list)

    def names(self, kind: Kind | None = None) -> list[str]:
        """Sorted names, of one kind or all."""
        return sorted(name for name, entry in self.entries.items() if kind in (None, entry.kind))


def build_index(roots: Iterable[Path], cache: Path | None = None, peer: Peer = "lm_eval") -> Index:
    """The index of several folders; a later folder overrides names of an earlier one.

    Args:
        roots: folders, searched recursively for `*.yaml`.
        cache: folder for cached heads; None for the default (`$FUSION_EVAL_CACHE` or the user's cache folder).
        peer: whose rules the files follow. With LMMS-Eval's a task may name the groups that it joins, and a file
            without a name is called as it is.

    Raises:
        ConfigError: a root that is not a folder.
    """
    index = Index()
    for root in roots:
        folder = root.expanduser().resolve()
        if not folder.is_dir():
            raise ConfigError(Fault("include_path", f"{root} is not a folder", "a folder with task files"))
        part = _index_folder(folder, cache or cache_folder(), peer)
        for name in sorted(part.entries.keys() & index.entries.keys()):
            logger.info("task '%s' of %s overrides the one of an earlier folder", name, folder)
            index.overridden.append((name, index.entries[name].path, part.entries[name].path))
        index.entries.update(part.entries)
        index.clashes += part.clashes
        index.unreadable += part.unreadable
        index.anonymous += part.anonymous
    return index


def _index_folder(root: Path, cache: Path, peer: Peer) -> Index:
    store = cache / f"tasks_{hashlib.sha256(str(root).encode()).hexdigest()[:16]}.json"
    heads = _Heads(root, _read_cache(store), peer)
    index = Index()
    tags: dict[str, set[str]] = {}
    joined: dict[str, dict[str, None]] = {}
    for path in _yaml_files(root, peer):
        head = heads.merged(path, ())
        if peer == "lmms_eval":
            head = _joining(head, joined)
        _register(index, tags, head, Path(path), root, peer)
    if peer == "lmms_eval":
        _name_by_file(index, heads, root)
    for tag, members in tags.items():
        if tag not in index.entries:
            index.entries[tag] = Entry(tag, "tag", None, tuple(sorted(members)), root)
    for group, names in joined.items():
        known = index.entries.get(group)
        file = known.path if known is not None and known.kind == "group" else None
        if known is None or known.kind in ("group", "tag"):
            index.entries[group] = Entry(group, "group", file, tuple(names), root)
    if heads.changed:
        _write_cache(store, heads.known)
    return index


def _joining(head: dict[str, Any], joined: dict[str, dict[str, None]]) -> dict[str, Any]:
    """The head of a task without the groups that it joins, which are noted; of a group file with one name."""
    groups = _as_list(head.get("group"))
    if not groups or "class" in head:
        return head
    if isinstance(head.get("task"), str) and "dataset_path" in head:
        for group in groups:
            joined.setdefault(group, {})[head["task"]] = None
        return {key: value for key, value in head.items() if key != "group"}
    return {**head, "group": groups[0]}


def _name_by_file(index: Index, heads: _Heads, root: Path) -> None:
    """Give a task file without a name that of the file, unless it is a template or another file includes it."""
    included = heads.included()
    reader = YamlReader("lmms_eval")
    for path in list(index.anonymous):
        name = path.stem
        if str(path) in included or name.startswith("_") or name in index.entries:
            continue
        try:
            values = reader.read(path).values
        except ConfigError as error:
            index.unreadable.append((path, str(error)))
            index.anonymous.remove(path)
            continue
        if is_whole(values):
            index.entries[name] = Entry(name, "task", path, (), root, _about(heads.merged(str(path), ())))
            index.anonymous.remove(path)


def is_whole(values: Mapping[str, Any]) -> bool:
    """Whether the values of a file without a name describe a task rather than a part of one."""
    asks = values.get("doc_to_text") is not None or values.get("doc_to_messages") is not None
    return values.get("dataset_path") is not None and asks and not {"task", "group", "class"} & values.keys()


def _register(
    index: Index, tags: dict[str, set[str]], head: dict[str, Any], path: Path, root: Path, peer: Peer
) -> None:  # fmt: skip
    if "error" in head:
        index.unreadable.append((path, head["error"]))
        return
    kind: Kind | None = next((k for k in ("class", "group", "task") if k in head), None)  # type: ignore[assignment]
    name = head.get("group") if kind == "group" else head.get("task")
    if kind is None or not isinstance(name, str):
        index.anonymous.append(path)
        return
    if name in index.entries:
        earlier = index.entries[name].path or path
        if not _replaces(name, earlier, path, peer):
            index.clashes.append((name, earlier, path))
            return
        index.clashes.append((name, path, earlier))
    index.entries[name] = Entry(name, kind, path, (), root, _about(head) if kind != "group" else {})
    if kind != "group":
        for tag in _as_list(head.get("tag")):
            tags.setdefault(tag, set()).add(name)


def _replaces(name: str, earlier: Path, later: Path, peer: Peer) -> bool:
    """Whether the later of two files with one name counts: LMMS-Eval keeps the last one that it walks to.

    In one folder that depends on the file system, so a file that is called like its task counts there.
    """
    return peer == "lmms_eval" and not (earlier.parent == later.parent and earlier.stem == name)


def _about(head: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(head[key]) for key in _SHOWN if key in head}


class _Heads:
    """Heads of files, from the cache where the file's time and size are the same."""

    def __init__(self, root: Path, known: dict[str, Any], peer: Peer = "lm_eval") -> None:
        self.root = root
        self.peer = peer
        self.old = known
        self.known: dict[str, Any] = {}
        self._targets: dict[tuple[str, str], str] = {}

    @property
    def changed(self) -> bool:
        return self.known.keys() != self.old.keys() or any(self.old[k] is not v for k, v in self.known.items())

    def own(self, path: str) -> dict[str, Any]:
        if path in self.known:
            return dict(self.known[path][2])
        try:
            stat = os.stat(path)
        except OSError:
            return {"error": f"includes {path}, which does not exist"}
        row = self.old.get(path)
        if row is None or row[0] != stat.st_mtime_ns or row[1] != stat.st_size:
            row = [stat.st_mtime_ns, stat.st_size, read_head(Path(path))]
        self.known[path] = row
        return dict(row[2])

    def merged(self, path: str, parents: tuple[str, ...]) -> dict[str, Any]:
        """Own keys over those of the includes."""
        if path in parents:
            return {"error": f"includes itself through {parents[-1]}"}
        own = self.own(path)
        if "include" not in own:
            return own
        merged: dict[str, Any] = {}
        names = _as_list(own.pop("include"))
        for name in names if self.peer == "lm_eval" else reversed(names):
            merged.update(self.merged(self._target(path, name), (*parents, path)))
        return {**merged, **own}

    def _target(self, path: str, name: str) -> str:
        key = (os.path.dirname(path), name)
        if key not in self._targets:
            self._targets[key] = os.path.normpath(include_target(Path(key[0]), name, self.peer))
        return self._targets[key]

    def included(self) -> set[str]:
        """Every file that another one includes."""
        rows = [(path, row[2]) for path, row in self.known.items()]
        return {self._target(path, name) for path, head in rows for name in _as_list(head.get("include"))}


def read_head(path: Path) -> dict[str, Any]:
    """The keys `task`, `group`, `class`, `tag`, `include` and those shown of one file, or `error`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return scan_head(text) or _parsed_head(text, path)
    except (OSError, UnicodeDecodeError) as error:
        return {"error": f"cannot be read: {error}"}
    except ConfigError as error:
        return {"error": str(error)}


def scan_head(text: str) -> dict[str, Any] | None:
    """The head keys found without a YAML parser, or None where only a parser can tell."""
    head: dict[str, Any] = {}
    for match in _HEAD.finditer(text):
        key, rest = match.group(1) or match.group(2), match.group(3)
        if key == "class":
            head[key] = True
            continue
        if key in _SHOWN:
            head[key] = _scalar(rest) or re.split(r"\s#", rest)[0].strip().strip("\"'")
            continue
        value: Any = _scalar(rest)
        if value is None and not rest.split("#")[0].strip():
            value = True if key == "task" else _block_list(text, match.end())
        if value is None:
            return None
        head[key] = value
    return head


def _scalar(text: str) -> str | None:
    word = re.split(r"\s#", text)[0].strip()
    quoted = _QUOTED.match(word)
    if quoted:
        return quoted.group(1) if quoted.group(1) is not None else quoted.group(2)
    return word if _PLAIN.match(word) and word.lower() not in _YAML_WORDS and not word.startswith(".") else None


def _block_list(text: str, start: int) -> list[str] | None:
    items: list[str] = []
    for line in text[start:].lstrip("\n").splitlines():
        match = _LIST_ITEM.match(line)
        if match is None:
            break
        value = _scalar(match.group(1))
        if value is None:
            return None
        items.append(value)
    return items or None


def _parsed_head(text: str, path: Path) -> dict[str, Any]:
    values = parse_text(text, path).values
    head: dict[str, Any] = {}
    for key in _HEAD_KEYS:
        value = values.get(key)
        if value is None:
            continue
        if key in _SHOWN:
            head[key] = str(value)
        elif key == "class" or isinstance(value, FunctionRef) or (key == "task" and not isinstance(value, str)):
            head[key] = True
        else:
            head[key] = value
    return head


def _yaml_files(root: Path, peer: Peer) -> list[str]:
    """Sorted; for LMMS-Eval the files of a folder before those of the folders in it."""
    found = sorted(_walk(str(root)))
    return sorted(found, key=_place) if peer == "lmms_eval" else found


def _place(path: str) -> list[tuple[bool, str]]:
    *folders, name = path.split(os.sep)
    return [*((True, folder) for folder in folders), (False, name)]


def _walk(folder: str) -> Iterator[str]:
    with os.scandir(folder) as items:
        for item in items:
            if item.is_dir():
                if item.name not in _IGNORED:
                    yield from _walk(item.path)
            elif item.name.endswith(".yaml"):
                yield item.path


def _as_list(value: Any) -> Sequence[str]:
    if value is None:
        return ()
    return [str(v) for v in value] if isinstance(value, list) else (str(value),)


def _read_cache(store: Path) -> dict[str, Any]:
    try:
        payload = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return dict(payload["heads"]) if isinstance(payload, dict) and payload.get("format") == _FORMAT else {}


def _write_cache(store: Path, heads: dict[str, Any]) -> None:
    """A cache that cannot be written costs time, not results."""
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=store.parent, delete=False, encoding="utf-8") as file:
            file.write(json.dumps({"format": _FORMAT, "heads": heads}))  # `dump` writes piece by piece, slowly
        os.replace(file.name, store)
    except OSError as error:
        logger.debug("the task index is not cached: %s", error)
