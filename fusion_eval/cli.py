"""The command line: Hydra composes, `check` looks at everything, `launch` does it; faults are told in one line."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fusion_eval import compose, config_path, usage
from fusion_eval.errors import ConfigError, Fault, FusionEvalError, OutputError
from fusion_eval.log import get_rankzero_logger, rank
from fusion_eval.report.files import write_text
from fusion_eval.version import __version__

STATUS = "status.json"
"""The file in a job's folder that says how it ended: `status` is running, completed or failed."""

_FULL_ERROR = "HYDRA_FULL_ERROR"

log = get_rankzero_logger(__name__)
_sweeps: list[tuple[Path, float]] = []
_failures: list[Exception] = []

compose.register()  # at import: a launcher's worker process imports `run`, then resolves the output folder


class SweepFolder(Callback):
    """Tells `main` where a sweep keeps its jobs, so that it can exit with their outcome."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Note the folder."""
        _sweeps.append((Path(config.hydra.sweep.dir), time.time()))


def main() -> None:
    """Run the command line and exit: 0 when all went well, 1 when something failed."""
    wanted = os.environ.get(_FULL_ERROR, "0")
    os.environ[_FULL_ERROR] = "1"  # Hydra then raises to us instead of printing
    _sweeps.clear()
    _failures.clear()
    try:
        _start(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("fusion_eval: interrupted")
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        _summarise_what_there_is()
        told = _told(error)
        if told is None or wanted == "1":
            raise
        sys.exit(f"fusion_eval: {told}")
    finally:
        os.environ[_FULL_ERROR] = wanted
    if unfinished := _unfinished_jobs():
        sys.exit(f"fusion_eval: {unfinished}")


def _summarise_what_there_is() -> None:
    """Summarise a sweep that an error ended; Hydra tells its callbacks only of sweeps without one."""
    from fusion_eval.report.sweep import show_summary

    for folder, _ in _sweeps:
        if any(folder.glob(f"*/{STATUS}")):
            show_summary(folder)


def _start(argv: list[str]) -> None:
    if argv == ["--version"]:
        print(f"fusion_eval {__version__}")
        return
    flags = usage.parsed(argv)
    if flags.help:
        print(usage.help_text(flags.config_dir))
        return
    compose.unavailable_folders_are_errors()
    config_path.register()
    sys.argv[1:] = usage.with_full_keys(argv, [field.name for field in fields(compose.Settings)])
    folder = str(config_path.config_dir())
    try:
        hydra.main(version_base="1.3", config_path=folder, config_name=config_path.ROOT)(run)()
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # told without a file's name
        if (error.filename is None and not is_full) or isinstance(error, compose.FOREIGN):
            raise
        fault = Fault(
            str(error.filename or "the run's folder"),
            str(error.strerror),
            "a folder that can be written",
            "Set output=<folder>.",
        )
        raise OutputError(fault) from error
    if _failures:
        raise _failures[0]


def run(cfg: DictConfig) -> float | None:
    """One job: the objective of its report, or None; its folder says how it ended.

    A failure is kept for `main` or, in a sweep, in the job's folder: were it raised, Hydra would drop later batches
    and skip the summary. Sweepers that optimise see it raised.
    """
    settings = HydraConfig.get()
    folder = Path(settings.runtime.output_dir)
    overrides: Any = OmegaConf.to_container(settings.overrides.task, resolve=False)
    _write_status(folder, {"status": "running", "overrides": overrides})
    try:
        objective = _check_and_launch(cfg, str(folder), overrides)
    except (Exception, SystemExit) as ended:
        error = _quit(ended) if isinstance(ended, SystemExit) else ended
        told = _told(error)
        message = told or f"{type(error).__name__}: {error}"
        try:
            _write_status(folder, {"status": "failed", "overrides": overrides, "error": message})
        except OutputError as unwritten:  # a full disk: what the run failed with matters more
            log.error("fusion_eval: %s", unwritten)
        if settings.mode != RunMode.MULTIRUN:
            _failures.append(error)
            return None
        log.error("fusion_eval: job %s failed: %s", settings.job.num, message, exc_info=error if told is None else None)
        if not settings.sweeper._target_.endswith("BasicSweeper"):
            raise error from error.__cause__
        return None
    _write_status(folder, {"status": "completed", "overrides": overrides, "objective": objective})
    return objective


def _quit(ended: SystemExit) -> FusionEvalError:
    error = FusionEvalError(Fault("the run", f"code that it called ended it with sys.exit({ended.code!r})"))
    error.__cause__ = ended
    return error


def _check_and_launch(cfg: DictConfig, folder: str, overrides: list[str]) -> float | None:
    for path in _shadowed():
        log.warning("%s is not used: the package has a file of that group and name. Rename yours.", path)
    here = HydraConfig.get().runtime.cwd  # where the command was given, also under hydra.job.chdir
    if here not in sys.path:
        sys.path.append(here)  # appended: a module beside ./config is found, and none of ours is shadowed
    if _is_tool(cfg):
        _use(cfg, Path(folder))
        return None
    from fusion_eval.program.launch import is_one_cpu_process, launch  # torch is loaded here, not by --help

    # Lightning takes longer to import than the default run needs, and one process does without it.
    _check(cfg, skip=("fabric",) if is_one_cpu_process(_raw(cfg, "fabric")) else ())
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    return launch(config, output_dir=folder, overrides=overrides)


def _is_tool(cfg: DictConfig) -> bool:
    """Whether the configured program only looks at files, so that neither models nor torch are needed."""
    from fusion_eval.build import locate
    from fusion_eval.program.tool import Tool

    target = "" if OmegaConf.is_missing(cfg, "program") else str(_raw(cfg, "program").get("_target_"))
    if not target.startswith("fusion_eval.program.") or target.count(".") < 3:
        return False
    try:
        kind = locate(target)
    except compose.FOREIGN:
        return False  # `check` says what is wrong
    return isinstance(kind, type) and issubclass(kind, Tool)


def _use(cfg: DictConfig, folder: Path) -> None:
    """Run a tool, print what it found, and fail where it found faults."""
    from fusion_eval.build import build, check

    faults = list(compose.root_faults(cfg))
    try:
        check(OmegaConf.masked_copy(cfg, ["program"]))
    except ConfigError as error:
        faults.extend(error.faults)
    if faults:
        raise ConfigError(*faults)
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    found = build(config["program"], _key_="program", config=config).run()
    print(found.text)
    write_text(folder / "findings.json", json.dumps(found.data, indent=1, ensure_ascii=False, default=str) + "\n")
    if found.faults:
        raise ConfigError(*found.faults)


def _raw(cfg: DictConfig, key: str) -> dict[str, Any]:
    node = OmegaConf.to_container(cfg, resolve=False)[key]  # type: ignore[index,call-overload]
    return node if isinstance(node, dict) else {key: node}


def _check(cfg: DictConfig, skip: Collection[str]) -> None:
    """Raise every fault of the configuration at once."""
    from fusion_eval.build import check

    faults = list(compose.root_faults(cfg))
    try:
        check(cfg, skip)
    except ConfigError as error:
        faults.extend(error.faults)
    if faults:
        raise ConfigError(*faults)


def _shadowed() -> list[Path]:
    return [path for _, folder in config_path.user_folders() for path in config_path.shadowed(folder)]


def _told(error: Exception) -> str | None:
    """A fault that the user can put right, in words; None for a bug of ours, which deserves its traceback."""
    if isinstance(error, FusionEvalError):
        return str(error)
    if isinstance(error, compose.FOREIGN) or compose.raised_by_hydra(error):
        return str(compose.explain(error))
    fault = compose.unreadable(error)
    return None if fault is None else str(fault)


def _write_status(folder: Path, status: dict[str, Any]) -> None:
    if rank() == 0:
        write_text(folder / STATUS, json.dumps(status, indent=2) + "\n")


def _unfinished_jobs() -> str:
    """How many jobs of the sweep did not complete, and where their status lies; empty when all did."""
    lines = []
    for folder, start in _sweeps:
        files = [file for file in folder.glob(f"*/{STATUS}") if file.stat().st_mtime >= start - 1]
        states = {file: json.loads(file.read_text(encoding="utf-8"))["status"] for file in files}
        failed = [str(file.parent) for file, state in states.items() if state != "completed"]
        if failed:
            lines.append(f"{len(failed)} of {len(states)} jobs did not complete: {', '.join(sorted(failed))}")
    return "; ".join(lines)


if __name__ == "__main__":
    main()
