"""From a plain configuration to a finished run, in one process or in many."""

from __future__ import annotations

import logging
import os
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fusion_eval.build import build
from fusion_eval.errors import ConfigError, Fault, FusionEvalError
from fusion_eval.evaluation.devices import Devices
from fusion_eval.method.base_method import Method
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.program.base_program import BaseProgram
from fusion_eval.report.report import Report
from fusion_eval.taskpool.base_pool import BaseTaskPool

if TYPE_CHECKING:
    from lightning.fabric import Fabric

_SETTINGS = ("seed", "limit", "fast_dev_run", "dry_run", "save", "progress")
_ONE_PROCESS = {
    "_target_": ("lightning.fabric.Fabric",),
    "accelerator": ("auto", "cpu", None),
    "devices": (1, "1", "auto", None),
    "strategy": ("auto", None),
    "num_nodes": (1, None),
    "precision": (None, "32-true", 32, "32"),
}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All that a worker process needs: plain data.

    Args:
        config: the resolved configuration.
        output: the report's folder.
        overrides: the command line's overrides.
        errors: folder in which worker processes leave what they failed with, or None.
    """

    config: Mapping[str, Any]
    output: str
    overrides: tuple[str, ...] = ()
    errors: str | None = None


def launch(config: Mapping[str, Any], output_dir: str, overrides: Sequence[str] = ()) -> float | None:
    """Run the configured program and return the objective, where one is named.

    Args:
        config: the resolved configuration, of plain dictionaries, lists and scalars.
        output_dir: folder of the report.
        overrides: the command line's overrides, for the report.

    Raises:
        FusionEvalError: what the user can put right.
    """
    plan = RunPlan(config, output_dir, tuple(overrides))
    report = run_plan(plan)
    if report is None:
        return None
    report.show(Path(output_dir))
    objective = config.get("objective")
    return report.objective(objective) if objective and report.status == "complete" else None


def run_plan(plan: RunPlan) -> Report | None:
    """The run's report; None on the other processes of an outside launcher."""
    node = dict(plan.config.get("fabric") or {})
    if is_one_cpu_process(node):
        return work(plan, None)
    fabric = build_fabric(node)
    with tempfile.TemporaryDirectory(prefix="fusion_eval_") as errors:
        try:
            sent: bytes | None = fabric.launch(partial(worker, plan=replace(plan, errors=errors)))
        except Exception as failure:  # a launcher wraps what its workers raise in errors of its own
            error = first_error(Path(errors))
            if error is None:
                raise
            raise error from failure
    report: Report | None = None if sent is None else pickle.loads(sent)  # from our own worker
    return report


def is_one_cpu_process(node: Mapping[str, Any]) -> bool:
    """Whether Fabric would have nothing to do: one process, the CPU, full precision.

    Then Lightning, which takes longer to import than small merges take to run, is not loaded.
    """
    if any(key not in _ONE_PROCESS or node[key] not in _ONE_PROCESS[key] for key in node):
        return False
    if started_from_outside():
        return False
    return node.get("accelerator") == "cpu" or not (torch.cuda.is_available() or torch.backends.mps.is_available())


def started_from_outside() -> bool:
    """Whether torchrun or SLURM started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("SLURM_NTASKS", "1")) > 1


def build_fabric(node: dict[str, Any]) -> Fabric:
    """The configured Fabric, with a strategy that runs this process's function instead of its command line again.

    Raises:
        ConfigError: Lightning refuses the combination.
    """
    several = node.get("devices") not in (1, "1", None) or node.get("num_nodes", 1) != 1
    if several and not started_from_outside() and node.get("strategy", "auto") in ("auto", "ddp"):
        node = {**node, "strategy": "ddp_spawn"}
    quieten_lightning()
    try:
        fabric: Fabric = build(node, _key_="fabric")
    except ConfigError as error:
        do = "Use fabric=cpu, or set fabric.accelerator, devices and strategy to what this machine has."
        raise ConfigError(*(replace(fault, do=do) for fault in error.faults)) from error
    return fabric


def worker(fabric: Fabric, plan: RunPlan) -> bytes | None:
    """One process of the run: on rank zero the report without items, elsewhere None.

    The report travels pickled, since Fabric's launchers refuse frozen dataclasses.
    """
    quieten_lightning()
    try:
        report = work(plan, fabric)
    except FusionEvalError as error:
        if plan.errors is not None and Path(plan.errors).is_dir():
            (Path(plan.errors) / f"{fabric.global_rank}.pkl").write_bytes(pickle.dumps(error))
        raise
    return pickle.dumps(report.without_items()) if fabric.is_global_zero else None


def quieten_lightning() -> None:
    """Leave out Lightning's lines on how processes were started; its import sets its own level."""
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)


def first_error(folder: Path) -> FusionEvalError | None:
    """What the lowest rank failed with."""
    for path in sorted(folder.glob("*.pkl"), key=lambda path: int(path.stem)):
        error: FusionEvalError = pickle.loads(path.read_bytes())  # written by our own workers, in our own folder
        return error
    return None


def work(plan: RunPlan, fabric: Fabric | None) -> Report:
    """Build the program and run it in this process."""
    seed_everything(int(plan.config.get("seed") or 0))
    program = build_program(plan)
    if fabric is not None:
        program.fabric = fabric
        program.devices = Devices.of(fabric)
        program.output = Path(program.devices.broadcast(str(program.output)))
    return program.run()


def build_program(plan: RunPlan) -> BaseProgram:
    """The program of a configuration, with its components.

    Raises:
        ConfigError: a component cannot be built.
    """
    config = plan.config
    kinds = {"method": Method, "modelpool": BaseModelPool, "taskpool": BaseTaskPool}
    taken = _keywords(config["program"])  # what a program has no use for is not built
    components = {key: build(config[key], _key_=key) for key in kinds if key in taken and config.get(key) is not None}
    if faults := [
        Fault(key, f"a {type(part).__name__}", f"a {kinds[key].__name__}", f"Derive from {_path(kinds[key])}.")
        for key, part in components.items()
        if not isinstance(part, kinds[key])
    ]:
        raise ConfigError(*faults)
    settings = {key: config[key] for key in _SETTINGS if config.get(key) is not None}
    node = config["program"]
    return build(  # type: ignore[no-any-return]
        node,
        _key_="program",
        **accepted(node, {**components, **settings}),
        output=plan.output,
        config=config,
        overrides=plan.overrides,
    )


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _keywords(node: Mapping[str, Any]) -> set[str]:
    """What the program of a node takes."""
    from fusion_eval.build import locate
    from fusion_eval.component import accepted_keywords

    return accepted_keywords(locate(node["_target_"]))


def accepted(node: Mapping[str, Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the offered components and settings that the program takes; settings it cannot use must be unset."""
    known = _keywords(node)
    faults = [
        Fault(key, f"set to {value!r}", "unset", f"{node['_target_']} has no use for it.")
        for key, value in offered.items()
        if key in _SETTINGS and key not in known and key != "progress" and value not in (False, 0)
    ]
    if faults:
        raise ConfigError(*faults)
    return {key: value for key, value in offered.items() if key in known}


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
