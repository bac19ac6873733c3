"""What a run is composed of, and every fault of its composition in the words of this package."""

from __future__ import annotations

import atexit
import re
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from fusion_eval.config_path import ROOT, config_dir, user_folders
from fusion_eval.config_path import register as register_folders
from fusion_eval.errors import ConfigError, Fault, FusionEvalError, did_you_mean, listed
from fusion_eval.log import rank

_OPTIONS_SHOWN = 40
GROUPS = ("program", "method", "modelpool", "taskpool", "fabric")
"""The groups that a run is composed of: one choice of each is built."""
FOREIGN = (HydraException, OmegaConfBaseException, yaml.YAMLError)
"""What Hydra, OmegaConf and the YAML reader raise where the user can put it right."""
_KINDS = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}


@dataclass
class Settings:
    """The keys at the root of a configuration; groups are open, `check` binds them to signatures."""

    program: Any = MISSING
    method: Any = MISSING
    modelpool: Any = MISSING
    taskpool: Any = MISSING
    fabric: Any = MISSING
    seed: int = 0
    limit: int | None = None
    fast_dev_run: bool = False
    output: str | None = None
    save: str | None = None
    dry_run: bool = False
    objective: str | None = None
    progress: bool = True


def register() -> None:
    """Make Hydra know the types of the root's keys and the resolver of the output folders."""
    ConfigStore.instance().store(name="fusion_eval_schema", node=Settings)
    OmegaConf.register_new_resolver("run_folder", run_folder, use_cache=True, replace=True)


def run_folder(output: str | None, kind: str) -> str:
    """Where a run writes: `output` where it is given, else `<kind>/<date>/<time>`.

    Ranks above zero, which compose for themselves under torchrun, get a folder that nobody looks into.
    """
    if rank() > 0:
        folder = tempfile.TemporaryDirectory(prefix="fusion_eval_rank_")
        atexit.register(folder.cleanup)
        return folder.name
    return output or datetime.now().strftime(f"{kind}/%Y-%m-%d/%H-%M-%S")


def options(group: str) -> list[str]:
    """The choices of a group, the package's and the user's."""
    folders = [config_dir(), *(folder for _, folder in user_folders())]
    return sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})


def option(group: str, name: str) -> dict[str, Any]:
    """The node that a choice of a group composes, resolved, among the root's other defaults.

    Raises:
        ConfigError: there is no such option, or it does not compose.
    """
    register()
    register_folders()
    try:
        with _apart_from_a_run(), initialize_config_dir(str(config_dir()), version_base="1.3"):
            composed = compose(ROOT, [f"{group}={name}"])
        found: Any = OmegaConf.to_container(composed, resolve=True)
    except FOREIGN as error:
        raise explain(error) from error
    return dict(found[group])


@contextmanager
def _apart_from_a_run() -> Iterator[None]:
    """Hydra composes for one owner at a time: set the composition of the run that we are in aside meanwhile."""
    held = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = held


def root_faults(cfg: DictConfig) -> Iterator[Fault]:
    """What is wrong with the keys at the root: unknown ones, and numbers out of range."""
    known = [field.name for field in fields(Settings)]
    for key in cfg:
        if key not in known:
            yield _unknown_key(str(key), str(key), known)
    for key in GROUPS:
        node = None if OmegaConf.is_missing(cfg, key) else cfg.get(key)
        if node is not None and not (isinstance(node, DictConfig) and "_target_" in node):
            found = "no _target_" if isinstance(node, DictConfig) else f"{node!r}, no node with a _target_"
            yield Fault(key, found, "a _target_: the dotted path of a class", f"Look at the YAML chosen by {key}=...")
    for key, least, most in (("limit", 1, None), ("seed", 0, 2**32 - 1)):
        value = cfg.get(key)
        if value is not None and (value < least or (most is not None and value > most)):
            yield Fault(key, str(value), f"at least {least}" if most is None else f"a number from {least} to {most}")


