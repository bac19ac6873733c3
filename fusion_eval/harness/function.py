"""Turns `!function module.name` into the Python object, only from folders that the user named."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from fusion_eval.errors import ConfigError, Fault, MissingDependencyError, did_you_mean
from fusion_eval.harness.yaml_file import FunctionRef

T = TypeVar("T")
_PEERS = ("lm_eval", "lmms_eval")
_OWN: Final = "_fusion_eval_task_"


class ModuleSpace:
    """The Python modules of one run: each file is executed once per space, so that no state leaks between runs.

    Args:
        trusted: folders (or single files' folders) whose Python may run.
    """

    def __init__(self, trusted: Iterable[Path] = ()) -> None:
        self.trusted = tuple(path.expanduser().resolve() for path in trusted)
        self._modules: dict[Path, ModuleType] = {}
        self._registered: list[str] = []

    def close(self) -> None:
        """Forget every module of this space."""
        for name in self._registered:
            sys.modules.pop(name, None)
        self._modules.clear()
        self._registered.clear()

    def resolve(self, value: T) -> T:
        """The value with every function reference below it imported.

        Raises:
            ConfigError: an untrusted folder, a missing file or attribute, a module that fails.
            MissingDependencyError: a module that imports a package which is not installed.
        """
        return self._resolved(value)  # type: ignore[no-any-return]

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, FunctionRef):
            return self.function(value)
        if isinstance(value, Mapping):
            return {key: self._resolved(item) for key, item in value.items()}
        if isinstance(value, tuple):
            return tuple(self._resolved(item) for item in value)
        if isinstance(value, list):
            return [self._resolved(item) for item in value]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.replace(
                value, **{f.name: self._resolved(getattr(value, f.name)) for f in dataclasses.fields(value)}
            )
        return value

    def function(self, ref: FunctionRef) -> Any:
        """The object that a reference names: first `<folder>/<module>.py`, then an importable module."""
        module_name, _, attribute = ref.target.rpartition(".")
        where = f"{ref.file}:{ref.line}"
        if not module_name:
            raise ConfigError(Fault(where, f"!function {ref.target} names no module", "module.function"))
        file = module_file(ref.file.parent, module_name)
        self._check_trust(ref, where)
        module = self.module(file, where) if file is not None else self._import(module_name, where, ref.file.parent)
        try:
            return getattr(module, attribute)
        except AttributeError:
            raise ConfigError(
                Fault(where, f"the module {module.__file__ or module_name} has no '{attribute}'",
                      do=did_you_mean(attribute, dir(module)))
            ) from None  # fmt: skip

    def module(self, file: Path, where: str) -> ModuleType:
        """The module of a file, executed on first use."""
        file = file.resolve()
        if file not in self._modules:
            self._modules[file] = self._execute(file, where)
        return self._modules[file]

    def _check_trust(self, ref: FunctionRef, where: str) -> None:
        if not any(ref.file.resolve().is_relative_to(folder) for folder in self.trusted):
            raise ConfigError(
                Fault(where, f"!function {ref.target} would run Python from a folder that was not named",
                      do=f"Add {ref.file.parent} to include_path if you trust it.")
            )  # fmt: skip

    def _execute(self, file: Path, where: str) -> ModuleType:
        name = module_name_of(file)
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ConfigError(Fault(where, f"{file} is not a Python file", "a .py file"))
        module = importlib.util.module_from_spec(spec)
        before = sys.modules.get(name)
        sys.modules[name] = module
        try:
            with warnings.catch_warnings():  # remarks about somebody else's code help nobody here
                warnings.simplefilter("ignore", SyntaxWarning)
                warnings.simplefilter("ignore", DeprecationWarning)
                spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            _restore(name, before)
            raise _import_error(error, where, str(file)) from error
        self._registered.append(name)
        return module

    def _import(self, name: str, where: str, folder: Path) -> ModuleType:
        try:
            return importlib.import_module(name)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and error.name == name:
                files = [path.stem for path in folder.glob("*.py")]
                found = f"there is no file {folder / name}.py, and no module '{name}' is installed"
                raise ConfigError(Fault(where, found, do=did_you_mean(name, files))) from error
            raise _import_error(error, where, name) from error


def _restore(name: str, before: ModuleType | None) -> None:
    if before is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = before


def module_file(folder: Path, module: str) -> Path | None:
    """`a.b` -> `<folder>/a/b.py`, or `<folder>/a.b.py`, or, with leading dots, a file of a parent folder."""
    dotted = module.replace("...", "../../").replace("..", "../") if module.startswith("..") else None
    names = [f"{dotted}.py"] if dotted else [f"{module.replace('.', '/')}.py", f"{module}.py"]
    for name in names:
        file = folder / name
        if file.is_file():
            return file
    return None


def module_name_of(file: Path) -> str:
    """The name of a task module: `lm_eval.tasks.x.y` (or `lmms_eval...`) inside such a tree, else one of its path."""
    parts = file.with_suffix("").parts
    for start in range(len(parts) - 2, 0, -1):
        if parts[start - 1] in _PEERS and parts[start] == "tasks":
            return ".".join((parts[start - 1], "tasks", *parts[start + 1 :]))
    digest = hashlib.sha256(str(file.parent).encode()).hexdigest()[:10]
    return f"{_OWN}{digest}_{file.stem}"


def is_task_module(name: str) -> bool:
    """Whether a module of that name is one of a task's folder."""
    return name.startswith(_OWN) or any(name.startswith(f"{peer}.tasks.") for peer in _PEERS)


def _import_error(error: BaseException, where: str, what: str) -> ConfigError | MissingDependencyError:
    package = _lacking(error)
    if package is not None and package not in _PEERS and importlib.util.find_spec(package) is None:
        return MissingDependencyError(
            Fault(where, f"{what} needs the package '{package}', which is not installed",
                  do=f"Run: pip install {DISTRIBUTIONS.get(package, package)}")
        )  # fmt: skip
    line = _line_in(error, what)
    at = f"{what}:{line}" if line else what
    said = (str(error).strip() or "no message").splitlines()[0]
    do = _ANTLR if "antlr4" in said else ""
    return ConfigError(
        Fault(where, f"{at} fails when imported: {type(error).__name__}: {said}", "a module that imports", do)
    )


def _lacking(error: BaseException) -> str | None:
    """The package that an import asks for, also where the file went on without it until it needed its name."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return error.name.partition(".")[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = Path(trace.tb_frame.f_code.co_filename) if trace is not None else None
    if not isinstance(error, NameError) or file is None or not file.is_file():
        return None
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0):
            bound = {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
            if error.name in bound:
                whole = bound[error.name] if isinstance(node, ast.Import) else node.module or ""
                return whole.partition(".")[0] or None
    return None


_ANTLR: Final = (
    "Hydra, which the command line needs, holds antlr4 at 4.9: install what the task wants in an environment of its "
    "own, and run the task there from Python, which needs no Hydra."
)


def installing(error: BaseException) -> str:
    """How to install what a late import lacks, as a sentence to append; empty for any other error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    return f". Run: pip install {DISTRIBUTIONS.get(package, package)}"


def _line_in(error: BaseException, file: str) -> int | None:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


DISTRIBUTIONS: Final = {
    "sklearn": "scikit-learn", "yaml": "pyyaml", "bs4": "beautifulsoup4", "math_verify": "math-verify",
    "rouge_score": "rouge-score", "sentence_transformers": "sentence-transformers", "PIL": "pillow",
    "cv2": "opencv-python", "skimage": "scikit-image", "Levenshtein": "python-Levenshtein", "google": "google-genai",
    "dotenv": "python-dotenv", "azure": "azure-identity", "FlagEmbedding": "FlagEmbedding",
}  # fmt: skip
"""Packages that are installed under another name."""
