"""Imports run one way (docs/architecture.md); Hydra and Lightning stay where they belong; files stay small."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "fusion_eval"
FILES = sorted(PACKAGE.rglob("*.py"))

GROUND = {"cache", "errors", "lazy", "log", "version"}
COMPONENTS = {"build", "mixins"}
ALLOWED = {
    "cache": set(),
    "errors": set(),
    "lazy": set(),
    "log": set(),
    "version": set(),
    "component": set(),
    "assets": set(),
    "utils": set(),
    "merge": set(),
    "task": set(),
    "stats": set(),
    "sandbox": set(),
    "report": set(),
    "evaluation": {"task"},
    "forms": {"evaluation", "stats", "task"},
    "harness": {"stats", "sandbox"},
    "method": {"merge"},
    "modelpool": {"merge", "task", "assets", *COMPONENTS},
    "taskpool": {
        "evaluation",
        "forms",
        "task",
        "harness",
        "sandbox",
        "stats",
        "report",
        "utils",
        *COMPONENTS,
    },
    "program": {
        "method",
        "modelpool",
        "taskpool",
        "report",
        "merge",
        "evaluation",
        "forms",
        "harness",
        "task",
        "stats",
        "component",
        *COMPONENTS,
    },
    "binding": {"component"},
    "build": {"binding", "component", "compose"},
    "mixins": {"build", "component"},
    "config_path": set(),
    "compose": {"config_path"},
    "usage": {"config_path"},
    "cli": {"compose", "usage", "config_path", "build", "program", "report"},
    "__main__": {"cli"},
}
EXCEPTIONS = {("merge/__init__.py", "program")}  # fusion_eval.merge(...) is both the package and the function
HYDRA_MAY_BE_IN = {"cli.py", "config_path.py", "compose.py", "usage.py", "build.py", "mixins.py", "report/sweep.py"}
WITHOUT_TORCH = (
    "__init__.py",
    "cli.py",
    "config_path.py",
    "compose.py",
    "usage.py",
    "build.py",
    "mixins.py",
    "report/",
    "log.py",
)


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def imports(file: Path, *, at_import: bool = False) -> Iterator[str]:
    """The modules that a file imports, but for annotations; `at_import` leaves out what functions import."""
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting.extend(node.orelse)
            continue
        if at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "fusion_eval":
            yield from (f"fusion_eval.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
        waiting.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_run_one_way(file: Path) -> None:
    unit = file.relative_to(PACKAGE).with_suffix("").parts[0]
    if unit == "__init__":
        return  # it only names where public things live; test_import_cost holds that it loads none of them
    ours = [module.split(".") for module in imports(file) if module.split(".")[0] == "fusion_eval"]
    met = {parts[1] for parts in ours if len(parts) > 1}
    met -= {other for name, other in EXCEPTIONS if name == name_of(file)}
    assert met <= GROUND | ALLOWED[unit] | {unit}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_hydra_lightning_and_torch_stay_where_they_belong(file: Path) -> None:
    roots = {module.split(".")[0] for module in imports(file)}
    if name_of(file) not in HYDRA_MAY_BE_IN:
        assert not roots & {"hydra", "omegaconf"}
    at_import = {module.split(".")[0] for module in imports(file, at_import=True)}
    assert not at_import & {"lightning", "pytorch_lightning"}, "import Lightning inside functions: it takes seconds"
    if name_of(file).startswith(WITHOUT_TORCH):
        assert "torch" not in at_import


def test_every_unit_is_in_the_table() -> None:
    units = {file.relative_to(PACKAGE).with_suffix("").parts[0] for file in FILES}
    assert units - {"__init__"} == set(ALLOWED)


def test_the_table_allows_no_more_than_is_used() -> None:
    used: dict[str, set[str]] = {unit: set() for unit in ALLOWED}
    for file in FILES:
        unit = file.relative_to(PACKAGE).with_suffix("").parts[0]
        used.setdefault(unit, set()).update(m.split(".")[1] for m in imports(file) if m.startswith("fusion_eval."))
    assert {unit: others - used[unit] for unit, others in ALLOWED.items() if others - used[unit]} == {}


def test_the_table_has_no_cycle() -> None:
    left = {unit: set(others) for unit, others in ALLOWED.items()}
    while left:
        ends = [unit for unit, others in left.items() if not others & set(left)]
        assert ends, f"a cycle among {sorted(left)}"
        for unit in ends:
            del left[unit]


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def ties(file: Path, modules: Collection[str]) -> Iterator[str]:
    """The package's modules that a file imports anywhere: at its top, in functions, or for annotations."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else str(node.module) for name in named)


def circles(graph: Mapping[str, set[str]]) -> set[str]:
    """What is left when modules that import nothing, or that nothing imports, are taken away again and again."""
    left = {name: others - {name} for name, others in graph.items()}
    while True:
        imported = set().union(*left.values()) if left else set()
        kept = {name: others & set(left) for name, others in left.items() if others & set(left) and name in imported}
        if len(kept) == len(left):
            return set(left)
        left = kept


def test_no_module_imports_itself_by_way_of_others() -> None:
    files = {module_of(file): file for file in FILES}
    graph = {name: set(ties(file, files)) for name, file in files.items()}
    graph["fusion_eval.merge"].discard("fusion_eval.program.api")  # the package that is a function too: EXCEPTIONS
    assert not circles(graph)


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_files_and_functions_stay_small(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {n.name: n.end_lineno - n.lineno + 1 for n in functions if n.end_lineno and n.end_lineno - n.lineno >= 55}
    assert not long
