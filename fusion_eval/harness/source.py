"""What a task's Python files give and need, found without running them."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusion_eval.errors import Fault, did_you_mean
from fusion_eval.harness.function import DISTRIBUTIONS, module_file
from fusion_eval.harness.peer_names import task_folders
from fusion_eval.harness.yaml_file import FunctionRef

_AROUND = 4


@dataclass(frozen=True, slots=True)
class Needed:
    """An import that runs when the file does: `from module import name`, or `import module` where name is empty."""

    line: int
    module: str
    name: str = ""
    level: int = 0


@dataclass(slots=True)
class Source:
    """One Python file.

    Args:
        names: what stands at its top level.
        open: whether there may be more, as after `from x import *`.
        needed: its imports, but for those inside functions and after `try`.
        fault: why it cannot be parsed.
    """

    names: set[str] = field(default_factory=set)
    open: bool = False
    needed: list[Needed] = field(default_factory=list)
    fault: Fault | None = None


class SourceReader:
    """Looks at Python files of tasks; each file once.

    Args:
        roots: folders the user named.
        supplied: packages of which this package supplies modules: name -> its modules, by full name.
        stand_ins: packages that are supplied where they are not installed.
    """

    def __init__(
        self, roots: Iterable[Path], supplied: Mapping[str, Mapping[str, Callable[[], Mapping[str, Any]]]],
        stand_ins: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.supplied, self.stand_ins = supplied, frozenset(stand_ins)
        self.folders = {package: task_folders(roots, package) for package in supplied}
        self._sources: dict[Path, Source] = {}
        self._faults: dict[Path, list[Fault]] = {}

    def faults(self, ref: FunctionRef) -> list[Fault]:
        """Why a function cannot be had: no such file or name, a file that is not Python, an import that fails."""
        module, _, name = ref.target.rpartition(".")
        where = f"{ref.file}:{ref.line}"
        if not module:
            return [Fault(where, f"!function {ref.target} names no module", "module.function")]
        file = module_file(ref.file.parent, module)
        if file is None:
            if installed(module.partition(".")[0]) or module.partition(".")[0] in self.supplied:
                return []
            expected = f"the file {ref.file.parent / module.replace('.', '/')}.py"
            return [Fault(where, f"!function {ref.target} names a module that does not exist", expected)]
        source = self.source(file)
        faults = list(self.file_faults(file))
        if source.fault is None and name not in source.names and not source.open:
            faults.append(Fault(where, f"{file} has no '{name}'", do=did_you_mean(name, source.names)))
        return faults

    def source(self, file: Path) -> Source:
        """What a file gives and needs."""
        file = file.resolve()
        if file not in self._sources:
            self._sources[file] = read_source(file)
        return self._sources[file]

    def file_faults(self, file: Path) -> Sequence[Fault]:
        """Why a file does not run, as far as its imports (and theirs, in the task folders) tell."""
        file = file.resolve()
        if file in self._faults:
            return self._faults[file]
        found: list[Fault] = []
        self._faults[file] = found  # so that files which import each other end
        source = self.source(file)
        if source.fault is not None:
            found.append(source.fault)
        for needed in source.needed:
            found += self._import_faults(file, needed)
        once: dict[tuple[str, str], Fault] = {}
        for fault in found:  # a package that several lines need is told at the first
            once.setdefault((fault.where.rpartition(":")[0], fault.found), fault)
        self._faults[file] = list(once.values())
        return self._faults[file]

    def _import_faults(self, file: Path, needed: Needed) -> list[Fault]:
        top = needed.module.partition(".")[0]
        where = f"{file}:{needed.line}"
        if needed.level:
            return self._relative_faults(file, needed)
        if top in self.supplied:
            return self._supplied_faults(where, needed)
        around = file.parents[:_AROUND]  # tasks put folders around their file into `sys.path`
        if top in self.stand_ins or installed(top) or any(_has_module(folder, top) for folder in around):
            return []
        do = f"Run: pip install {DISTRIBUTIONS.get(top, top)}"
        return [Fault(where, f"needs the package '{top}', which is not installed", do=do)]

    def _relative_faults(self, file: Path, needed: Needed) -> list[Fault]:
        folder = file.parents[needed.level - 1].joinpath(*needed.module.split(".")) if needed.module else None
        base = folder or file.parents[needed.level - 1]
        for place in (base.with_name(f"{base.name}.py"), base / "__init__.py", base / f"{needed.name}.py"):
            if place.is_file():
                return list(self.file_faults(place))
        if base.is_dir():
            return []
        shown = "." * needed.level + needed.module
        return [Fault(f"{file}:{needed.line}", f"imports {shown}, which does not exist", f"{base}.py")]

    def _supplied_faults(self, where: str, needed: Needed) -> list[Fault]:
        package = needed.module.partition(".")[0]
        for full in (f"{needed.module}.{needed.name}" if needed.name else "", needed.module):
            place = self._in_folders(package, full)
            if place is not None:
                return self._tree_faults(where, place, needed, full)
            if full in self.supplied[package]:
                return self._name_faults(where, needed, full)
        if needed.module == f"{package}.tasks":
            return []
        expected = f"a module of the task folders, or one that is supplied: {_near(needed.module, self.supplied)}"
        return [Fault(where, f"imports {needed.module}, which is neither there nor supplied", expected)]

    def _in_folders(self, package: str, full: str) -> Path | None:
        if not full.startswith(f"{package}.tasks."):
            return None
        parts = full.split(".")[2:]
        for folder in self.folders[package]:
            own = [parts[1:]] if parts[0] == folder.name and len(parts) > 1 else []
            for place in (folder.joinpath(*tail) for tail in (parts, *own)):
                for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
                    if file.is_file():
                        return file
                if place.is_dir():
                    return place
        return None

    def _tree_faults(self, where: str, place: Path, needed: Needed, full: str) -> list[Fault]:
        if place.is_dir():
            return []
        source, faults = self.source(place), list(self.file_faults(place))
        wanted = needed.name if full == needed.module else ""
        if wanted and wanted != "*" and source.fault is None and wanted not in source.names and not source.open:
            faults.append(Fault(where, f"{place} has no '{wanted}'", do=did_you_mean(wanted, source.names)))
        return faults

    def _name_faults(self, where: str, needed: Needed, full: str) -> list[Fault]:
        if full != needed.module or needed.name in ("", "*"):
            return []
        package = full.partition(".")[0]
        names = _supply(self.supplied[package][full])
        if needed.name in names or f"{full}.{needed.name}" in self.supplied[package]:
            return []
        found = f"imports {needed.name} from {full}, which is not supplied"
        return [Fault(where, found, do=did_you_mean(needed.name, names))]


def _has_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


@functools.cache
def _supply(make: Callable[[], Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(make())


def _near(module: str, supplied: Mapping[str, Mapping[str, Any]]) -> str:
    known = supplied[module.partition(".")[0]]
    return did_you_mean(module, known).removeprefix("Did you mean ").rstrip("?") or f"{len(known)} are"


@functools.cache
def installed(package: str) -> bool:
    """Whether a package can be imported, found without importing it."""
    if package in sys.stdlib_module_names or package in sys.builtin_module_names:
        return True
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return package in sys.modules


def read_source(file: Path) -> Source:
    """What a file gives and needs; `fault` where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a file's odd escapes are its own matter
            tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        return Source(fault=Fault(f"{file}:{error.lineno or 1}", f"is not valid Python: {error.msg}"))
    except (OSError, ValueError) as error:
        return Source(fault=Fault(str(file), f"cannot be read: {error}"))
    source = Source(open=any(_is_dynamic(node) for node in ast.walk(tree)))
    for statement, certain in _statements(tree.body, True):
        _take(source, statement, certain)
    return source


