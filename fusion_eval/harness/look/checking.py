"""Whether tasks hold, found without a model: keys, functions, imports, data."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness import peer_names
from fusion_eval.harness.dataset import DataRequest, DataSource
from fusion_eval.harness.look.listing import Row
from fusion_eval.harness.look.shelf import Shelf
from fusion_eval.harness.multimodal.peer import names as multimodal_peer
from fusion_eval.harness.plan import TaskPlan
from fusion_eval.harness.source import SourceReader
from fusion_eval.harness.try_imports import tried
from fusion_eval.harness.validate import Findings, check
from fusion_eval.harness.yaml_file import FunctionRef, function_refs

_PACKAGE = re.compile(r"the package '([^']+)'")


def checked(
    shelves: Iterable[Shelf], rows: Sequence[Row], *, run_python: bool = False, data: DataSource | None = None,
    everything: bool = False,
) -> Findings:  # fmt: skip
    """What is wrong with the tasks and groups of some rows.

    Args:
        shelves: where they stand.
        rows: which to look at.
        run_python: import their functions too, in a process of their own.
        data: where data sets lie; those that are not there are faults. None leaves data alone.
        everything: files that are no task, since they are broken, are faults as well.
    """
    importlib.import_module("fusion_eval.harness.multimodal.task")  # makes its metrics known
    whole = Findings()
    for shelf in shelves:
        chosen = [row for row in rows if row.dialect == shelf.dialect]
        names = list(dict.fromkeys(row.name for row in chosen if row.kind not in ("tag", "ignored", "broken")))
        found = check(shelf.catalog, names)
        _check_functions(shelf, found, run_python)
        if data is not None:
            for plan in found.plans.values():
                found.add(plan.name, _data_faults(plan, data))
        for row in chosen:
            if row.kind == "broken" and (everything or row.name not in names):
                found.add(row.name, [Fault(row.file, row.why)])
            if row.kind == "ignored":
                found.notes.append(Fault(row.file, f"is ignored: {row.why}"))
        _merge(whole, found)
    return whole


def _check_functions(shelf: Shelf, found: Findings, run_python: bool) -> None:
    supplied = {peer_names.PEER: peer_names.MODULES, multimodal_peer.PEER: multimodal_peer.MODULES}
    stand_ins = {"evaluate", *(multimodal_peer.OTHERS if shelf.dialect == "multimodal" else ())}
    reader = SourceReader(shelf.roots, supplied, stand_ins)
    refs = {name: function_refs(dict(plan.values)) for name, plan in found.plans.items()}
    for name in found.by_name.keys() - refs.keys():
        refs[name] = _refs_of_file(shelf, name)
    for name, own in refs.items():
        found.add(name, [fault for ref in own for fault in reader.faults(ref)])
    if not run_python:
        return
    told = {name for name, faults in found.by_name.items() if faults}
    left: list[FunctionRef] = [ref for name, own in refs.items() if name not in told for ref in own]
    run = tried(left, shelf.roots)
    for name, own in refs.items():
        if name not in told:
            found.add(name, [fault for ref in own for fault in run.get(ref, ())])


def _refs_of_file(shelf: Shelf, name: str) -> list[FunctionRef]:
    """The functions of a task or group whose keys have faults, so that all faults are told at once."""
    entry = shelf.catalog.index.entries.get(name)
    if entry is None or entry.path is None:
        return []
    try:
        return function_refs(shelf.catalog.read(entry.path).values)
    except ConfigError:
        return []


def _data_faults(plan: TaskPlan, data: DataSource) -> list[Fault]:
    spec = plan.spec
    if spec.dataset_path is None or spec.custom_dataset is not None or spec.class_ is not None:
        return []
    folder = spec.source.parent if spec.source else None
    missing = data.missing(DataRequest(spec.dataset_path, spec.dataset_name, spec.dataset_kwargs, folder))
    return (
        [] if missing is None else [Fault(f"{spec.source} (dataset_path)", missing.found, missing.expected, missing.do)]
    )


def _merge(whole: Findings, part: Findings) -> None:
    whole.faults = list(dict.fromkeys([*whole.faults, *part.faults]))
    whole.notes = list(dict.fromkeys([*whole.notes, *part.notes]))
    whole.checked += part.checked
    whole.plans.update(part.plans)
    whole.by_name.update({name: list(dict.fromkeys(faults)) for name, faults in part.by_name.items()})


def summary(found: Findings) -> str:
    """Faults and notes by task, packages that are lacking, and how many tasks hold."""
    lines = [f"note: {note}" for note in found.notes]
    for name, faults in found.by_name.items():
        lines += [f"{name}: {fault}" for fault in faults]
    packages = Counter(
        package
        for faults in found.by_name.values()
        for package in {p for f in faults for p in _PACKAGE.findall(f.found)}
    )
    if packages:
        lacking = ", ".join(f"{package} ({count})" for package, count in packages.most_common())
        lines.append(f"packages that tasks lack (how many tasks): {lacking}")
    bad = len(found.by_name)
    lines.append(f"{found.checked:,} tasks and groups looked at: {found.checked - bad:,} hold, {bad:,} do not")
    return "\n".join(lines)
