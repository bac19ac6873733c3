"""Hub names that hooks load by themselves, and archives of videos: both are taken from `data_root`."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from fusion_eval.harness.dataset import DataRequest, DataSource, split_of

_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz")


@contextmanager
def local_hub(data: DataSource) -> Iterator[None]:
    """Inside, what `datasets` and `huggingface_hub` would download comes from `data_root` where it is there."""
    if data.data_root is None:
        yield
        return
    import datasets
    import huggingface_hub

    with ExitStack() as stack:
        for module, name, make in (
            (datasets, "load_dataset", _data_set),
            (huggingface_hub, "snapshot_download", _folder),
            (huggingface_hub, "hf_hub_download", _file),
        ):
            stack.enter_context(mock.patch.object(module, name, make(data, getattr(module, name))))
        yield


def _data_set(data: DataSource, original: Callable[..., Any]) -> Callable[..., Any]:
    def load_dataset(path: Any, name: Any = None, *args: Any, split: Any = None, **kwargs: Any) -> Any:
        if args or not isinstance(path, str) or data.local(path) is None:
            more = {} if split is None else {"split": split}
            return original(path, name, *args, **more, **kwargs)
        kept = {key: value for key, value in kwargs.items() if key in ("data_dir", "data_files", "revision")}
        splits = data.load(DataRequest(path, name, kept))
        return splits if split is None else split_of(splits, split, path)

    return load_dataset


def _folder(data: DataSource, original: Callable[..., Any]) -> Callable[..., Any]:
    def snapshot_download(repo_id: str, *args: Any, **kwargs: Any) -> Any:
        found = data.local(repo_id)
        return original(repo_id, *args, **kwargs) if found is None else str(found)

    return snapshot_download


def _file(data: DataSource, original: Callable[..., Any]) -> Callable[..., Any]:
    def hf_hub_download(repo_id: str, filename: str, *args: Any, **kwargs: Any) -> Any:
        found = data.local(repo_id)
        file = found / (kwargs.get("subfolder") or "") / filename if found is not None else None
        return str(file) if file is not None and file.is_file() else original(repo_id, filename, *args, **kwargs)

    return hf_hub_download


def unpack_media(kwargs: Mapping[str, Any], source: Path | None) -> None:
    """Put the archives of a data set where its hooks look for videos: the folder `cache_dir` in `$HF_HOME`.

    Args:
        kwargs: `dataset_kwargs` of the task; nothing is done unless they name `cache_dir`.
        source: the folder of the data set; None where it is not here.
    """
    if not kwargs.get("cache_dir") or source is None:
        return
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    target = home / str(kwargs["cache_dir"])
    if target.exists():
        return
    archives = sorted(file for file in source.rglob("*") if file.name.endswith(_ARCHIVES))
    if not archives:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.resolve(), target_is_directory=True)
        return
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    for archive in archives:
        _unpack(archive, partial)
    partial.rename(target)


def _unpack(archive: Path, target: Path) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as file:
            file.extractall(target)
        return
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
