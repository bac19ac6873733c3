"""Imports the functions of task files in a process of their own and says which fail, and why."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from fusion_eval.errors import Fault, FusionEvalError
from fusion_eval.harness.function import ModuleSpace, module_file
from fusion_eval.harness.yaml_file import FunctionRef

TIMEOUT = 600.0


def tried(
    refs: Sequence[FunctionRef], roots: Iterable[Path], timeout: float = TIMEOUT
) -> dict[FunctionRef, list[Fault]]:
    """Faults of each reference that cannot be imported; a file that ends its process is a fault like others.

    Args:
        refs: what to import.
        roots: folders whose Python may run.
        timeout: seconds for all; what is not reached by then is a fault.
    """
    found: dict[FunctionRef, list[Fault]] = {}
    left = list(dict.fromkeys(refs))
    while left:
        done, why = _one_process(left, [str(root) for root in roots], timeout)
        for ref, faults in zip(left, done, strict=False):
            if faults:
                found[ref] = [Fault(**fault) for fault in faults]
        if len(done) == len(left):
            break
        bad = left[len(done)]
        found[bad] = [Fault(f"{bad.file}:{bad.line}", f"importing {bad.target} {why}", "a module that imports")]
        left = left[len(done) + 1 :]
    return found


def _one_process(
    refs: Sequence[FunctionRef], roots: list[str], timeout: float
) -> tuple[list[list[dict[str, str]]], str]:
    """What a process said about the references that it reached, and how it ended."""
    asked = {"roots": roots, "refs": [[ref.target, str(ref.file), ref.line] for ref in refs]}
    command = [sys.executable, "-m", "fusion_eval.harness.try_imports"]
    try:
        ended = subprocess.run(command, input=json.dumps(asked).encode(), capture_output=True, timeout=timeout)
        output, why = ended.stdout, f"ended the process with status {ended.returncode}"
    except subprocess.TimeoutExpired as expired:
        output, why = expired.stdout or b"", f"takes more than {timeout:.0f} s"
    lines = output.splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")], why


def main(asked: IO[str], told: IO[str]) -> None:
    """Import what is asked for, one line of JSON per reference: its faults."""
    from fusion_eval.harness.multimodal.peer import multimodal_names

    request = json.load(asked)
    roots = [Path(root) for root in request["roots"]]
    space, known = ModuleSpace(roots), dict[Path, list[dict[str, str]]]()
    with contextlib.redirect_stdout(sys.stderr), multimodal_names(roots):
        for target, file, line in request["refs"]:
            told.write(json.dumps(_faults(space, FunctionRef(target, Path(file), line), known)) + "\n")
            told.flush()


def _faults(space: ModuleSpace, ref: FunctionRef, known: dict[Path, list[dict[str, str]]]) -> list[dict[str, str]]:
    """Faults of one reference; a file that failed is not run again."""
    file = module_file(ref.file.parent, ref.target.rpartition(".")[0])
    if file is not None and file in known:
        return known[file]
    faults: list[dict[str, Any]] = []
    try:
        space.function(ref)
    except FusionEvalError as error:
        faults = [asdict(fault) for fault in error.faults]
        if file is not None and not any("has no '" in fault["found"] for fault in faults):
            known[file] = faults
    return faults


if __name__ == "__main__":
    with open(sys.stdout.fileno(), "w", closefd=False) as own:
        main(sys.stdin, own)
