"""Records what lm_eval 0.4.13 says of made-up responses to real prompts of IFEval (Apache-2.0).

    python make_ifeval.py input_data.jsonl ifeval.json

Sentences and tokens are counted with our own rules on both sides, since nltk's model is not at hand offline. Prompts that
count a sign other than a letter are left out: lm_eval counts a random letter in its place.
"""

from __future__ import annotations

import json
import random
import sys
import types
from pathlib import Path
from typing import Any

import nltk

from fusion_eval.harness import instruction_text

nltk.data.find = nltk.download = lambda *given, **options: True
import langdetect
from lm_eval.tasks.ifeval import instructions_util, utils

WORDS = [
    "the",
    "of",
    "Time",
    "river,",
    "Paris.",
    "HELLO",
    "yes",
    "no?",
    "*",
    "-",
    "[x]",
    "[name]",
    "**",
    "*bold text*",
    "**strong**",
    "<<A title>>",
    "P.S.",
    "p.p.s.",
    "P.P.S",
    "\n",
    "\n\n",
    "***",
    "******",
    '{"a": 1}',
    "```json",
    "```",
    "Section 1",
    "Day 3",
    "* item\n",
    "- item\n",
    '"quoted"',
    "My answer is yes.",
    "Mr. Smith went.",
]
MARKS = {
    "detectable_format:number_bullet_lists": "\n* b", "detectable_format:number_highlighted_sections": " *h*",
    "length_constraints:number_paragraphs": " *** para", "detectable_content:number_placeholders": " [p]",
}  # fmt: skip
TURNED: dict[str, Any] = {
    "combination:two_responses": lambda text, given: f"{text}******other",
    "startend:quotation": lambda text, given: f'"{text}"',
    "change_case:english_capital": lambda text, given: text.upper(),
    "change_case:english_lowercase": lambda text, given: text.lower(),
    "detectable_format:json_format": lambda text, given: '```json\n{"a": [1]}\n```',
    "punctuation:no_comma": lambda text, given: text.replace(",", ""),
    "length_constraints:nth_paragraph_first_word": lambda text, given: "\n\n".join(
        f'"{given["first_word"].title()}, x' if n == given["nth_paragraph"] else "para"
        for n in range(1, given["num_paragraphs"] + 1)
    ),
}


def response(doc: dict[str, Any], r: random.Random) -> str:
    text = " ".join(r.choice(WORDS) for _ in range(r.randint(1, 40)))
    for kind, given in zip(doc["instruction_id_list"], doc["kwargs"], strict=True):
        if r.random() < 0.3:
            continue
        for value in given.values():
            text = f"{text} {value}" if isinstance(value, str) else text
            text = " ".join(value) + text if isinstance(value, list) else text
        text += MARKS.get(kind, "") * next((v for v in given.values() if isinstance(v, int)), 2)
        text = TURNED.get(kind, lambda own, _: own)(text, given)
    return r.choice(["", " \n", "!!! ???"]) if r.random() < 0.03 else text


def main(source: Path, target: Path) -> None:
    langdetect.DetectorFactory.seed = 0
    tokenizer = types.SimpleNamespace(tokenize=instruction_text.sentences)
    instructions_util._get_sentence_tokenizer = lambda: tokenizer
    nltk.word_tokenize = instruction_text.tokens
    r = random.Random(0)
    rows = []
    for line in source.read_text(encoding="utf-8").splitlines():
        doc = json.loads(line)
        if any(not given.get("letter", "a").isalpha() for given in doc["kwargs"]) or r.random() < 0.6:
            continue
        text = response(doc, r)
        asked = utils.InputExample(doc["key"], doc["instruction_id_list"], doc["prompt"], doc["kwargs"])
        row = {"kinds": doc["instruction_id_list"], "given": doc["kwargs"], "response": text}
        for name in ("strict", "loose"):
            found = getattr(utils, f"test_instruction_following_{name}")(asked, text)
            row[name] = [bool(value) for value in found.follow_instruction_list]
        rows.append(row)
    target.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
