"""Tiny random models of families that see in other ways: tiles, deep features, windows, typed tokens."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from tests.harness.engine.tiny_vlm import make_template, make_tokenizer

DIM, SIDE, PATCH = 32, 28, 14
CHAT = ["<pad>", "<|im_start|>", "<|im_end|>"]
GRID = [[28, 56], [56, 28], [56, 56]]
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
QWEN_SLOT = "<|vision_start|><|{}_pad|><|vision_end|>"
Made = tuple[Any, Any]


def _text(kind: Any, tok: Any, **more: Any) -> Any:
    return kind(
        vocab_size=len(tok), hidden_size=DIM, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=None, eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id, initializer_range=0.2, **more,
    )  # fmt: skip


def _tower(kind: Any, side: int = SIDE, **more: Any) -> Any:
    sizes = {"hidden_size": DIM, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return kind(**sizes, image_size=side, patch_size=PATCH, **more)


def _ident(tok: Any, mark: str) -> int:
    return int(tok.convert_tokens_to_ids(mark))


def llava_next() -> Made:
    tok = make_tokenizer([*CHAT, "<image>"], "<|im_end|>", "<pad>")
    size = {"height": SIDE, "width": SIDE}
    images = hf.LlavaNextImageProcessor(size={"shortest_edge": SIDE}, crop_size=size, image_grid_pinpoints=GRID)
    processor = hf.LlavaNextProcessor(
        images, tok, patch_size=PATCH, num_additional_image_tokens=1, vision_feature_select_strategy="default",
        chat_template=make_template("<image>\n"),
    )  # fmt: skip
    config = hf.LlavaNextConfig(
        text_config=_text(hf.LlamaConfig, tok), vision_config=_tower(hf.CLIPVisionConfig, projection_dim=DIM),
        image_grid_pinpoints=GRID, image_token_index=_ident(tok, "<image>"), vision_feature_layer=-1,
    )  # fmt: skip
    return hf.LlavaNextForConditionalGeneration(config), processor


def llava_onevision() -> Made:
    tok = make_tokenizer([*CHAT, "<image>", "<video>"], "<|im_end|>", "<pad>")
    size = {"height": SIDE, "width": SIDE}
    processor = hf.LlavaOnevisionProcessor(
        hf.LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=GRID), tok,
        hf.LlavaOnevisionVideoProcessor(size=size), num_image_tokens=4, vision_feature_select_strategy="full",
        chat_template=make_template("<image>\n", "<video>\n"),
    )  # fmt: skip
    config = hf.LlavaOnevisionConfig(
        text_config=_text(hf.Qwen2Config, tok), vision_config=_tower(hf.SiglipVisionConfig), image_grid_pinpoints=GRID,
        image_token_index=_ident(tok, "<image>"), video_token_index=_ident(tok, "<video>"), vision_feature_layer=-1,
        vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_9",
    )  # fmt: skip
    return hf.LlavaOnevisionForConditionalGeneration(config), processor


def _qwen_tokenizer() -> Any:
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    marks += [f"<|{name}|>" for name in ("vision_start", "vision_end", "image_pad", "video_pad")]
    return make_tokenizer(marks, "<|im_end|>", "<|endoftext|>")


def _qwen(kind: str, image: Any, video: Any, text: dict[str, Any], vision: dict[str, Any]) -> Made:
    tok = _qwen_tokenizer()
    marks = ("image_pad", "video_pad", "vision_start", "vision_end")
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = {name: _ident(tok, f"<|{mark}|>") for name, mark in zip(names, marks, strict=True)}
    chat = make_template(QWEN_SLOT.format("image"), QWEN_SLOT.format("video"))
    processor = getattr(hf, f"{kind}Processor")(image, tok, video, chat_template=chat)
    text_config = _text(dict, tok, rope_parameters=ROPE, **text)
    vision_config = {
        "hidden_size": DIM, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": DIM, "initializer_range": 0.2,
        **vision,
    }  # fmt: skip
    config = getattr(hf, f"{kind}Config")(text_config=text_config, vision_config=vision_config, **ids)
    return getattr(hf, f"{kind}ForConditionalGeneration")(config), processor


def qwen2_5_vl() -> Made:
    pixels = {"min_pixels": 28 * 28, "max_pixels": 84 * 84}
    return _qwen(
        "Qwen2_5_VL", hf.Qwen2VLImageProcessor(**pixels), hf.Qwen2VLVideoProcessor(**pixels), {},
        {"depth": 2, "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]},
    )  # fmt: skip


def qwen3_vl() -> Made:
    images = hf.Qwen2VLImageProcessor(patch_size=16, merge_size=2, min_pixels=32 * 32, max_pixels=96 * 96)
    vision = {"depth": 3, "patch_size": 16, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
    return _qwen("Qwen3VL", images, hf.Qwen3VLVideoProcessor(), {"head_dim": 8}, vision)


def internvl() -> Made:
    tok = make_tokenizer([*CHAT, "<img>", "</img>", "<IMG_CONTEXT>", "<video>"], "<|im_end|>", "<pad>")
    parts = {"start_image": "<img>", "end_image": "</img>", "context_image": "<IMG_CONTEXT>", "video": "<video>"}
    for name, mark in parts.items():
        setattr(tok, f"{name}_token", mark)
        setattr(tok, f"{name}_token_id", _ident(tok, mark))
    size = {"height": SIDE, "width": SIDE}
    images = hf.GotOcr2ImageProcessor(size=size, crop_to_patches=True, min_patches=1, max_patches=4)
    processor = hf.InternVLProcessor(
        images, tok, hf.InternVLVideoProcessor(size=size), image_seq_length=1,
        chat_template=make_template("<IMG_CONTEXT>\n", "<video>\n"),
    )  # fmt: skip
    sizes = {"hidden_size": DIM, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = hf.InternVLVisionConfig(**sizes, image_size=[SIDE, SIDE], patch_size=[PATCH, PATCH])
    config = hf.InternVLConfig(
        text_config=_text(hf.Qwen2Config, tok), vision_config=vision, image_token_id=_ident(tok, "<IMG_CONTEXT>"),
        image_seq_length=1,
    )  # fmt: skip
    return hf.InternVLForConditionalGeneration(config), processor


def idefics3() -> Made:
    tiles = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    marks = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *tiles]
    tok = make_tokenizer([*CHAT, *marks], "<|im_end|>", "<pad>")
    images = hf.Idefics3ImageProcessor(size={"longest_edge": 56}, max_image_size={"longest_edge": SIDE})
    processor = hf.Idefics3Processor(images, tok, image_seq_len=1, chat_template=make_template("<image>"))
    config = hf.Idefics3Config(
        text_config=_text(hf.LlamaConfig, tok), vision_config=_tower(hf.Idefics3VisionConfig, initializer_range=0.2),
        image_token_id=_ident(tok, "<image>"), scale_factor=2,
    )  # fmt: skip
    return hf.Idefics3ForConditionalGeneration(config), processor


def gemma3() -> Made:
    parts = {"boi": "<start_of_image>", "eoi": "<end_of_image>", "image": "<image_soft_token>"}
    tok = make_tokenizer([*CHAT, *parts.values()], "<|im_end|>", "<pad>")
    for name, mark in parts.items():
        setattr(tok, f"{name}_token", mark)
        setattr(tok, f"{name}_token_id", _ident(tok, mark))
    images = hf.Gemma3ImageProcessor(size={"height": 56, "width": 56})
    processor = hf.Gemma3Processor(
        images, tok, chat_template=make_template("<start_of_image>"), image_seq_length=4
    )  # fmt: skip
    config = hf.Gemma3Config(
        text_config=_text(hf.Gemma3TextConfig, tok, head_dim=8, sliding_window=16),
        vision_config=_tower(hf.SiglipVisionConfig, 56), mm_tokens_per_image=4,
        image_token_index=_ident(tok, parts["image"]), boi_token_index=_ident(tok, parts["boi"]),
        eoi_token_index=_ident(tok, parts["eoi"]),
    )  # fmt: skip
    return hf.Gemma3ForConditionalGeneration(config), processor


FAMILIES = {
    made.__name__: made
    for made in (llava_next, llava_onevision, qwen2_5_vl, qwen3_vl, internvl, idefics3, gemma3)
}  # fmt: skip


def family(name: str) -> Made:
    """Model and processor, seeded and ready to write."""
    torch.manual_seed(0)
    model, processor = FAMILIES[name]()
    tok = processor.tokenizer
    model.generation_config = hf.GenerationConfig(eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id)
    return model.float().eval(), processor
