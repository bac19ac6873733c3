"""A study as a program: whole in one process, or one cell per job of a Hydra multirun."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed
from fusion_eval.evaluation.devices import Devices
from fusion_eval.mixins import BaseYAMLSerializable
from fusion_eval.program.study.cells import Cell
from fusion_eval.program.study.study import Study, StudyResult
from fusion_eval.report.receipt import receipt
from fusion_eval.report.report import Report


class StudyProgram(BaseYAMLSerializable):
    """Train, evaluate and compare what a study names.

    With `cell`, only that cell is trained, so that a sweep over cells is the study's training on any launcher:
    `fusion_eval -m program=study program.cell.method=average,dare program.cell.seed=0,1,2`, then `fusion_eval
    program=study`.

    Args:
        study: a node that builds a `Study`.
        cell: `method/seed`, or the two by name; None, or two None, for the whole study.
        output: folder of the report.
        config: the run's plain configuration, for the report.
        overrides: the run's command-line overrides, for the report.
    """

    _config_key = "program"

    def __init__(
        self,
        study: Any,
        *,
        cell: str | Mapping[str, Any] | None = None,
        output: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        overrides: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.study, self.cell = study, cell_name(cell)
        self.output = None if output is None else Path(output)
        self.settings, self.overrides = dict(config or {}), tuple(overrides)
        self.devices = Devices()

    def run(self) -> Report:
        """Do the work and write the report.

        Raises:
            FusionEvalError: a study that cannot be made, a cell that it has not, cells that failed.
        """
        from fusion_eval.build import build

        start = time.perf_counter()
        study = build(self.study, _key_="program.study")
        if not isinstance(study, Study):
            raise ConfigError(Fault("program.study", f"a {type(study).__name__}", "a fusion_eval.Study"))
        chosen = None if self.cell is None else [self._cell(study)]
        found = study.run(only=chosen)
        notes = [f"trained {chosen[0]}"] if chosen else told(found)
        circumstances = receipt(self.settings, self.overrides, {"device": str(self.devices.device)})
        report = Report("complete", (), circumstances, {}, {"total": time.perf_counter() - start}, tuple(notes))
        if self.output is not None:
            report.write(self.output)
        return report

    def _cell(self, study: Study) -> Cell:
        known = {f"{cell.method}/{cell.seed}": cell for cell in study.cells}
        if self.cell not in known:
            hint = did_you_mean(str(self.cell), known)
            raise ConfigError(Fault("program.cell", f"'{self.cell}'", f"one of {listed(list(known), 12)}", hint))
        return known[str(self.cell)]


def cell_name(given: str | Mapping[str, Any] | None) -> str | None:
    """`method/seed`, or None for the whole study.

    Raises:
        ConfigError: one of the two without the other, or another key.
    """
    if given is None or isinstance(given, str):
        return given
    known = {"method", "seed"}
    method, seed = given.get("method"), given.get("seed")
    if set(given) - known or (method is None) != (seed is None):
        found = ", ".join(f"{key}={value}" for key, value in given.items())
        raise ConfigError(Fault("program.cell", found, "method and seed, or neither"))
    return None if method is None else f"{method}/{seed}"


def told(found: StudyResult) -> list[str]:
    """Every comparison in a sentence, the warnings, and the ranks over tasks."""
    from fusion_eval.program.compare.program import ranks_line

    lines = []
    for task, result in found.tasks.items():
        lines += [f"{task}: {comparison}" for comparison in result.comparisons]
        lines += [f"{task}: warning: {text}" for text in result.warnings]
    return lines if found.over_tasks is None else [*lines, ranks_line(found.over_tasks)]
