"""Data sets of tasks: hub names found offline under `data_root`, local files, and everything `datasets` loads."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusion_eval.errors import DataError, Fault, did_you_mean, listed, missing_dependency

logger = logging.getLogger(__name__)

BUILDERS = {
    ".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".txt": "text",
    ".arrow": "arrow",
}  # fmt: skip
_UNWRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT})
_COMPRESSED = frozenset({".gz", ".bz2", ".xz", ".zst"})
_BUILDER_NAMES = frozenset({*BUILDERS.values(), "imagefolder", "audiofolder", "webdataset", "xml", "pandas"})


@dataclass(frozen=True, slots=True)
class DataRequest:
    """What a task file says about its data.

    Args:
        path: hub name, builder name, file or folder.
        name: the configuration (subset).
        kwargs: further keywords of `datasets.load_dataset`.
        folder: where relative files are looked for besides the working directory and `data_root`.
        splits: what a file that is named directly stands for: each of them.
    """

    path: str
    name: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    splits: tuple[str, ...] = ("test",)

    @property
    def one_file(self) -> bool:
        """Whether every split is one and the same file."""
        return builder_of(self.path) is not None and "data_files" not in self.kwargs


@dataclass(slots=True)
class DataSource:
    """Loads data sets, each once.

    Args:
        data_root: folder laid out as the hub is: `<data_root>/<organisation>/<name>/`.
        cache_dir: where `datasets` keeps its Arrow files; None for its own default.
        offline: names that are no files or folders here are an error; nothing is asked of the hub.
    """

    data_root: Path | None = None
    cache_dir: Path | None = None
    offline: bool = False
    _loaded: dict[str, Any] = field(default_factory=dict)
    _cut_off: bool = False

    def load(self, request: DataRequest) -> Mapping[str, Any]:
        """Splits by name.

        Raises:
            DataError: nothing there, or nothing that `datasets` can read.
        """
        parts = [request.path, request.name, str(request.folder), dict(request.kwargs), request.splits]
        key = json.dumps(parts, default=str)
        if key not in self._loaded:
            self._loaded[key] = self._load(request)
        return self._loaded[key]  # type: ignore[no-any-return]

    def local(self, path: str) -> Path | None:
        """The file or folder that a name stands for here, or None."""
        return None if path in _BUILDER_NAMES else self._existing(path, DataRequest(path))

    def _load(self, request: DataRequest) -> Any:
        datasets = _datasets()
        kwargs = {k: v for k, v in request.kwargs.items() if k != "trust_remote_code"}
        path, name = request.path, request.name
        if "data_files" in kwargs:
            kwargs["data_files"] = self._resolved(kwargs["data_files"], request)
        builder = builder_of(path)
        if builder is not None:
            file = self._existing(path, request)
            if file is None and "data_files" not in kwargs:
                raise DataError(Fault("dataset_path", f"the file {path} does not exist", self._places(request)))
            kwargs.setdefault("data_files", dict.fromkeys(request.splits, str(file)))
            if ".tsv" in Path(path).suffixes:
                kwargs.setdefault("sep", "\t")
            path, name = builder, None
        elif path not in _BUILDER_NAMES:
            folder = self._existing(path, request)
            if folder is not None:
                return self._load_folder(folder, name, kwargs)
            if self.offline:
                raise DataError(
                    Fault("dataset_path", f"{path} is not here, and the run is offline", self._places(request),
                          self._advice(request))
                )  # fmt: skip
        with quiet():
            return self._call(datasets, path, name, kwargs, request)

    def _load_folder(self, folder: Path, name: str | None, kwargs: dict[str, Any]) -> Any:
        datasets = _datasets()
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            return datasets.load_from_disk(str(folder))
        if (folder / "README.md").is_file():
            kwargs = {"cache_dir": str(self._cache_of(folder)), **kwargs}
        if name and not _card_has(folder, name):
            kwargs, name = ({"data_dir": name, **kwargs}, None) if (folder / name).is_dir() else (kwargs, None)
        with quiet():
            return self._call(datasets, str(folder), name, kwargs, DataRequest(str(folder), name, kwargs))

    def _cache_of(self, folder: Path) -> Path:
        """A place of its own for what a folder with a card holds now: `datasets` would give what it held before."""
        found = sorted(
            (str(file.relative_to(folder)), stat.st_size, stat.st_mtime_ns)
            for file in folder.rglob("*") if file.is_file() for stat in [file.stat()]
        )  # fmt: skip
        digest = hashlib.sha256(json.dumps([str(folder), found]).encode()).hexdigest()[:16]
        return Path(self.cache_dir or _datasets().config.HF_DATASETS_CACHE) / f"folder_{digest}"

    def _call(self, datasets: Any, path: str, name: str | None, kwargs: dict[str, Any], request: DataRequest) -> Any:
        cache = {"cache_dir": str(self.cache_dir)} if self.cache_dir else {}
        try:
            # from where it is defined: hooks may be given another `datasets.load_dataset`
            with without_hub() if self._cut_off else nullcontext():
                return datasets.load.load_dataset(path=path, name=name, **{**cache, **kwargs})
        except Exception as error:
            self._cut_off |= isinstance(error, ConnectionError)  # the next data set waits for nobody
            if fault := unreadable(kwargs.get("data_files")):
                raise DataError(fault) from error
            if isinstance(error, OSError) and error.errno in _UNWRITABLE:
                found, expected = f"{error.filename}: {error.strerror}", "a folder that can be written and has room"
                raise DataError(Fault("the cache of data sets", found, expected, "Set HF_HOME to one.")) from error
            what = f"{request.path}" + (f" ({name})" if name else "")
            raise DataError(
                Fault("dataset_path", f"{what} cannot be loaded: {type(error).__name__}: {_first_line(error)}",
                      self._places(request), self._advice(request))
            ) from error  # fmt: skip

    def missing(self, request: DataRequest) -> Fault | None:
        """What of a request is not among the files here; None where all is, or where only the hub could tell."""
        if request.path in _BUILDER_NAMES or builder_of(request.path) is not None:
            files = request.kwargs.get("data_files") or (request.path if builder_of(request.path) else [])
            named = _names_in(self._resolved(files, request))
            lost = [name for name in named if self._is_lost(name)]
            return Fault("dataset_path", f"{listed(lost)} is not there", self._places(request)) if lost else None
        if (self.data_root is None and not self.offline) or self._existing(request.path, request) is not None:
            return None
        return Fault("dataset_path", f"{request.path} is not there", self._places(request), self._advice(request))

    def _is_lost(self, name: str) -> bool:
        """Whether a file cannot be had; of an address and of a pattern only `datasets` can tell, unless offline."""
        if "://" in name:
            return self.offline
        return "*" not in name and not Path(name).exists()

    def _existing(self, path: str, request: DataRequest) -> Path | None:
        places = [self.data_root, Path.cwd(), request.folder]
        if builder_of(path) is not None:
            places = [Path.cwd(), request.folder, self.data_root]
        for place in places:
            candidate = (place / Path(path).expanduser()) if place else None
            if candidate is not None and candidate.exists():
                return candidate.resolve()
        around = _around(request.folder, path)
        if around is not None:
            return around
        short = self.data_root / path.rpartition("/")[2] if self.data_root else None
        return short.resolve() if short is not None and short.is_dir() else None

    def _resolved(self, files: Any, request: DataRequest) -> Any:
        if isinstance(files, Mapping):
            return {split: self._resolved(value, request) for split, value in files.items()}
        if isinstance(files, list):
            return [self._resolved(value, request) for value in files]
        if not isinstance(files, str) or os.path.isabs(files):
            return files
        if "://" in files:
            return self._mirrored(files)
        found = self._existing(files, dataclasses.replace(request, path=files))
        return str(found) if found is not None else files

    def _mirrored(self, url: str) -> str:
        """The file of `data_root` that an address on the hub stands for; the address where it is not there."""
        found = _ON_HUB.match(url)
        if found is None or self.data_root is None:
            return url
        file = self.data_root / found["name"] / found["file"]
        there = next(file.parent.glob(file.name), None) if "*" in file.name else file if file.exists() else None
        return url if there is None else str(file.resolve())

    def _places(self, request: DataRequest) -> str:
        places = [str(place) for place in (self.data_root, Path.cwd(), request.folder) if place]
        return f"{request.path} below one of: {', '.join(places)}"

    def _advice(self, request: DataRequest) -> str:
        if self.data_root is None or not self.data_root.is_dir():
            return "Set data_root to a folder laid out as <organisation>/<name>/, or name a local file."
        present = [str(p.relative_to(self.data_root)) for p in self.data_root.glob("*/*") if p.is_dir()]
        return did_you_mean(request.path, present) or f"data_root holds {listed(sorted(present), 8)}."


def _around(folder: Path | None, path: str) -> Path | None:
    """A file that a task names from the root of its tree (`tree/tasks/mine/rows.jsonl`), found from its own folder."""
    first, _, rest = path.partition("/")
    for parent in (folder, *folder.parents) if folder is not None and rest else ():
        if parent.name == first and (parent / rest).is_file():
            return (parent / rest).resolve()
    return None


_ON_HUB = re.compile(
    r"(?:hf://datasets/|https?://[^/]+/datasets/)(?P<name>[^/]+/[^/@]+)(?:@[^/]+)?/"
    r"(?:(?:resolve|raw|blob)/[^/]+/)?(?P<file>.+)"
)


def builder_of(path: str) -> str | None:
    """The builder of a data file by its suffix, compressed or not; None for names of other things."""
    suffixes = [suffix for suffix in Path(path).suffixes[-2:] if suffix not in _COMPRESSED]
    return BUILDERS.get(suffixes[-1]) if suffixes else None


_SPLIT_HINT = "Give it a file in dataset_kwargs: {data_files: {...}}, or leave out the key that names it."


def split_of(splits: Mapping[str, Any], name: str, where: str) -> Any:
    """One split.

    Raises:
        DataError: the data set has no such split.
    """
    try:
        return splits[name]
    except KeyError:
        names = list(splits)
        raise DataError(
            Fault(
                where,
                f"the data set has no split '{name}'",
                f"one of {listed(names, 20)}",
                did_you_mean(name, names) or _SPLIT_HINT,
            )
        ) from None


def _names_in(files: Any) -> list[str]:
    if isinstance(files, Mapping):
        return [name for value in files.values() for name in _names_in(value)]
    return [str(name) for name in files] if isinstance(files, list) else [str(files)]


def _card_has(folder: Path, name: str) -> bool:
    card = folder / "README.md"
    return card.is_file() and f"config_name: {name}" in card.read_text(encoding="utf-8").replace('"', "")


def unreadable(files: Any) -> Fault | None:
    """What keeps local data files from being read, where that can be told: an empty one, or a line that is no JSON."""
    for file in (Path(name) for name in _names_in(files or {})):
        if file.is_file() and not file.stat().st_size:
            return Fault(str(file), "is empty", "one document per line")
        if file.is_file() and file.suffix == ".jsonl" and (line := _broken_line(file)):
            return Fault(f"{file}:{line[0]}", f"is not JSON: {line[1]}", "one document per line")
    return None


def _broken_line(file: Path) -> tuple[int, str] | None:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                json.loads(line.strip() or "null")
            except ValueError as error:
                return number, str(error)
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0][:300]


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise missing_dependency("datasets", "language", "data sets of tasks") from error
    return datasets


@contextmanager
def without_hub() -> Iterator[None]:
    """Inside, `datasets` takes what it downloaded before, and asks the hub for nothing."""
    from huggingface_hub import constants

    config = _datasets().config
    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and messages of `datasets` inside, and nothing kept of what tasks compute.

    Its cache of computed data tells functions apart by their names, so an edited one would give what it gave before.
    """
    datasets = _datasets()
    shown, level = datasets.is_progress_bar_enabled(), datasets.logging.get_verbosity()
    kept = datasets.is_caching_enabled()
    datasets.disable_caching()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what fails is told by the error
    if shown:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if kept:
            datasets.enable_caching()
        if shown:
            datasets.enable_progress_bars()
