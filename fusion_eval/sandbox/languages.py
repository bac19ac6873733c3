"""Languages besides Python: how a source text becomes a running program, and when its tests have passed."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from fusion_eval.errors import Fault, SandboxError, did_you_mean


@dataclass(frozen=True, slots=True)
class Language:
    """One language.

    Args:
        name: as in a `Program`.
        source: name of the source file.
        tools: programs that must be installed; the first is looked for when asking whether the language is available.
        compile: arguments of the compiler, () for none; `{source}` is the file, `{class}` Java's main class.
        run: arguments that start the program.
        quiet: whether anything on standard error means that a test failed (assertions that only print).
        package: the Debian package that brings the tools.
        proc: whether it needs /proc, which only bubblewrap can show it without the processes of others.
    """

    name: str
    source: str
    tools: tuple[str, ...]
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()
    quiet: bool = False
    package: str = ""
    proc: bool = False


_JAVA_VM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# Recent compilers bring a linker of their own, which gcc looks for beside them; the system's needs no such search.
_RUST = ("rustc", "-A", "warnings", "-C", "link-arg=-fuse-ld=bfd", "{source}", "-o", "main")

_ALL = (
    Language(
        "js", "main.js", ("node",), ("node", "--max-old-space-size=512", "{source}"), quiet=True, package="nodejs"
    ),
    Language(
        "cpp",
        "main.cpp",
        ("g++",),
        ("./main",),
        ("g++", "-std=c++17", "{source}", "-o", "main", "-lcrypto"),
        package="g++ libssl-dev",
    ),
    Language("c", "main.c", ("gcc",), ("./main",), ("gcc", "-std=c17", "{source}", "-o", "main", "-lm"), package="gcc"),
    Language(
        "java",
        "{class}.java",
        ("java", "javac"),
        ("java", *_JAVA_VM, "-ea", "-cp", ".", "{class}"),
        ("javac", *(f"-J{word}" for word in _JAVA_VM), "-d", ".", "{source}"),
        package="default-jdk-headless",
    ),
    Language("rs", "main.rs", ("rustc",), ("./main",), _RUST, package="rustc"),
    Language("rs-test", "main.rs", ("rustc",), ("./main", "--test-threads=1"), (*_RUST, "--test"), package="rustc"),
    Language(
        "go", "main_test.go", ("go",), ("./main",), ("go", "test", "-c", "-o", "main", "{source}"), package="golang"
    ),
    Language("sh", "main.sh", ("bash",), ("bash", "{source}"), package="bash"),
    Language("pl", "main.pl", ("perl",), ("perl", "{source}"), package="perl"),
    Language("rb", "main.rb", ("ruby",), ("ruby", "{source}"), package="ruby"),
    Language("php", "main.php", ("php",), ("php", "{source}"), package="php-cli"),
    Language("lua", "main.lua", ("lua",), ("lua", "{source}"), package="lua5.4"),
    Language("r", "main.R", ("Rscript",), ("Rscript", "{source}"), package="r-base-core"),
    Language("ts", "main.ts", ("tsc", "node"), ("node", "main.js"), ("tsc", "{source}"), True, "node-typescript"),
    Language(
        "cs",
        "main.cs",
        ("mcs", "mono"),
        ("/usr/bin/env", "MONO_TRACE_LISTENER=Console.Error", "mono", "main.exe"),
        ("mcs", "-d:DEBUG", "-r:System.Numerics.dll", "-out:main.exe", "{source}"),
        quiet=True,
        package="mono-mcs mono-runtime",
        proc=True,
    ),
    Language("d", "main.d", ("ldc2",), ("./main",), ("ldc2", "-unittest", "-of=main", "{source}"), package="ldc"),
    Language("rkt", "main.rkt", ("racket",), ("racket", "{source}"), quiet=True, package="racket"),
    Language("ml", "main.ml", ("ocaml",), ("ocaml", "{source}"), package="ocaml-nox"),
    Language("elixir", "main.exs", ("elixir",), ("elixir", "{source}"), package="elixir"),
    Language(
        "scala",
        "main.scala",
        ("scalac", "scala"),
        ("scala", "-cp", ".", "Problem"),
        ("scalac", "-d", ".", "{source}"),
        package="scala",
    ),
)
_SETTINGS = (
    "/etc/mono",
    "/etc/racket",
    "/etc/ldc2.conf",
    *(f"/etc/java-{version}-openjdk" for version in range(8, 30)),
)
LANGUAGES: dict[str, Language] = {language.name: language for language in _ALL}


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Where a language's tools are on this machine.

    Args:
        programs: tool -> path, links resolved.
        folders: folders and files outside the system's own that the tools need.
    """

    programs: dict[str, str]
    folders: tuple[str, ...]


def find_language(name: str) -> Language:
    """The language of that name; raises SandboxError with the nearest names."""
    if name not in LANGUAGES:
        raise SandboxError(
            Fault("language", f"'{name}'", f"python or one of {', '.join(LANGUAGES)}", did_you_mean(name, LANGUAGES))
        )
    return LANGUAGES[name]


def missing_tools(name: str) -> tuple[str, ...]:
    """The tools of a language that this machine lacks, () when it can be run."""
    if name == "python":
        return ()
    return tuple(tool for tool in find_language(name).tools if shutil.which(tool) is None)


@functools.cache
def toolchain(name: str) -> Toolchain:
    """The resolved tools of an available language."""
    programs, folders = {}, []
    for tool in find_language(name).tools:
        path = shutil.which(tool)
        assert path is not None
        real = os.path.realpath(path)
        if tool == "rustc" and not real.startswith("/usr/"):
            root = _rust_root(path)
            real = os.path.join(root, "bin", "rustc")
            folders.append(root)
        elif not real.startswith(("/usr/", "/bin/")):
            folders.append(os.path.dirname(os.path.dirname(real)))
        programs[tool] = real if tool in ("rustc", "java", "javac") else path
    folders += filter(os.path.exists, _SETTINGS)
    return Toolchain(programs, tuple(dict.fromkeys(folders)))


def _rust_root(path: str) -> str:
    """The toolchain behind rustup's own stand-in for the compiler."""
    return subprocess.run(
        [path, "--print", "sysroot"], capture_output=True, text=True, check=True, timeout=300
    ).stdout.strip()


@dataclass(frozen=True, slots=True)
class Build:
    """What to do with one source text: its file's name, and the command lines that compile (or not) and run it."""

    source: str
    compile: list[str]
    run: list[str]


def build(name: str, text: str) -> Build:
    """The steps for a program in an available language."""
    language, tools = find_language(name), toolchain(name).programs
    main = _main_class(text)
    source = language.source.replace("{class}", main)

    def resolved(words: tuple[str, ...]) -> list[str]:
        return [tools.get(word, word.replace("{source}", source).replace("{class}", main)) for word in words]

    return Build(source, resolved(language.compile), resolved(language.run))


def _main_class(text: str) -> str:
    """The Java class that the entry point stands in: the last one named before it."""
    before = text.partition("static void main")[0]
    public = re.findall(r"\bpublic\s+(?:final\s+)?class\s+(\w+)", text)
    named = re.findall(r"\bclass\s+(\w+)", before)
    return str((public or named or ["Main"])[-1])
