"""What may be typed: the text of --help, and what is wrong with a line of flags and overrides."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from fusion_eval.config_path import ROOT, config_dir, user_folders
from fusion_eval.errors import ConfigError, Fault, did_you_mean

_MODES = ("run", "multirun", "cfg", "info", "shell_completion")


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The flags and overrides of a command line.

    Raises:
        ConfigError: an unknown flag or value, two modes at once, or overrides that stand apart; the latter with the
            line as Hydra wants it.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    known, left_over = parser.parse_known_args(argv)
    flags = [word for word in left_over if word.startswith("-")]
    if flags:
        names = [name for action in parser._actions for name in action.option_strings]
        bare = flags[0].partition("=")[0]
        do = did_you_mean(bare, names) or f"Overrides have no dashes: {flags[0].lstrip('-')}"
        raise ConfigError(Fault("command line", f"no flag '{bare}'", do=do))
    if left_over:
        together = [*known.overrides, *left_over]
        first = [word for word in argv if word not in together]
        line = shlex.join(["fusion_eval", *first, *together])
        raise ConfigError(Fault("command line", "overrides stand apart", "flags first, then overrides", f"Run: {line}"))
    modes = [f"--{mode.replace('_', '-')}" for mode in _MODES if getattr(known, mode)]
    if len(modes) > 1:
        raise ConfigError(Fault("command line", " and ".join(modes), "one of them"))
    return known


def with_full_keys(argv: Sequence[str], root: Sequence[str]) -> list[str]:
    """The command line with `key=value` written `program.key=value` where only the chosen program has such a key.

    Args:
        argv: flags and overrides.
        root: keys of the root, which keep their meaning.
    """
    chosen = [word.removeprefix("program=") for word in argv if word.startswith("program=")]
    folders = [config_dir(), *(folder for _, folder in user_folders())]
    files = [
        file for name in chosen[-1:] for folder in folders if (file := folder / "program" / f"{name}.yaml").is_file()
    ]
    own = {str(key) for file in files for key in OmegaConf.load(file)} - {*root, *groups(folders)}
    return [f"program.{word}" if "=" in word and word.partition("=")[0] in own else word for word in argv]


def _refuse(message: str) -> NoReturn:
    raise ConfigError(Fault("command line", message, do="See: fusion_eval --help"))


def groups(folders: Sequence[Path]) -> dict[str, list[str]]:
    """The options of every group in these folders; names that begin with `_` are templates."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.rglob("*.yaml"):
            group = file.parent.relative_to(folder).as_posix()
            if group != "." and not group.startswith("hydra") and not file.name.startswith("_"):
                found.setdefault(group, set()).add(file.stem)
    return {group: sorted(found[group]) for group in sorted(found)}


def help_text(added: str | None = None) -> str:
    """What --help prints: examples, every group with its options, and the root's keys as its commented YAML has them.

    Hydra's own help composes a configuration and copies it for every group; this reads names of files.

    Args:
        added: the folder given by --config-dir.
    """
    own = config_dir()
    help_of = OmegaConf.load(own / "hydra" / "default.yaml").help
    folders = [own, *(folder for _, folder in user_folders()), *([Path(added)] if added else [])]
    lines = [f"  {group}: {', '.join(options)}" for group, options in groups(folders).items()]
    root = (own / f"{ROOT}.yaml").read_text(encoding="utf-8").strip()
    keys = [f"  {line}" if line else "" for line in root.splitlines()[1:]]
    return "\n".join(
        [
            help_of.header,
            "Groups and their options (group=option; show one with: fusion_eval --cfg job group=option):",
            *lines,
            "",
            "Keys of the root (key=value):",
            *keys,
            "",
            help_of.footer.replace("$$", "$").strip(),
        ]
    )