def _statements(body: Iterable[ast.stmt], certain: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Statements that run with the file, and whether they must succeed."""
    for statement in body:
        yield statement, certain
        if isinstance(statement, ast.If):
            sure = certain and "TYPE_CHECKING" not in ast.dump(statement.test)
            yield from _statements(statement.body, sure and _always(statement.test))
            yield from _statements(statement.orelse, False)
        elif isinstance(statement, ast.Try):
            yield from _statements(statement.body, certain and not statement.handlers)
            for part in (*(handler.body for handler in statement.handlers), statement.orelse):
                yield from _statements(part, False)
            yield from _statements(statement.finalbody, certain)
        elif isinstance(statement, ast.With | ast.For | ast.While):
            yield from _statements(statement.body, certain)


def _always(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) and bool(test.value)


def _take(source: Source, statement: ast.stmt, certain: bool) -> None:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        source.names.add(statement.name)
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            source.names.add(alias.asname or alias.name.partition(".")[0])
            if certain:
                source.needed.append(Needed(statement.lineno, alias.name))
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            source.open = source.open or alias.name == "*"
            source.names.add(alias.asname or alias.name)
            if certain:
                source.needed.append(Needed(statement.lineno, statement.module or "", alias.name, statement.level))
    else:
        stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        source.names.update(name.id for name in stored)


def _is_dynamic(node: ast.AST) -> bool:
    """Whether a node may put names into its module that nothing shows."""
    if isinstance(node, ast.FunctionDef):
        return node.name == "__getattr__"
    return isinstance(node, ast.Name) and node.id in ("globals", "setattr")
