"""An append-only store of model answers: a killed run loses at most the batch that was running."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fusion_eval.errors import Fault, OutputError
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score

logger = logging.getLogger(__name__)
Piece = Pair | Prompt
Answer = Score | str


class AnswerStore:
    """Answers of one model, keyed by what was asked.

    One file per model (its fingerprint) and rank; every line is one batch. A line that a kill cut short is
    ignored. Another model has another file, so it never reads these.

    Args:
        folder: where the files lie.
        fingerprint: of the model.
        rank: of this process.
    """

    def __init__(self, folder: Path, fingerprint: str, rank: int = 0) -> None:
        self.file = folder / f"{fingerprint}.rank{rank}.jsonl"
        self._known: dict[str, Answer] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            do = "Set answers to another folder, or to null."
            raise OutputError(Fault(str(folder), f"cannot be created: {error}", "a folder to write to", do)) from error
        for file in sorted(folder.glob(f"{fingerprint}.rank*.jsonl")):
            for row in _rows(file):
                self._known.update({key: _answer(value) for key, value in row.items()})

    def __len__(self) -> int:
        return len(self._known)

    def known(self, pieces: Sequence[Piece]) -> dict[int, Answer]:
        """The answers that are known, by place."""
        found = {place: self._known.get(key_of(piece)) for place, piece in enumerate(pieces)}
        return {place: answer for place, answer in found.items() if answer is not None}

    def put(self, pieces: Sequence[Piece], answers: Sequence[Answer]) -> None:
        """Append the answers of a batch and see that they reach the disk."""
        row = {key_of(piece): answer for piece, answer in zip(pieces, answers, strict=True)}
        self._known.update(row)
        line = json.dumps({k: asdict(v) if isinstance(v, Score) else v for k, v in row.items()}, ensure_ascii=False)
        with self.file.open("a", encoding="utf-8") as file:
            if self.file.stat().st_size and not _ends_whole(self.file):
                file.write("\n")
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


def key_of(piece: Piece) -> str:
    """A digest of a question: method, tokens (or text), generation settings, seed."""
    if isinstance(piece, Pair):
        what: Any = ["score", piece.context, piece.continuation]
    else:
        what = ["generate", piece.tokens if piece.tokens is not None else piece.text, piece.settings, piece.seed]
    if piece.media:
        what.append(piece.media)
    return hashlib.sha256(json.dumps(what, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _answer(value: Any) -> Answer:
    return Score(**value) if isinstance(value, dict) else str(value)


def _ends_whole(file: Path) -> bool:
    with file.open("rb") as handle:
        handle.seek(-1, os.SEEK_END)
        return handle.read(1) == b"\n"


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError:
                logger.warning("%s line %d is incomplete (the run was killed there); it is asked again", file, number)
                continue
            if isinstance(row, dict):
                yield row
