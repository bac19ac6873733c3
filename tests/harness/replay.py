"""An engine that answers with recorded responses, and the records themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusion_eval.harness.engine.encoder import Encoder
from fusion_eval.harness.engine.generation import frozen, normalise
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score, Work


@dataclass
class Oracle:
    """An unpacked oracle folder."""

    root: Path
    _rows: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)

    def rows(self, run: str, task: str) -> list[dict[str, Any]]:
        key = (run, task)
        if key not in self._rows:
            file = self.root / "runs" / run / "samples" / f"{task}.jsonl"
            self._rows[key] = _lines(file)
        return self._rows[key]

    def tasks(self, run: str) -> list[str]:
        return sorted(file.stem for file in (self.root / "runs" / run / "samples").glob("*.jsonl"))

    def results(self, run: str) -> dict[str, Any]:
        return json.loads((self.root / "runs" / run / "results.json").read_text(encoding="utf-8"))

    def tokens(self, run: str) -> list[dict[str, Any]]:
        return _lines(self.root / "runs" / run / "tokens.jsonl")

    def tokenizer(self, name: str) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(self.root / "models" / name))


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


class ReplayModel:
    """A language model that says what the peer's model said; each question is looked up by its text."""

    name = fingerprint = "replay"

    def __init__(self, oracle: Oracle, run: str, encoder: Encoder | None = None) -> None:
        self.work: dict[str, float] = {}
        self.encoder = encoder
        self.pairs: dict[tuple[str, str], tuple[float, bool]] = {}
        self.texts: dict[str, float] = {}
        self.generations: dict[tuple[str, str], list[list[str]]] = {}
        for task in oracle.tasks(run):
            for row in oracle.rows(run, task):
                for arguments, responses in zip(row["arguments"], row["resps"], strict=True):
                    self._learn(arguments, responses)

    def _learn(self, arguments: list[Any], responses: list[Any]) -> None:
        if len(arguments) == 1:
            self.texts[arguments[0]] = responses[0]
        elif isinstance(arguments[1], dict):
            self.generations[arguments[0], json.dumps(arguments[1], sort_keys=True)] = responses
        else:
            self.pairs[arguments[0], arguments[1]] = tuple(responses[0])

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[list[Pair]]:
        return [[Pair(*pair)] for pair in pairs]

    def encode_texts(self, texts: Sequence[str]) -> list[list[Pair]]:
        return [[Pair("<text>", text)] for text in texts]

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        return [Work((i,), 1, piece) for i, piece in enumerate(pieces)]

    def score(self, work: Work) -> list[Score]:
        piece = work.payload
        if piece.context == "<text>":
            return [Score(self.texts[piece.continuation], False)]
        return [Score(*self.pairs[piece.context, piece.continuation])]

    def encode_prompts(self, prompts: Sequence[tuple[str, dict[str, Any], int]]) -> list[Prompt]:
        self.raw = [(text, json.dumps(settings, sort_keys=True), seed) for text, settings, seed in prompts]
        return [Prompt(f"{i}", None, frozen(normalise(settings)), i) for i, (_, settings, _) in enumerate(prompts)]

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        return [Work((i,), 1, self.raw[int(prompt.text)]) for i, prompt in enumerate(prompts)]

    def generate(self, work: Work) -> list[str]:
        text, settings, seed = work.payload
        return [self.generations[text, settings][seed]]

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        assert self.encoder is not None
        return str(
            self.encoder.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )  # fmt: skip
