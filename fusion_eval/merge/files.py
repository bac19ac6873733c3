"""Checkpoints on disk: safetensors and torch files, single or sharded, and folders that hold them."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor

from fusion_eval.errors import CheckpointError, Fault, did_you_mean, listed
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.safetensors_file import SafetensorsFile
from fusion_eval.merge.torch_file import load_tensors, tied_names

TORCH_SUFFIXES: Final = (".pt", ".pth", ".bin", ".ckpt")
_PREFERRED: Final = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
_PATTERNS: Final = (
    "*.safetensors.index.json",
    "*.safetensors",
    "*.bin.index.json",
    *(f"*{suffix}" for suffix in TORCH_SUFFIXES),
)
_NOT_WEIGHTS: Final = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.")
_fingerprints: dict[tuple[tuple[str, int, int], ...], str] = {}


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The lazy checkpoint at `path`: a weights file, an index file, or a folder with either.

    Only headers are read. A folder may be a Hugging Face one; `model.safetensors` and its index are preferred to other
    names, and safetensors to torch files.

    Raises:
        CheckpointError: nothing readable is there; the fault names the file.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        place = _weights_of(place)
    if not place.exists():
        raise CheckpointError(_absent(place))
    if place.name.endswith(".index.json"):
        return _sharded(place, *_indexed(place))
    if _SHARD.search(place.name) and _sisters(place):
        return _sharded(place.parent, _sisters(place), None)
    return _single(place)


class FileCheckpoint(Checkpoint):
    """Tensors of safetensors files, in the order of their bytes, shard after shard."""

    def __init__(self, place: Path, files: tuple[SafetensorsFile, ...]) -> None:
        self._place, self._files = place, files
        self._home = {name: file for file in files for name in file.entries}
        pairs = {key: value for file in files for key, value in file.metadata.items()}
        # safetensors' own `save_model` notes a tied name in the metadata in this way
        self._tied = {key: value for key, value in pairs.items() if key not in self._home and value in self._home}

    @property
    def source(self) -> str:
        """The path."""
        return str(self._place)

    @property
    def tied(self) -> Mapping[str, str]:
        """Other names that the files' metadata gives to tensors."""
        return MappingProxyType(self._tied)

    def read(self, name: str) -> Tensor:
        """A view of the mapped file."""
        return self._home[name].read(name)

    def spec(self, name: str) -> TensorSpec:
        """From the header."""
        return self._home[name].entries[name].spec

    def working_bytes(self, name: str) -> int:
        """None: the file is mapped."""
        return 0

    def prefetch(self, name: str) -> None:
        """Ask the operating system to read the tensor in the background."""
        self._home[name].prefetch(name)

    def key(self) -> str | None:
        """The paths, sizes and times of the files."""
        return str(stamp(file.path for file in self._files))

    def fingerprint(self) -> str:
        """As for every checkpoint; kept in memory while the files do not change."""
        return _kept(stamp(file.path for file in self._files), super().fingerprint)

    def __contains__(self, name: object) -> bool:
        return name in self._home

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)


class TorchCheckpoint(Checkpoint):
    """Tensors of files written by `torch.save`, mapped and not read."""

    def __init__(self, place: Path, files: tuple[Path, ...]) -> None:
        self._place, self._files = place, files
        shards = [load_tensors(file) for file in files]
        self._tied = {name: kept for shard in shards for name, kept in tied_names(shard).items()}
        self._tensors = {name: t for shard in shards for name, t in shard.items() if name not in self._tied}
        self.homes = {name: file.name for file, shard in zip(files, shards, strict=True) for name in shard}

    @property
    def source(self) -> str:
        """The path."""
        return str(self._place)

    @property
    def tied(self) -> Mapping[str, str]:
        """Names whose tensor is stored under another name."""
        return MappingProxyType(self._tied)

    def read(self, name: str) -> Tensor:
        """A view of the mapped file."""
        return self._tensors[name]

    def spec(self, name: str) -> TensorSpec:
        """Without touching the values."""
        tensor = self._tensors[name]
        return TensorSpec(tuple(tensor.shape), tensor.dtype)

    def working_bytes(self, name: str) -> int:
        """None: the file is mapped."""
        return 0

    def key(self) -> str | None:
        """The paths, sizes and times of the files."""
        return str(stamp(self._files))

    def fingerprint(self) -> str:
        """As for every checkpoint; kept in memory while the files do not change."""
        return _kept(stamp(self._files), super().fingerprint)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def stamp(paths: Any) -> tuple[tuple[str, int, int], ...]:
    """Path, size and modification time of files: equal stamps mean unchanged files."""
    found = []
    for path in paths:
        status = os.stat(path)
        found.append((str(Path(path).resolve()), status.st_size, status.st_mtime_ns))
    return tuple(found)


_fingerprint_lock = threading.Lock()


def _kept(key: tuple[tuple[str, int, int], ...], compute: Callable[[], str]) -> str:
    with _fingerprint_lock:
        if key not in _fingerprints:
            _fingerprints[key] = compute()
        return _fingerprints[key]


