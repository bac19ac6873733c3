"""From what the user asked for (names, globs, tags, groups, files, folders) to tasks and groups of tasks."""

from __future__ import annotations

import fnmatch
import importlib.util
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusion_eval.errors import ConfigError, Fault, FusionEvalError, did_you_mean
from fusion_eval.harness.index import Entry, Index, build_index, is_whole
from fusion_eval.harness.plan import GroupPlan, Selection, TaskPlan
from fusion_eval.harness.spec import GroupSpec
from fusion_eval.harness.spec_reader import SpecReader
from fusion_eval.harness.yaml_file import FunctionRef, Peer, YamlFile, YamlReader


def library() -> Path:
    """The package's own task files, whose names begin with `fe_`."""
    return Path(__file__).parent / "library"


def picture_library() -> Path:
    """The package's own multimodal task files, whose names begin with `fe_`."""
    return Path(__file__).parent / "multimodal" / "library"


def peer_tasks(package: str = "lm_eval") -> Path:
    """The task folder of an installed package, found without importing it.

    Raises:
        ConfigError: the package is not installed or has no task folder.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        tasks = Path(folder) / "tasks"
        if tasks.is_dir():
            return tasks
    raise ConfigError(
        Fault("tasks_from", f"the package '{package}' is not installed", "a package with a 'tasks' folder",
              f"Run: pip install --no-deps {package}")
    )  # fmt: skip


class TaskCatalog:
    """Tasks of some folders, read on demand.

    Args:
        roots: folders, later ones override earlier ones.
        cache: folder for the index cache.
        metadata: merged into every task's metadata.
        extra_keys: keys of another dialect that task files may have.
        peer: whose rules the files follow.
    """

    def __init__(
        self, roots: Iterable[Path] = (), cache: Path | None = None, metadata: Mapping[str, Any] | None = None,
        extra_keys: Collection[str] = (), peer: Peer = "lm_eval",
    ) -> None:  # fmt: skip
        self.index: Index = build_index(roots, cache, peer)
        self.cache = cache
        self.peer = peer
        self.metadata = dict(metadata or {})
        self.extra_keys = frozenset(extra_keys)
        self.files: list[Path] = []
        self._reader = YamlReader(peer)

    def select(self, requested: str | Sequence[str | Mapping[str, Any]]) -> Selection:
        """The tasks and groups that the items stand for.

        Args:
            requested: names, globs, tags, groups, YAML files, folders, or mappings written inline.

        Raises:
            ConfigError: every item that cannot be found or read, all at once.
        """
        selection, faults = self.survey(requested)
        if faults:
            raise ConfigError(*faults)
        return selection

    def survey(self, requested: str | Sequence[str | Mapping[str, Any]]) -> tuple[Selection, list[Fault]]:
        """As `select`, with what could be read and what is wrong."""
        items = requested.split(",") if isinstance(requested, str) else list(requested)
        builder = _Builder(self)
        for item in items:
            builder.add(item.strip() if isinstance(item, str) else item)
        return builder.selection, builder.faults

    def read(self, path: Path) -> YamlFile:
        """A file with its includes."""
        return self._reader.read(path)

    def find(self, name: str) -> Entry:
        """The entry of a name.

        Raises:
            ConfigError: no such name, with the nearest ones.
        """
        if name in self.index.entries:
            return self.index.entries[name]
        hint = did_you_mean(name, self.index.entries)
        broken = [f"{path} ({why})" for path, why in self.index.unreadable if Path(path).stem == name]
        found = f"no task, group or tag is called '{name}'" + (f"; {broken[0]} is broken" if broken else "")
        raise ConfigError(Fault("tasks", found, do=hint or "Name the task's folder in include_path."))


class _Builder:
    """One selection in the making."""

    def __init__(self, catalog: TaskCatalog) -> None:
        self.catalog = catalog
        self.selection = Selection()
        self.faults: list[Fault] = []
        self._open: list[str] = []

    def add(self, item: str | Mapping[str, Any]) -> None:
        try:
            if isinstance(item, Mapping):
                self._add_inline(item)
            elif self._is_path(item):
                self._add_path(item)
            elif any(c in item for c in "*?["):
                self._add_glob(item)
            else:
                self._add_member(item, {}, None)
        except FusionEvalError as error:
            self.faults += error.faults

    def _is_path(self, item: str) -> bool:
        """Whether an item means a file or folder; a folder here that is called as a task is does not hide the task."""
        if item.endswith((".yaml", ".yml")) or "/" in item:
            return True
        return item not in self.catalog.index.entries and Path(item).is_dir()

    def _add_glob(self, pattern: str) -> None:
        names = sorted(fnmatch.filter(self.catalog.index.entries, pattern))
        if not names:
            raise ConfigError(Fault("tasks", f"the pattern '{pattern}' matches no task, group or tag"))
        for name in names:
            self._add_member(name, {}, None)
        for path, why in self.catalog.index.unreadable:
            self.selection.notes.append(Fault(str(path), f"is broken, so '{pattern}' cannot match it: {why}"))

    def _add_path(self, item: str) -> None:
        path = Path(item).expanduser()
        if self.catalog.peer == "lmms_eval" and path.is_dir():
            self._add_folder(path)
            return
        files = sorted(path.glob("*.yaml")) if path.is_dir() else sorted(path.parent.glob(path.name))
        if not files:
            if "/" in item and not item.endswith((".yaml", ".yml")) and item in self.catalog.index.entries:
                self._add_member(item, {}, None)
                return
            raise ConfigError(Fault("tasks", f"{item} does not exist or holds no *.yaml", "a task file or a folder"))
        for file in files:
            read = self.catalog.read(file)
            if "task" not in read.values and "group" not in read.values and path.is_dir():
                continue
            self.catalog.files.append(file.resolve())
            self._add_read(read, {}, None)

    def _add_folder(self, path: Path) -> None:
        """All groups and tasks below a folder, which may run its Python; what is broken there is a fault."""
        part = build_index([path], self.catalog.cache, self.catalog.peer)
        self.catalog.index.entries.update(part.entries)
        self.catalog.files.append(path.resolve() / "*.yaml")
        self.faults += [Fault(str(file), why) for file, why in part.unreadable]
        if not part.entries:
            raise ConfigError(Fault("tasks", f"{path} holds no task", "files with the key 'task' or 'dataset_path'"))
        for kind in ("group", "task"):
            for name in part.names(kind):
                if name not in self.selection.tasks and name not in {plan.name for plan in self.selection.all_groups()}:
                    self._add_member(name, {}, None)

    def _add_inline(self, item: Mapping[str, Any]) -> None:
        if "group" in item and item["group"] not in self.catalog.index.entries:
            self._group(str(item["group"]), _inline(item, None), {}, None)
        else:
            self._add_member(item, {}, None)

    def _add_read(self, read: YamlFile, overrides: Mapping[str, Any], parent: GroupPlan | None) -> None:
        if self._is_group(read):
            self._group(str(_as_names(read.values["group"])[0]), read, overrides, parent)
        else:
            self._task(read, overrides, parent)

    def _is_group(self, read: YamlFile) -> bool:
        values = read.values
        if "group" not in values or "class" in values:
            return False
        return self.catalog.peer == "lm_eval" or "dataset_path" not in values or not isinstance(values["task"], str)

    def _add_member(
        self, item: str | Mapping[str, Any], overrides: Mapping[str, Any], parent: GroupPlan | None
    ) -> None:
        entries = self.catalog.index.entries
        if isinstance(item, str):
            name, own = item, dict(overrides)
        elif "group" in item:
            name, own = str(item["group"]), {**overrides, **{k: v for k, v in item.items() if k != "group"}}
            if name not in entries or (entries[name].kind != "group" and "task" in item):
                full = f"{parent.name}::{name}" if parent else name
                self._group(full, _inline(item, parent), overrides, parent)
                return
        else:
            name, own = str(item["task"]), {**overrides, **{k: v for k, v in item.items() if k != "task"}}
        inline = isinstance(item, Mapping) and ("include" in item or (name not in entries and _complete(own)))
        if inline and parent is not None:
            self._task(self._inline_task(name, own, parent), {}, parent)
            return
        entry = self.catalog.find(name)
        if entry.kind == "tag":
            for member in entry.members:
                self._add_member(member, own, parent)
        elif entry.path is None:
            self._group(name, YamlFile(Path(name), {"group": name, "task": list(entry.members)}), own, parent)
        else:
            assert entry.path is not None
            self._add_read(self.catalog.read(entry.path), own, parent)

    def _inline_task(self, name: str, own: dict[str, Any], parent: GroupPlan) -> YamlFile:
        """A task written inside a group; its includes are relative to the group's file."""
        full, source = f"{parent.name}::{name}", parent.spec.source or Path()
        if full in self.selection.tasks:
            taken = sum(other.startswith(full) for other in self.selection.tasks)
            note = Fault(str(source), f"{parent.name} has two members called '{name}'", "one name each")
            self.selection.notes.append(note)
            full = f"{full}_{taken + 1}"
        below: dict[str, Any] = {}
        for target in _as_names(own.pop("include", None)):
            below.update(self.catalog.read(source.parent / target).values)
        return YamlFile(source, {**below, **own, "task": full})

    def _group(self, name: str, read: YamlFile, overrides: Mapping[str, Any], parent: GroupPlan | None) -> None:
        if name in self._open:
            raise ConfigError(Fault(read.where("task"), f"the group '{name}' contains itself"))
        own_keys = {k: v for k, v in overrides.items() if k in ("group_alias", "aggregate_metric_list")}
        reader = SpecReader({**read.values, **own_keys}, read.where, read.path, self.catalog.extra_keys)
        spec = reader.group()
        self._report(reader, read)
        plan = GroupPlan(spec, name)
        passed = {**spec.overrides, **{k: v for k, v in overrides.items() if k not in own_keys}}
        self._open.append(name)
        for member in self._members(spec, name) if not reader.faults else ():
            try:
                self._add_member(member, passed, plan)
            except FusionEvalError as error:
                self.faults += error.faults
        self._open.pop()
        if parent is None:
            self.selection.groups.append(plan)
        else:
            parent.members.append(plan)

    def _members(self, spec: GroupSpec, name: str) -> list[str | Mapping[str, Any]]:
        """The members that the file names, patterns filled in, then the tasks that join the group by themselves."""
        found: list[str | Mapping[str, Any]] = []
        entries = self.catalog.index.entries
        for member in spec.members:
            if self.catalog.peer == "lmms_eval" and isinstance(member, str) and any(c in member for c in "*?["):
                found += [task for task in sorted(fnmatch.filter(entries, member)) if entries[task].kind != "group"]
            else:
                found.append(member)
        joining = entries[name].members if name in entries and entries[name].kind == "group" else ()
        return [*found, *(task for task in joining if task not in found)]

    def _task(self, read: YamlFile, overrides: Mapping[str, Any], parent: GroupPlan | None) -> None:
        values = {**read.values, **overrides}
        values["metadata"] = {**_mapping(values.get("metadata")), **self.catalog.metadata}
        if values.get("task") is None and self.catalog.peer == "lmms_eval" and is_whole(values):
            values["task"] = read.path.stem
        if not isinstance(values.get("task"), str):
            raise ConfigError(Fault(str(read.path), "the file names no task", "a key 'task' with a name"))
        reader = SpecReader(values, read.where, read.path, self.catalog.extra_keys)
        plan = TaskPlan(values["task"], reader.task(), values)
        self._report(reader, read)
        self._note_overridden(plan.name, read.path)
        known = self.selection.tasks.get(plan.name)
        if known is not None and not _same(known.values, values):
            raise ConfigError(
                Fault("tasks", f"'{plan.name}' is asked for twice with different settings",
                      do="Ask for it once, or give one of them another name.")
            )  # fmt: skip
        self.selection.tasks.setdefault(plan.name, plan)
        if parent is not None:
            parent.members.append(plan.name)

    def _note_overridden(self, name: str, path: Path) -> None:
        for other, lost, kept in self.catalog.index.overridden:
            if other == name and kept == path:
                self.selection.notes.append(Fault(str(kept), f"the task '{name}' is taken from here, not from {lost}"))

    def _report(self, reader: SpecReader, read: YamlFile) -> None:
        self.faults += reader.faults
        self.selection.notes += reader.notes
        for file, line, key in read.duplicates:
            note = Fault(f"{file}:{line}", f"the key '{key}' is given twice; the last one counts")
            if note not in self.selection.notes:
                self.selection.notes.append(note)


def _inline(item: Mapping[str, Any], parent: GroupPlan | None) -> YamlFile:
    source = parent.spec.source if parent is not None else None
    return YamlFile(source or Path(f"{item.get('group')} (inline)"), dict(item))


def _complete(values: Mapping[str, Any]) -> bool:
    return any(key in values for key in ("dataset_path", "custom_dataset", "class", "doc_to_text"))


def _as_names(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(v) for v in value] if isinstance(value, list) else [str(value)]


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    return {} if value is None else {"_metadata": value}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(_comparable(one) == _comparable(other))


def _comparable(value: Any) -> Any:
    if isinstance(value, FunctionRef):
        return (value.target, str(value.file))
    if isinstance(value, Mapping):
        return {k: _comparable(v) for k, v in value.items()}
    return [_comparable(v) for v in value] if isinstance(value, (list, tuple)) else value