def explain(error: Exception) -> FusionEvalError:
    """The fault behind an error of Hydra, OmegaConf or the YAML reader."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, MissingConfigException):
        fault = _missing_file(error)
    elif isinstance(error, OverrideParseException):
        fault = _unreadable_override(error)
    elif isinstance(error, yaml.MarkedYAMLError):
        fault = _unreadable_yaml(error)
    elif isinstance(cause, OmegaConfBaseException):
        fault = _config_fault(cause, _origin(error))
    elif isinstance(error, OmegaConfBaseException):
        fault = _config_fault(error, "")
    elif isinstance(error, ConfigCompositionException) and "No match in the defaults list" in str(error):
        fault = _unchosen_group(str(error))
    elif str(error).startswith("Multiple values for "):
        group = str(error).split()[3].rstrip(".")
        fault = Fault(group, "chosen twice", do=f"Write {group}=..., without a plus.")
    elif several := re.match(r"Ambiguous value for argument '(.+?)'", str(error)):
        do = "Put -m in front to run each of them; a list is key=[a,b], a text key='\"a,b\"'."
        fault = Fault(f"override '{several[1]}'", "several values", "one value", do)
    else:
        fault = Fault("", " ".join(str(error).split()))
    return ConfigError(fault)


def unreadable(error: Exception) -> FusionEvalError | None:
    """The fault behind an error of Python's that YAML files cause while Hydra reads them; None for others."""
    modules = {frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)}
    if isinstance(error, RecursionError) and "hydra._internal.defaults_list" in modules:
        return ConfigError(Fault("a defaults list", "files that include one another", do="Break the circle."))
    if isinstance(error, UnicodeDecodeError) and any(str(name).startswith("hydra._internal") for name in modules):
        files = [file for _, folder in user_folders() for file in sorted(folder.rglob("*.yaml")) if not _is_text(file)]
        return ConfigError(
            Fault(listed([str(file) for file in files]) or "a YAML file", "not UTF-8", "valid YAML in UTF-8")
        )
    return None


def _is_text(file: Path) -> bool:
    try:
        file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _missing_file(error: MissingConfigException) -> Fault:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return Fault("--config-name", f"no primary configuration '{name}'", do="Leave the flag out.")
    choices = error.options or options(group)
    origin = _origin(error)
    by = f" (asked for by {origin})" if origin and origin != "fusion_eval" else ""
    expected = f"one of {listed(choices, _OPTIONS_SHOWN)}" if choices else ""
    hint = did_you_mean(name, choices) or ("" if choices else f"No folder '{group}' has YAML files.")
    if group == "hydra/launcher":
        hint = hint or 'Launchers are installed by: pip install "fusion_eval[sweep]".'
    return Fault(group, f"no option '{name}'{by}", expected, hint)


def _origin(error: Exception) -> str:
    """The file that a composition error names: the `a/b` of "In 'a/b': ..."."""
    text = str(error)
    return text[4:].partition("'")[0] if text.startswith("In '") else ""


def _unreadable_override(error: OverrideParseException) -> Fault:
    message = str(error.message).splitlines()
    detail = message[1] if len(message) > 1 and message[0].startswith("Error parsing") else message[0]
    expected = "key=value, group=option, +new.key=value or ~key"
    return Fault(
        f"override '{error.override}'", detail, expected, "Quote values with special characters: 'key=\"a,b\"'."
    )


def _unreadable_yaml(error: yaml.MarkedYAMLError) -> Fault:
    mark = error.problem_mark or error.context_mark
    where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "a YAML file"
    return Fault(where, str(error.problem or error.context), "valid YAML")


def _config_fault(error: OmegaConfBaseException, origin: str) -> Fault:
    where = error.full_key or str(error.key or "")
    if isinstance(error, ConfigKeyError | AttributeError) and isinstance(error.parent_node, DictConfig):
        fault = _unknown_key(where, str(error.key), [str(key) for key in error.parent_node if key != "hydra"])
    elif unfit := re.match(r"Value '(.*)' of type '\w+' could not be converted to (\w+)", str(error)):
        fault = Fault(where, f"'{unfit[1]}'", _KINDS.get(unfit[2], unfit[2]))
    else:
        fault = Fault(where, str(error).splitlines()[0])
    return Fault(f"{fault.where} (set in {origin})", fault.found, fault.expected, fault.do) if origin else fault


def _unknown_key(where: str, key: str, known: Sequence[str]) -> Fault:
    hint = did_you_mean(key, known)
    if "." in where and not hint:
        hint = f"To add a keyword that the class takes and its YAML leaves out: +{where}=..."
    expected = f"one of {listed(list(known), _OPTIONS_SHOWN)}" if known else "no keys at all"
    return Fault(where, "no such key", expected, hint)


def _unchosen_group(message: str) -> Fault:
    named = re.search(r"override '(.+?)'", message)
    group = named[1] if named else message.split("'")[1]
    by = re.match(r"In '(.+?)'", message)
    where = f"{group} (overridden by {by[1]})" if by else group
    found, expected = "not a group that is chosen at the root", f"one of {', '.join(GROUPS)}"
    return Fault(where, found, expected, did_you_mean(group.rpartition("/")[2], GROUPS))


def unavailable_folders_are_errors() -> None:
    """Turn Hydra's warning about a folder of `hydra.searchpath` that cannot be read into an error."""
    warnings.filterwarnings("error", message="provider=.*is not available", category=UserWarning)


def raised_by_hydra(error: Exception) -> bool:
    """Whether a ValueError comes from Hydra's own code, which raises it for some faults of the command line."""
    frames = list(traceback.walk_tb(error.__traceback__))
    module = frames[-1][0].f_globals.get("__name__", "") if frames else ""
    return isinstance(error, ValueError | UserWarning) and str(module).partition(".")[0] in ("hydra", "omegaconf")
