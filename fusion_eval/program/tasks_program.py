"""The program that lists, checks and shows task files without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, final

from fusion_eval.errors import ConfigError, Fault, did_you_mean
from fusion_eval.program.tool import Findings, Tool

ACTIONS: Final = ("list", "check", "show")
_FROM_TASKPOOL: Final = ("tasks", "include_path", "tasks_from", "data_root", "metadata", "num_fewshot", "gen_kwargs")


@final
class TasksProgram(Tool):
    """Looks at the task files of language and multimodal task pools.

    Args:
        action: list (names, kinds, data, files), check (what is wrong, found without a model) or show (what becomes of
            one document).
        tasks: names, globs, tags or groups; null for what the task pool evaluates, else for all.
        include_path: folders with task files; null for those of the task pool.
        tasks_from: installed packages with a folder of tasks, such as lm_eval or lmms_eval; null for the task pool's.
        data_root: folder laid out as the hub is; null for the task pool's.
        dialect: language or multimodal, where the files do not tell.
        doc: the document to show, from 0.
        model: names of a model, its own first, for settings that only some models get.
        num_fewshot: shots to show; null for each file's own number.
        run_python: check also imports the files' functions, in a process of its own; show does so in any case.
        config: the run's plain configuration, whose task pool gives what is null here.
    """

    def __init__(
        self,
        action: str = "list",
        tasks: str | Sequence[str] | None = None,
        *,
        include_path: str | Sequence[str] | None = None,
        tasks_from: str | Sequence[str] | None = None,
        data_root: str | None = None,
        dialect: str | None = None,
        doc: int = 0,
        model: str | Sequence[str] | None = None,
        num_fewshot: int | None = None,
        run_python: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if action not in ACTIONS:
            hint = did_you_mean(str(action), ACTIONS)
            raise ConfigError(Fault("program.action", repr(action), f"one of {', '.join(ACTIONS)}", hint))
        pool = _of_taskpool(config or {})
        self.action, self.dialect, self.doc, self.run_python = action, dialect, doc, run_python
        self.tasks = _listed(tasks if tasks is not None else pool.get("tasks"))
        self.include_path = _listed(include_path if include_path is not None else pool.get("include_path"))
        self.tasks_from = _listed(tasks_from if tasks_from is not None else pool.get("tasks_from"))
        self.data_root = data_root if data_root is not None else pool.get("data_root")
        self.num_fewshot = num_fewshot if num_fewshot is not None else pool.get("num_fewshot")
        self.model = _listed(model if model is not None else pool.get("model_name"))
        self.metadata, self.gen_kwargs = pool.get("metadata") or {}, pool.get("gen_kwargs") or {}

    def run(self) -> Findings:
        """What was found; faults of `check` end the command with status 1."""
        from fusion_eval.harness.look.shelf import shelves

        there = shelves(self.include_path, self.tasks_from, self.dialect, self.metadata)
        return {"list": self._list, "check": self._check, "show": self._show}[self.action](there)

    def _list(self, there: Sequence[Any]) -> Findings:
        from fusion_eval.harness.look.listing import listed_rows, rows_of

        rows = rows_of(there, self.tasks)
        return Findings(listed_rows(rows), [asdict(row) for row in rows])

    def _check(self, there: Sequence[Any]) -> Findings:
        from fusion_eval.harness.dataset import DataSource
        from fusion_eval.harness.look.checking import checked, summary
        from fusion_eval.harness.look.listing import rows_of

        rows = rows_of(there, self.tasks)
        data = None if self.data_root is None else DataSource(Path(self.data_root).expanduser())
        found = checked(there, rows, run_python=self.run_python, data=data)
        named = {name: [asdict(fault) for fault in faults] for name, faults in found.by_name.items()}
        bad = len(found.by_name)
        faults = (Fault("tasks", f"{bad} of {found.checked} have faults, see above"),) if bad else ()
        return Findings(summary(found), {"checked": found.checked, "faults": named}, faults)

    def _show(self, there: Sequence[Any]) -> Findings:
        from fusion_eval.harness.dataset import DataSource
        from fusion_eval.harness.look.listing import rows_of
        from fusion_eval.harness.look.showing import Shown, shown

        if not self.tasks:
            raise ConfigError(Fault("tasks", "none is named", "the tasks to show", "Set tasks=[name]."))
        rows = rows_of(there, self.tasks)
        data = DataSource(Path(self.data_root).expanduser() if self.data_root else None)
        wanted = Shown(self.doc, tuple(self.model), self.num_fewshot, self.gen_kwargs, data)
        parts = []
        for shelf in there:
            names = [r.name for r in rows if r.dialect == shelf.dialect and r.kind not in ("broken", "ignored")]
            if names:
                parts.append(shown(shelf, names, wanted))
        return Findings("\n\n".join(parts), parts)


def _of_taskpool(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a task pool of task files is told; nothing of other pools, and nothing that is not set."""
    node = config.get("taskpool")
    if not isinstance(node, Mapping) or "tasks_from" not in node:
        return {}
    names = (*_FROM_TASKPOOL, "model_name")
    return {name: node[name] for name in names if node.get(name) not in (None, "???")}


def _listed(value: Any) -> list[str]:
    if value is None:
        return []
    items = value.split(",") if isinstance(value, str) else list(value)
    return [str(item).strip() for item in items if not isinstance(item, Mapping)]
