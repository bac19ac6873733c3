"""Runs in the test's own process, composed as the command line would compose them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from fusion_eval.build import check
from fusion_eval.compose import register
from fusion_eval.config_path import config_dir
from fusion_eval.program.launch import RunPlan, run_plan
from fusion_eval.report.report import Report


def composed(*overrides: str) -> dict[str, Any]:
    """The plain configuration of a command line, less Hydra's own part."""
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        config = compose("fusion_eval", list(overrides))
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def run(output: Path, *overrides: str, **changes: Any) -> Report:
    """The report of a command line; `changes` replace whole groups of the configuration by plain nodes."""
    config = {**composed(*overrides, "progress=false"), **changes}
    check(config)
    report = run_plan(RunPlan(config, str(output), overrides))
    assert report is not None
    return report
