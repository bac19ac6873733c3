"""What is kept and written of a document: its prompt, its media by digest, what was answered, its scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusion_eval.harness.media import Conversation
from fusion_eval.harness.outcome import SampleRow
from fusion_eval.harness.peer_utils import handle_non_serializable
from fusion_eval.harness.sample_file import file_name


def described(arguments: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Arguments of requests without the media themselves."""
    return [tuple(_described(part) if isinstance(part, Conversation) else part for part in row) for row in arguments]


def _described(asked: Conversation) -> dict[str, Any]:
    """The last turn's text, system messages and earlier turns beside it, and every medium by kind and digest."""
    found: dict[str, Any] = {"prompt": asked.turns[-1].text, "media": [[m.kind, m.digest] for m in asked.media]}
    if len(asked.turns) > 1:
        found["turns"] = [[turn.role, turn.text] for turn in asked.turns]
    return found


def sample_of(row: SampleRow) -> dict[str, Any]:
    """A row as it is written; its arguments are `described` ones."""
    first = row.arguments[0][0] if row.arguments and isinstance(row.arguments[0][0], Mapping) else {}
    record = {
        "doc_id": row.doc_id, "prompt": first.get("prompt"), "media": first.get("media", []), "target": row.target,
        "arguments": [list(arguments[1:]) for arguments in row.arguments], "resps": row.resps,
        "filtered_resps": row.filtered, "filter": row.pipeline, "metrics": dict(row.metrics),
    }  # fmt: skip
    return {**record, "marks": list(row.marks)} if row.marks else record


class SampleLog:
    """Files of samples, one per task; a row is on the disk as soon as its document is scored.

    Args:
        folder: where `samples_<task>.jsonl` lie; files of an earlier run are begun anew.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._begun: set[str] = set()

    def __call__(self, task: str, row: SampleRow) -> None:
        """Append a row."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"samples_{file_name(task)}.jsonl"
        with path.open("a" if task in self._begun else "w", encoding="utf-8") as file:
            file.write(json.dumps(sample_of(row), default=_plain, ensure_ascii=False) + "\n")
        self._begun.add(task)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else handle_non_serializable(value)
