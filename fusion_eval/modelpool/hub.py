"""Where a model's files are: a local folder, or a snapshot of a hub repository in the local cache."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

from fusion_eval.errors import CheckpointError, Fault, MissingDependencyError, did_you_mean, missing_dependency

EXTRA: Final = "huggingface"
_DESCRIPTION: Final = ("*.json", "*.txt", "*.model", "*.jinja", "*.py", "README.md")
_SAFE: Final = ("*.safetensors",)
_PICKLED: Final = ("pytorch_model*.bin", "adapter_model.bin")


def model_folder(name: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """The folder with the files of a model.

    A local folder is taken as it is. A hub id is looked up in the cache and, unless `HF_HUB_OFFLINE` is set, on the
    hub: its safetensors, or its torch files where it has no others; without `weights` only what describes the model.

    Args:
        name: a folder, or `owner/model`.
        revision: the commit, tag or branch of a hub repository.
        weights: fetch the weights as well.

    Raises:
        CheckpointError: there is no such folder and no such model in reach.
        MissingDependencyError: it is a hub id and huggingface_hub is not installed.
    """
    local = Path(name).expanduser()
    if local.is_dir():
        return local
    if not _is_hub_id(name):
        raise CheckpointError(_no_folder(local))
    folder = _snapshot(name, revision, (*_DESCRIPTION, *(_SAFE if weights else ())))
    if weights and not any(folder.glob("*.safetensors")):
        folder = _snapshot(name, revision, (*_DESCRIPTION, *_PICKLED))
    return folder


@lru_cache(maxsize=256)
def _snapshot(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    """The snapshot's folder; kept, so that a pool asks the hub once per model and process."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise missing_hub(f"the hub model '{name}'") from error
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        raise CheckpointError(_out_of_reach(name, revision, error)) from error


def missing_hub(purpose: str) -> MissingDependencyError:
    """The error for a missing Hugging Face package."""
    return missing_dependency("transformers", EXTRA, purpose)


def _is_hub_id(name: str) -> bool:
    """Whether a name that is no folder may be `model` or `owner/model`."""
    return not name.startswith((".", "/", "~")) and name.count("/") <= 1 and "\\" not in name


def _no_folder(path: Path) -> Fault:
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    found = "a file" if path.is_file() else "no such folder"
    return Fault(str(path), found, "a folder with config.json and weights", did_you_mean(path.name, beside))


def _out_of_reach(name: str, revision: str | None, error: Exception) -> Fault:
    at = f" at revision '{revision}'" if revision else ""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if offline:
        found = f"no local folder, and not in the hub's cache{at}; HF_HUB_OFFLINE is set"
        do = "Unset HF_HUB_OFFLINE, or give the path of a local copy."
    else:
        found = f"no local folder, and not to be had from the hub{at} ({first})"
        do = "Check the name and the connection; a private model needs a login with the hub's own client."
    return Fault(name, found, "a folder or a hub id", do)
