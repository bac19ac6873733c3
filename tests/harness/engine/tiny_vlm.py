"""Tiny models that see, with random weights: a Llava (one token per patch) and a Qwen2-VL (positions in three axes)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from PIL import Image

from fusion_eval.harness.media import Conversation, Media, digest_of

_WORDS = [
    "What is the color of the shape?",
    "USER: ASSISTANT:",
    "user assistant system\n",
    "red green blue yes no A B C",
]


def make_tokenizer(specials: list[str], end: str, pad: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        _WORDS * 4,
        trainers.BpeTrainer(vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end, pad_token=pad, padding_side="left")


def make_template(slot: str, video: str = "") -> str:
    parts = (
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}" + slot
        + "{% elif part['type'] == 'video' %}" + video + "{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    )  # fmt: skip
    return (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n" + parts + "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


@functools.cache
def tiny_llava(seed: int = 0) -> tuple[Any, Any]:
    """Model and processor."""
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tokenizer = make_tokenizer(["<pad>", "<|im_start|>", "<|im_end|>", "<image>"], "<|im_end|>", "<pad>")
    side, patch, dim = 28, 14, 32
    size = {"height": side, "width": side}
    images = CLIPImageProcessor(size={"shortest_edge": side}, crop_size=size)
    processor = LlavaProcessor(
        images, tokenizer, patch_size=patch, num_additional_image_tokens=1, vision_feature_select_strategy="default",
        chat_template=make_template("<image>\n"),
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=dim, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, initializer_range=0.2,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=dim, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=side,
        patch_size=patch, projection_dim=dim,
    )  # fmt: skip
    config = LlavaConfig(
        text_config=text, vision_config=vision, vision_feature_layer=-1,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"), image_seq_length=4,
    )  # fmt: skip
    return _seeded(LlavaForConditionalGeneration, config, tokenizer, seed), processor


@functools.cache
def tiny_qwen2_vl(seed: int = 0) -> tuple[Any, Any]:
    """Model and processor."""
    from transformers import (
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen2VLImageProcessor,
        Qwen2VLProcessor,
        Qwen2VLVideoProcessor,
    )

    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    tokenizer = make_tokenizer([*names, "<|video_pad|>"], "<|im_end|>", "<|endoftext|>")
    ident = tokenizer.convert_tokens_to_ids
    pixels = {"min_pixels": 28 * 28, "max_pixels": 84 * 84}
    slot = "<|vision_start|><|{}_pad|><|vision_end|>"
    processor = Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels), tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(**pixels),
        chat_template=make_template(slot.format("image"), slot.format("video")),
    )  # fmt: skip
    dim = 32
    text = {
        "vocab_size": len(tokenizer), "hidden_size": dim, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512, "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "initializer_range": 0.2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
    }  # fmt: skip
    vision = {
        "depth": 2, "embed_dim": dim, "hidden_size": dim, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
        "initializer_range": 0.2,
    }  # fmt: skip
    config = Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=ident("<|image_pad|>"),
        video_token_id=ident("<|video_pad|>"), vision_start_token_id=ident("<|vision_start|>"),
        vision_end_token_id=ident("<|vision_end|>"),
    )  # fmt: skip
    return _seeded(Qwen2VLForConditionalGeneration, config, tokenizer, seed), processor


def _seeded(kind: Any, config: Any, tokenizer: Any, seed: int) -> Any:
    from transformers import GenerationConfig

    torch.manual_seed(seed)
    model = kind(config).float().eval()
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(**ids)
    return model


def picture(number: int, width: int = 40, height: int = 56) -> Media:
    """A picture of noise, of its own for every number."""
    values = np.random.default_rng(number).integers(0, 255, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(values)
    return Media("image", digest_of(image.tobytes(), image.mode, image.size), image)


def questions(count: int = 12) -> list[Conversation]:
    """Questions of many lengths about one, two or no pictures; every third shares its picture with the one before."""
    asked = []
    for i in range(count):
        text = "What is the color of the shape?" + " And why is it so?" * (i % 4)
        shown = [picture(i - 1 if i % 3 == 2 else i, 40 + 30 * (i % 2))]
        if i % 5 == 3:
            shown.append(picture(100 + i, 70, 30))
        asked.append(Conversation.ask([] if i % 7 == 6 else shown, text, "Be brief." if i % 4 == 1 else None))
    return asked
