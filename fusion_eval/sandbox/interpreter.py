"""Which files a Python jail has to see."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python and its folders.

    Args:
        program: the interpreter itself, links resolved.
        prefix: the folder of its standard library and shared libraries.
        packages: folders of installed packages.
        jail: the folder of the code that runs inside.
    """

    program: str
    prefix: str
    packages: tuple[str, ...]
    jail: str

    def seen_by(self, place: Callable[[str], str]) -> Interpreter:
        """The same Python, its files being where `place` says."""
        packages = tuple(place(folder) for folder in self.packages)
        return Interpreter(place(self.program), place(self.prefix), packages, place(self.jail))

    @property
    def folders(self) -> tuple[str, ...]:
        """Every folder outside the system's own that has to be readable."""
        found: list[str] = []
        for folder in (self.prefix, *self.packages, self.jail):
            if not any(folder == seen or folder.startswith(seen + "/") for seen in (*found, "/usr")):
                found.append(folder)
        return tuple(found)


def current() -> Interpreter:
    """The running interpreter, as the jail will start it."""
    packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    return Interpreter(
        program=os.path.realpath(sys.executable),
        prefix=os.path.realpath(sys.base_prefix),
        packages=tuple(dict.fromkeys(os.path.realpath(path) for path in packages if os.path.isdir(path))),
        jail=os.path.join(os.path.dirname(os.path.realpath(__file__)), "jail"),
    )