def _absent(path: Path) -> Fault:
    folder = path.parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() and os.access(folder, os.R_OK) else []
    found = "no such file or folder" if folder.is_dir() else f"no such file, nor its folder {folder}"
    return Fault(str(path), found, "a checkpoint", did_you_mean(path.name, names))


def _weights_of(folder: Path) -> Path:
    """The file of a folder that leads to its weights."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise CheckpointError(
            Fault(str(folder), f"cannot be listed ({error.strerror})", "a readable folder")
        ) from error
    for name in _PREFERRED:
        if name in names:
            return folder / name
    for pattern in _PATTERNS:
        found = [n for n in names if Path(n).match(pattern) and n not in _NOT_WEIGHTS and not n.startswith("adapter_")]
        if len(found) == 1 or (found and all(_SHARD.search(name) for name in found)):
            return folder / found[0]
        if found:
            raise CheckpointError(
                Fault(str(folder), f"several candidates: {listed(found)}", "one", "Give the path of one of them.")
            )
    do = "It holds an adapter: give its base model and the adapter." if "adapter_config.json" in names else ""
    raise CheckpointError(
        Fault(str(folder), f"no weights among {listed(names) or 'no files'}", "*.safetensors or pytorch_model*.bin", do)
    )


def _single(path: Path) -> Checkpoint:
    if path.suffix == ".safetensors":
        return FileCheckpoint(path, (SafetensorsFile(path),))
    if path.suffix in TORCH_SUFFIXES:
        return TorchCheckpoint(path, (path,))
    raise CheckpointError(
        Fault(str(path), f"suffix '{path.suffix}'", f".safetensors, {', '.join(TORCH_SUFFIXES)} or .index.json")
    )


def _sisters(path: Path) -> tuple[Path, ...]:
    """All shards of the set that a file named `...-00001-of-0000N...` belongs to."""
    match = _SHARD.search(path.name)
    assert match is not None
    number, count = match.groups()
    names = (f"-{index:0{len(number)}}-of-{count}." for index in range(1, int(count) + 1))
    return tuple(path.parent / (path.name[: match.start()] + name + path.name[match.end() :]) for name in names)


def _indexed(index: Path) -> tuple[tuple[Path, ...], dict[str, str]]:
    """The shards that an index names, in order, and its map from tensor to file name."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = list(dict.fromkeys(weight_map.values()))
        plain = all(isinstance(name, str) and Path(name).name == name for name in names)
    except OSError as error:
        raise CheckpointError(Fault(str(index), f"cannot be read ({error.strerror})", "a readable file")) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            Fault(str(index), "not an index", 'a JSON object with "weight_map": {tensor: file}')
        ) from error
    if not plain or not names:
        raise CheckpointError(Fault(str(index), "a weight_map without plain file names", "names of files beside it"))
    return tuple(index.parent / name for name in sorted(names)), weight_map


def _sharded(place: Path, files: tuple[Path, ...], weight_map: dict[str, str] | None) -> Checkpoint:
    missing = [Fault(str(file), "no such shard", f"a shard of {place}") for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(*missing)
    checkpoint: FileCheckpoint | TorchCheckpoint
    if files[0].suffix == ".safetensors":
        opened = tuple(SafetensorsFile(file) for file in files)
        homes = [(name, file.path.name) for file in opened for name in file.entries]
        checkpoint = FileCheckpoint(place, opened)
    else:
        checkpoint = TorchCheckpoint(place, files)
        homes = list(checkpoint.homes.items())
    faults = _index_faults(place, homes, weight_map)
    if faults:
        raise CheckpointError(*faults)
    return checkpoint


def _index_faults(place: Path, homes: list[tuple[str, str]], weight_map: dict[str, str] | None) -> list[Fault]:
    """Tensors that are twice, elsewhere, or nowhere, against what the index says; one fault per shard and kind."""
    by_name: dict[str, list[str]] = {}
    for name, file in homes:
        by_name.setdefault(name, []).append(file)
    said = weight_map if weight_map is not None else {name: files[0] for name, files in by_name.items()}
    lost: dict[str, list[str]] = {}
    extra: dict[str, list[str]] = {}
    for name, file in said.items():
        if file not in by_name.get(name, ()):
            lost.setdefault(file, []).append(name)
    for name, file in homes:
        if said.get(name) != file:
            extra.setdefault(file, []).append(name)
    do = f"Correct {place.name} or the shard." if weight_map is not None else "Remove one of the copies."
    faults = [Fault(f"{place.parent / file}", f"lacks {len(n)} tensors: {listed(n)}", "what the index says", do)
              for file, n in lost.items()]  # fmt: skip
    for file, names in extra.items():
        found = f"has {len(names)} tensors that belong elsewhere: {listed(names)}"
        faults.append(Fault(f"{place.parent / file}", found, "each tensor in one shard, as the index says", do))
    return faults
