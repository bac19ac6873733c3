"""Every YAML under config/ composes, and passes the check; the examples of --help compose too."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterator
from dataclasses import fields

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from fusion_eval import cli, config_path
from fusion_eval.build import check
from fusion_eval.compose import Settings
from fusion_eval.errors import ConfigError, Fault
from fusion_eval.usage import with_full_keys

CONFIG = config_path.config_dir()
CHOSEN = ("program", "method", "modelpool", "taskpool", "fabric")
OPTIONS = sorted(
    (group, file.relative_to(CONFIG / group).with_suffix("").as_posix())
    for group in (*CHOSEN, "experiment")
    for file in (CONFIG / group).rglob("*.yaml")
    if not file.name.startswith("_")
)
SHARED = sorted(
    file.relative_to(CONFIG).with_suffix("").as_posix() for file in (CONFIG / "dataset").rglob("*.yaml")
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _hydra() -> Iterator[None]:
    assert cli.STATUS  # importing the command line registers schema and resolver
    with initialize_config_dir(str(CONFIG), version_base="1.3"):
        yield


def composed(*overrides: str) -> DictConfig:
    return compose("fusion_eval", overrides=list(overrides))


def to_be_given(cfg: DictConfig) -> list[str]:
    """The keys that a template leaves to the user."""
    return sorted(OmegaConf.missing_keys(cfg))


def faults_of(cfg: DictConfig) -> tuple[Fault, ...]:
    try:
        check(cfg)
    except ConfigError as error:
        return error.faults
    return ()


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=lambda part: part)
def test_each_option_composes_and_passes_the_check(group: str, option: str) -> None:
    cfg = composed(f"{group}={option}")
    faults = faults_of(cfg)
    assert [str(fault) for fault in faults if "???" not in fault.found] == []
    assert sorted(fault.where for fault in faults) == to_be_given(cfg)


@pytest.mark.parametrize("name", SHARED)
def test_each_shared_node_passes_the_check(name: str) -> None:
    group, _, option = name.rpartition("/")
    cfg = compose(overrides=[f"+{group}@node={option}"])
    assert cfg.node
    check(cfg.node)


def test_each_key_of_the_root_has_a_comment() -> None:
    lines = (CONFIG / "fusion_eval.yaml").read_text(encoding="utf-8").splitlines()
    keys = [line for line in lines if line and not line.startswith(("#", "defaults", "  - _self_"))]
    assert len(keys) >= 14
    assert all("  # " in line for line in keys)


def test_root_values_are_the_schema_s() -> None:
    from fusion_eval.compose import Settings

    root = yaml.safe_load((CONFIG / "fusion_eval.yaml").read_text(encoding="utf-8"))
    root.pop("defaults")
    schema = OmegaConf.to_container(OmegaConf.structured(Settings))
    assert isinstance(schema, dict)
    assert root == {key: value for key, value in schema.items() if value != "???"}


def test_examples_of_the_help_compose() -> None:
    text = OmegaConf.load(CONFIG / "hydra" / "default.yaml").help.header
    examples = [line.strip().split("    ")[0] for line in text.splitlines() if line.startswith("  fusion_eval")]
    assert len(examples) == 8
    for example in examples:
        words = [word for word in shlex.split(example)[1:] if "=" in word]
        words = with_full_keys(words, [item.name for item in fields(Settings)])
        pairs = [word.partition("=")[::2] for word in words]
        choices = [[f"{key}={value}" for value in values.split(",")] for key, values in pairs]
        for job in itertools.product(*choices):
            check(composed(*job))


def test_every_file_is_reached() -> None:
    files = {file.relative_to(CONFIG).with_suffix("").as_posix() for file in CONFIG.rglob("*.yaml")}
    reached = {f"{group}/{option}" for group, option in OPTIONS} | set(SHARED) | {"fusion_eval", "hydra/default"}
    left = {name for name in files - reached if not os.path.basename(name).startswith("_")}
    assert not left


def test_no_file_ships_an_empty_mapping() -> None:
    """Hydra lets nobody put keys into one; where any keys may stand, null is written."""
    found = [
        f"{file.name}: {line}"
        for file in CONFIG.rglob("*.yaml")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.partition("#")[0].rstrip().endswith(": {}")
    ]
    assert not found


def test_free_mappings_are_set_in_one_word() -> None:
    cfg = composed("taskpool=language", "taskpool.tasks=[a]", "taskpool.gen_kwargs={max_gen_toks: 8}")
    assert cfg.taskpool.gen_kwargs == {"max_gen_toks": 8}
