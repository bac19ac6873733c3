"""Names of code tasks, patterns over them, and tasks from the user's own files."""

from __future__ import annotations

import fnmatch
import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed
from fusion_eval.harness.code import (
    code_to_text,
    contest,
    ds1000,
    explain,
    humaneval,
    humanevalpack,
    instruct,
    mbpp,
    mercury,
    multiple,
    pal,
    repair,
    robust,
    student,
    texts,
)
from fusion_eval.harness.code.compatibility import stand_ins
from fusion_eval.harness.code.task import Task

Factory = Callable[..., Task]


@functools.cache
def native_tasks() -> Mapping[str, Factory]:
    """The package's own tasks by name; calling one makes it."""
    found: dict[str, Factory] = {
        "humaneval": humaneval.HumanEval,
        "humaneval-unstripped": functools.partial(humaneval.HumanEval, strip_prompt=False),
        "humanevalplus": humaneval.HumanEvalPlus,
        "humanevalplus-unstripped": functools.partial(humaneval.HumanEvalPlus, strip_prompt=False),
        "mbpp": mbpp.Mbpp,
        "mbpp-sanitized": functools.partial(mbpp.Mbpp, sanitized=True),
        "mbppplus": mbpp.MbppPlus,
        "apps": contest.Apps,
        "code_contests": contest.CodeContests,
        "santacoder_fim": texts.FillIn,
        "starcoder_fim": texts.FillIn,
        "ds1000-all": ds1000.DS1000Task,
        "instruct-humaneval": instruct.InstructHumanEval,
        "instruct-humaneval-nocontext": functools.partial(instruct.InstructHumanEval, with_context=False),
        "instruct_wizard_humaneval": instruct.WizardHumanEval,
        "mercury": mercury.Mercury,
        "studenteval": student.StudentEval,
        "quixbugs": repair.QuixBugs,
        "python_bugs": repair.PythonBugs,
        "parity": repair.Parity,
        "codexglue_code_to_text-python-left": functools.partial(code_to_text.CodeToText, signature_only=True),
    }
    found |= {f"apps-{level}": functools.partial(contest.Apps, level) for level in contest.LEVELS if level != "all"}
    found |= {name: functools.partial(texts.TextTask, name) for name in texts.BENCHMARKS}
    for language in code_to_text.LANGUAGES:
        found[f"codexglue_code_to_text-{language}"] = functools.partial(code_to_text.CodeToText, language)
    for category in robust.CATEGORIES:
        for seeds in range(1, 11):
            name = f"perturbed-humaneval-{category}-num_seeds_{seeds}"
            found[name] = functools.partial(robust.PerturbedHumanEval, category, seeds)
    for library in ("Numpy", "Pandas", "Scipy", "Matplotlib", "Sklearn", "Tensorflow", "Pytorch"):
        found[f"ds1000-{library.lower()}"] = functools.partial(ds1000.DS1000Task, library)
    for name in [name for name in found if name.startswith("ds1000-")]:  # BigCode's names
        found[f"{name}-completion"] = found[name]
        found[f"{name}-insertion"] = functools.partial(found[name], insertion=True)
    for data, hard in (("gsm8k", False), ("gsmhard", True)):
        for how, vote in (("greedy", False), ("majority_voting", True)):
            found[f"pal-{data}-{how}"] = functools.partial(pal.Pal, hard, vote)
    for language in humanevalpack.LANGUAGES:
        for kind in humanevalpack.KINDS:
            found[f"humaneval{kind}-{language}"] = functools.partial(humanevalpack.HumanEvalPack, language, kind)
        found[f"humanevalexplaindescribe-{language}"] = functools.partial(explain.Describe, language)
    for language in multiple.LANGUAGES:
        found[f"multiple-{language}"] = functools.partial(multiple.MultiPLE, language)
        found[f"multiple-mbpp-{language}"] = functools.partial(multiple.MultiPLE, language, "mbpp")
    return found


def select(patterns: Iterable[str], known: Iterable[str]) -> list[str]:
    """The task names that the patterns mean, each once, in the patterns' order.

    Raises:
        ConfigError: patterns that mean none, each with the nearest names.
    """
    names = list(known)
    found: dict[str, None] = {}
    faults = []
    for pattern in patterns:
        hits = fnmatch.filter(names, pattern)
        found.update(dict.fromkeys(hits))
        if not hits:
            hint = did_you_mean(pattern, names) or f"There are {listed(sorted(names), 8)}."
            faults.append(Fault("tasks", f"no task '{pattern}'", "a known name or pattern", hint))
    if faults:
        raise ConfigError(*faults)
    return list(found)


def tasks_in(folder: str | Path) -> dict[str, Factory]:
    """The tasks that a user's Python files define.

    A file offers its `TASK_REGISTRY`, or what its `create_all_tasks()` returns, or else each task class under its name
    in lower case with dashes. Files are the user's own and run outside the sandbox.

    Raises:
        ConfigError: no such folder or file, or a file that cannot be imported.
    """
    place = Path(folder)
    files = [place] if place.is_file() else sorted(place.glob("*.py")) if place.is_dir() else []
    if not files:
        raise ConfigError(Fault("task_folder", f"{place}", "a Python file, or a folder with some"))
    found: dict[str, Factory] = {}
    for file in files:
        if not file.name.startswith("_"):
            found |= _tasks_of(file)
    return found


def _tasks_of(file: Path) -> dict[str, Factory]:
    spec = importlib.util.spec_from_file_location(f"fusion_eval_user_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        with stand_ins():
            spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(
            Fault(str(file), f"{type(error).__name__}: {error}", "a file that can be imported")
        ) from error
    named = getattr(module, "TASK_REGISTRY", None)
    if named is None and callable(getattr(module, "create_all_tasks", None)):
        named = module.create_all_tasks()
    if named is not None:
        return dict(named)
    own = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    return {_dashed(kind.__name__): kind for kind in own if issubclass(kind, Task) and not inspect.isabstract(kind)}


def _dashed(name: str) -> str:
    words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
    return words.strip("-")
