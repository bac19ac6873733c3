"""Vision-language models of a few hundred thousand bytes on disk, and language models like those inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)

WIDTH, SIDE, PATCH = 32, 28, 14
PLAIN = ("<pad>", "<|im_start|>", "<|im_end|>")
TEXT = {
    "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": None,
}  # fmt: skip


def tiny_llava(folder: str | Path, variant: int = 0) -> Path:
    """Saves a Llava of a CLIP tower and a Llama; variants differ a little, as fine-tunes of one model do."""
    tok = byte_tokenizer((*PLAIN, "<image>"))
    text = LlamaConfig(**TEXT, vocab_size=len(tok), **_ends(tok))
    vision = CLIPVisionConfig(
        hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2, num_attention_heads=4,
        image_size=SIDE, patch_size=PATCH, projection_dim=WIDTH,
    )  # fmt: skip
    config = LlavaConfig(
        text_config=text, vision_config=vision, vision_feature_layer=-1,
        image_token_index=tok.convert_tokens_to_ids("<image>"), image_seq_length=(SIDE // PATCH) ** 2,
    )  # fmt: skip
    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size)
    processor = LlavaProcessor(
        image_processor=images, tokenizer=tok, patch_size=PATCH, num_additional_image_tokens=1,
        vision_feature_select_strategy="default", chat_template=_chat("<image>\n"),
    )  # fmt: skip
    return _saved(LlavaForConditionalGeneration(config), processor, folder, variant)


def tiny_qwen2_vl(folder: str | Path, variant: int = 0) -> Path:
    """Saves a Qwen2-VL; variants differ a little."""
    marks = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    tok = byte_tokenizer((*PLAIN, *marks))
    start, end, image, video = (tok.convert_tokens_to_ids(mark) for mark in marks)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    config = Qwen2VLConfig(
        text_config={**TEXT, "vocab_size": len(tok), "rope_parameters": rope, **_ends(tok)},
        vision_config={"depth": 2, "embed_dim": WIDTH, "hidden_size": WIDTH, "num_heads": 4, "mlp_ratio": 2},
        image_token_id=image, video_token_id=video, vision_start_token_id=start, vision_end_token_id=end,
    )  # fmt: skip
    pixels = {"min_pixels": SIDE * SIDE, "max_pixels": 16 * SIDE * SIDE}
    processor = Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels), tokenizer=tok,
        video_processor=Qwen2VLVideoProcessor(**pixels),
        chat_template=_chat("<|vision_start|><|image_pad|><|vision_end|>"),
    )  # fmt: skip
    return _saved(Qwen2VLForConditionalGeneration(config), processor, folder, variant)


def tiny_text(folder: str | Path, family: str = "llama", variant: int = 1, **config: Any) -> Path:
    """Saves a language model of the kind inside `tiny_llava` ("llama") or `tiny_qwen2_vl` ("qwen2")."""
    tok = byte_tokenizer(config.pop("specials", PLAIN))
    values = {**TEXT, "vocab_size": len(tok), **_ends(tok), **config}
    llama = family == "llama"
    _seed(0)
    model = LlamaForCausalLM(LlamaConfig(**values)) if llama else Qwen2ForCausalLM(Qwen2Config(**values))
    return _saved(model, tok, folder, variant)


def byte_tokenizer(specials: tuple[str, ...]) -> Any:
    """A token per byte, and the special ones after them; the first pads, the third ends a turn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(specials))
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<|im_end|>", padding_side="left",
        additional_special_tokens=[token for token in specials if token not in ("<pad>", "<|im_end|>")],
    )  # fmt: skip


def _ends(tok: Any) -> dict[str, int]:
    return {"eos_token_id": tok.eos_token_id, "pad_token_id": tok.pad_token_id}


def _seed(variant: int) -> None:
    torch.manual_seed(variant)


def _saved(model: Any, processor: Any, folder: str | Path, variant: int) -> Path:
    """Initial weights by a seed that all variants share, and a little noise of the variant's own."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.Generator().manual_seed(variant)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            base = torch.zeros(parameter.shape) if name.endswith("bias") else torch.ones(parameter.shape)
            if parameter.dim() > 1:
                base = torch.randn(parameter.shape, generator=generator) * 0.05
            parameter.copy_(base + (0.005 * torch.randn(parameter.shape, generator=noise) if variant else 0))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return Path(folder)


def _chat(slot: str) -> str:
    part = "{% if c['type'] == 'image' %}" + slot + "{% else %}{{ c['text'] }}{% endif %}"
    return (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}"
        "{% else %}{% for c in m['content'] %}" + part + "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
