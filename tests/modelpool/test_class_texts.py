"""How texts are padded is found from what the tower does with padding, whatever the model is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fusion_eval.modelpool.class_texts import ClassTexts, class_embeddings, encoding
from fusion_eval.modelpool.clip_classnames import ClassPrompts

CONTEXT = 8
TABLE = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))


class Words:
    """A tokenizer of single letters, with a mark at the end and a pad of its own."""

    all_special_ids = (0, 1)

    def __init__(self, side: str = "right", context: int = CONTEXT, masks: bool = True) -> None:
        self.padding_side, self.model_max_length, self.masks = side, context, masks

    def __call__(self, texts: list[str], padding: Any = False, max_length: int = 99, **_: Any) -> dict[str, Tensor]:
        rows = [[*(2 + ord(letter) % 30 for letter in text), 1][:max_length] for text in texts]
        size = max_length if padding == "max_length" else max(map(len, rows))
        blanks = [[0] * (size - len(row)) for row in rows]
        left = self.padding_side == "left"
        ids = [blank + row if left else row + blank for row, blank in zip(rows, blanks, strict=True)]
        tokens = torch.tensor(ids)
        return {"input_ids": tokens, **({"attention_mask": (tokens != 0).long()} if self.masks else {})}


def masked_mean(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    return (TABLE[input_ids] * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)


def at_the_end_mark(input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    ends = (input_ids == 1).int().argmax(1)
    return torch.stack([TABLE[row[: end + 1]].sum(0) for row, end in zip(input_ids, ends, strict=True)])


def last_position(input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    return TABLE[input_ids[:, -1]] + TABLE[input_ids].mean(1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("tower", "masks"), [(masked_mean, True), (at_the_end_mark, False)])
def test_padding_that_is_not_looked_at_is_short(tower: Any, masks: bool, side: str) -> None:
    if tower is at_the_end_mark and side == "left":
        pytest.skip("a causal tower is padded on the right")
    encode = encoding(Words(side, masks=masks), CONTEXT, tower)
    assert encode(["ab", "abcd"])["input_ids"].shape == (2, 5)
    assert ("attention_mask" in encode(["ab"])) == masks


@pytest.mark.parametrize("masks", [True, False])
def test_padding_that_is_looked_at_fills_the_context_and_has_no_mask(masks: bool) -> None:
    tokens = encoding(Words(masks=masks), CONTEXT, last_position)(["ab", "abcd"])
    assert tokens["input_ids"].shape == (2, CONTEXT)
    assert set(tokens) == {"input_ids"}


@pytest.mark.parametrize(("context", "longest"), [(CONTEXT, 10**30), (99, CONTEXT)])
def test_no_text_is_longer_than_tower_and_tokenizer_allow(context: int, longest: int) -> None:
    encode = encoding(Words(context=longest), context, masked_mean)
    assert encode(["abcdefghijklm"])["input_ids"].shape == (1, CONTEXT)


def test_embeddings_are_the_mean_of_the_prompts() -> None:
    prompts = ClassPrompts(("ab", "c"), ("{}", "x{}"))
    found = class_embeddings(prompts, encoding(Words(), CONTEXT, masked_mean), masked_mean)
    unit = torch.nn.functional.normalize
    each = [unit(masked_mean(**Words()([text])), dim=-1)[0] for text in ("ab", "xab", "c", "xc")]
    expected = unit(torch.stack([(each[0] + each[1]) / 2, (each[2] + each[3]) / 2]), dim=-1)
    torch.testing.assert_close(found, expected)


def test_tasks_without_names_are_faults() -> None:
    texts = ClassTexts({"mine": ["a", "b"]}, {"other": ["no place"]})
    assert texts.prompts("mine").classes == ("a", "b")
    assert [fault.found for fault in texts.faults(["mine", "unheard of"])] == ["no class names"]


def test_a_real_tower_of_each_kind(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 40, "max_position_embeddings": CONTEXT, "projection_size": 16, "projection_dim": 16}
    marks = {"bos_token_id": 3, "eos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(0)
    clip = transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(**text, **marks)).eval()
    siglip = transformers.SiglipTextModel(transformers.SiglipTextConfig(**text, **marks)).eval()
    towers = SimpleNamespace(
        clip=lambda **tokens: clip(**tokens).text_embeds, siglip=lambda **tokens: siglip(**tokens).pooler_output
    )
    assert encoding(Words(), CONTEXT, towers.clip)(["ab"])["input_ids"].shape == (1, 3)
    assert encoding(Words(), CONTEXT, towers.siglip)(["ab"])["input_ids"].shape == (1, CONTEXT)
