"""The context inside which `import lmms_eval...` gives this package's own implementations."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from fusion_eval.harness.judge.active import judging
from fusion_eval.harness.judge.base import Judge
from fusion_eval.harness.multimodal.peer.names import MODULES, OTHERS, PEER
from fusion_eval.harness.peer_names import NameFinder, peer_names, serving


@contextmanager
def multimodal_names(roots: Iterable[Path] = (), judge: Judge | None = None) -> Iterator[None]:
    """Inside, `import lmms_eval...` gives this package's own implementations; afterwards everything is as before.

    Inside, too, the clients of `openai` and posts of `requests` to a chat server ask the judge of the run, and HF_HOME
    and OPENAI_API_KEY are set, since tasks fail without them. Contexts may be nested: modules of tasks that were
    imported outside are not seen inside, so that each run of a task can have fresh ones.

    Args:
        roots: folders the user named; `lmms_eval.tasks.x.y` is looked for below them.
        judge: what code of tasks asks; None for the one that is set already, if any.
    """
    folders = list(roots)
    with ExitStack() as stack:
        stack.enter_context(judging(judge))
        stack.enter_context(_paths_as_they_were())
        stack.enter_context(peer_names(folders))
        stack.enter_context(serving(NameFinder(PEER, folders, MODULES, OTHERS)))
        stack.enter_context(_environment_filled())
        stack.enter_context(_judged_clients())
        yield


@contextmanager
def _environment_filled() -> Iterator[None]:
    """Variables that many tasks read without a default: the folder of the hub's cache, and a key that nobody needs."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    wanted = {"HF_HOME": os.path.join(cache, "huggingface"), "OPENAI_API_KEY": "the-judge-needs-none"}
    missing = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextmanager
def _paths_as_they_were() -> Iterator[None]:
    """Take back what tasks put into `sys.path`, and the modules that came from there."""
    paths, modules = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        before = {Path(path).resolve() for path in paths if path}
        added = {Path(path).resolve() for path in sys.path if path not in paths and path}
        added = {folder for folder in added if not any(known.is_relative_to(folder) for known in before)}
        sys.path[:] = paths
        for name in [n for n in sys.modules if n not in modules] if added else ():
            file = getattr(sys.modules[name], "__file__", None)
            if file and any(Path(file).resolve().is_relative_to(folder) for folder in added):
                del sys.modules[name]


@contextmanager
def _judged_clients() -> Iterator[None]:
    """Swap clients of installed packages for ours, now or when they are imported."""
    swapper = _Swapper()
    sys.meta_path.insert(0, swapper)
    try:
        for name in SWAPS:
            if (module := sys.modules.get(name)) is not None:
                swapper.swap(module)
        yield
    finally:
        sys.meta_path.remove(swapper)
        swapper.restore()


def _clients(module: ModuleType) -> Mapping[str, Any]:
    from fusion_eval.harness.multimodal.peer.openai_names import CLIENTS

    return CLIENTS


def _posts(module: ModuleType) -> Mapping[str, Any]:
    from fusion_eval.harness.multimodal.peer.stand_ins import chat_post

    real: Callable[..., Any] = module.post

    def post(url: Any, data: Any = None, json: Any = None, **kwargs: Any) -> Any:
        response = chat_post(url, data, json)
        return real(url, data=data, json=json, **kwargs) if response is None else response

    return {"post": post}


SWAPS: Final[Mapping[str, Callable[[ModuleType], Mapping[str, Any]]]] = {"openai": _clients, "requests": _posts}
"""Installed packages whose attributes are swapped, and for what."""


class _Swapper(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._before: list[tuple[ModuleType, str, Any]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The installed module, swapped once it is there."""
        if fullname not in SWAPS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenSwapped(spec.loader, self)
        return spec

    def swap(self, module: ModuleType) -> None:
        """Swap, and remember what was there."""
        for name, value in SWAPS[module.__name__](module).items():
            if name in vars(module):
                self._before.append((module, name, vars(module)[name]))
                setattr(module, name, value)

    def restore(self) -> None:
        """Put everything back."""
        for module, name, value in reversed(self._before):
            setattr(module, name, value)
        self._before.clear()


class _ThenSwapped(importlib.abc.Loader):
    """A module's own loader, and the swap after it."""

    def __init__(self, loader: Any, swapper: _Swapper) -> None:
        self._loader, self._swapper = loader, swapper

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module under its own loader, then swap."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._swapper.swap(module)
