"""Tiny random models of further families: resampled, tiled and rowed pictures, cross-attention, pictures placed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.models.idefics2.configuration_idefics2 import Idefics2PerceiverConfig, Idefics2VisionConfig
from transformers.models.mllama.configuration_mllama import MllamaTextConfig, MllamaVisionConfig

from tests.harness.engine.tiny_families import CHAT, DIM, PATCH, SIDE, Made, _ident, _text, _tower
from tests.harness.engine.tiny_vlm import make_template, make_tokenizer

SIZES = {"hidden_size": DIM, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SQUARE = {"height": SIDE, "width": SIDE}
BLIP_VISION = {**SIZES, "image_size": SIDE, "patch_size": PATCH}


def _tokenizer(*marks: str) -> Any:
    return make_tokenizer([*CHAT, *marks], "<|im_end|>", "<pad>")


def smolvlm() -> Made:
    pytest.importorskip("num2words", reason="SmolVLM's processor needs num2words")
    tiles = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    tok = _tokenizer("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *tiles)
    limits = {"max_image_size": {"longest_edge": SIDE}}
    images = hf.SmolVLMImageProcessor(size={"longest_edge": 56}, **limits)
    videos = hf.SmolVLMVideoProcessor(size={"longest_edge": SIDE}, **limits)
    processor = hf.SmolVLMProcessor(images, tok, videos, image_seq_len=1, chat_template=make_template("<image>"))
    config = hf.SmolVLMConfig(
        text_config=_text(hf.LlamaConfig, tok), vision_config=_tower(hf.SmolVLMVisionConfig, initializer_range=0.2),
        image_token_id=_ident(tok, "<image>"), scale_factor=2,
    )  # fmt: skip
    return hf.SmolVLMForConditionalGeneration(config), processor


def idefics2() -> Made:
    tok = _tokenizer("<fake_token_around_image>", "<image>", "<end_of_utterance>")
    images = hf.Idefics2ImageProcessor(size={"shortest_edge": SIDE, "longest_edge": 56}, do_image_splitting=False)
    processor = hf.Idefics2Processor(images, tok, image_seq_len=4, chat_template=make_template("<image>"))
    resampler = Idefics2PerceiverConfig(
        hidden_size=DIM, resampler_n_latents=4, resampler_depth=1, resampler_n_heads=2, resampler_head_dim=16,
        num_key_value_heads=1,
    )  # fmt: skip
    config = hf.Idefics2Config(
        text_config=_text(hf.MistralConfig, tok), vision_config=_tower(Idefics2VisionConfig, 56, initializer_range=0.2),
        perceiver_config=resampler, image_token_id=_ident(tok, "<image>"),
    )  # fmt: skip
    return hf.Idefics2ForConditionalGeneration(config), processor


def _rows(tok: Any, merge: int) -> Any:
    side = {"height": PATCH * merge, "width": PATCH * merge}
    images = hf.PixtralImageProcessor(size={"longest_edge": 56}, patch_size=side)
    return hf.PixtralProcessor(
        images, tok, patch_size=PATCH, spatial_merge_size=merge, chat_template=make_template("[IMG]")
    )  # fmt: skip


def _rowed(kind: str, merge: int, **more: Any) -> Made:
    tok = _tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    config = getattr(hf, f"{kind}Config")(
        text_config=_text(hf.MistralConfig, tok), image_token_index=_ident(tok, "[IMG]"), vision_feature_layer=-1,
        vision_config=hf.PixtralVisionConfig(**SIZES, image_size=56, patch_size=PATCH), **more,
    )  # fmt: skip
    return getattr(hf, f"{kind}ForConditionalGeneration")(config), _rows(tok, merge)


def pixtral() -> Made:
    return _rowed("Llava", 1, vision_feature_select_strategy="full")


def mistral3() -> Made:
    return _rowed("Mistral3", 2, spatial_merge_size=2)


def aya_vision() -> Made:
    marks = ("START_OF_IMG", "END_OF_IMG", "IMG_PATCH", "IMG_LINE_BREAK")
    tok = _tokenizer("<image>", *(f"<|{mark}|>" for mark in marks), "TILE", "TILE_GLOBAL")
    images = hf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=4)
    processor = hf.AyaVisionProcessor(
        images, tok, patch_size=PATCH, img_size=SIDE, downsample_factor=2, chat_template=make_template("<image>")
    )  # fmt: skip
    config = hf.AyaVisionConfig(
        text_config=_text(hf.Cohere2Config, tok, sliding_window=16), vision_config=_tower(hf.SiglipVisionConfig),
        image_token_index=_ident(tok, "<|IMG_PATCH|>"), downsample_factor=2, adapter_layer_norm_eps=1e-6,
        vision_feature_layer=-1,
    )  # fmt: skip
    return hf.AyaVisionForConditionalGeneration(config), processor


def mllama() -> Made:
    tok = _tokenizer("<|image|>", "<|bos|>")
    tok.bos_token = "<|bos|>"
    images = hf.MllamaImageProcessor(size=SQUARE, max_image_tiles=2)
    processor = hf.MllamaProcessor(images, tok, chat_template=make_template("<|image|>"))
    text = MllamaTextConfig(
        vocab_size=len(tok) - 1, hidden_size=DIM, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=tok.bos_token_id,
        eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id, cross_attention_layers=[1],
        initializer_range=0.2, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    vision = MllamaVisionConfig(
        hidden_size=DIM, intermediate_size=64, num_hidden_layers=2, num_global_layers=1, attention_heads=4,
        image_size=SIDE, patch_size=PATCH, vision_output_dim=DIM * 2, intermediate_layers_indices=[1],
        max_num_tiles=2, supported_aspect_ratios=[[1, 1], [1, 2], [2, 1]],
    )  # fmt: skip
    config = hf.MllamaConfig(text_config=text, vision_config=vision, image_token_index=_ident(tok, "<|image|>"))
    model = hf.MllamaForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if "gate" in name and parameter.numel() == 1:
            parameter.data.fill_(0.7)
    return model, processor


def paligemma() -> Made:
    tok = make_tokenizer(["<pad>", "<bos>", "<|im_end|>", "<image>"], "<|im_end|>", "<pad>")
    tok.bos_token, tok.image_token, tok.image_token_id = "<bos>", "<image>", _ident(tok, "<image>")
    images = hf.SiglipImageProcessor(size=SQUARE)
    images.image_seq_length = 4
    text = _text(hf.GemmaConfig, tok, head_dim=8)
    text.vocab_size = len(tok) + 1300
    config = hf.PaliGemmaConfig(
        text_config=text, vision_config=_tower(hf.SiglipVisionConfig), image_token_index=tok.image_token_id,
        projection_dim=DIM,
    )  # fmt: skip
    return hf.PaliGemmaForConditionalGeneration(config), hf.PaliGemmaProcessor(images, tok)


def _query(words: int) -> dict[str, Any]:
    return {**SIZES, "vocab_size": words, "encoder_hidden_size": DIM, "cross_attention_frequency": 1}


def blip2() -> Made:
    tok = _tokenizer("<image>")
    processor = hf.Blip2Processor(hf.BlipImageProcessor(size=SQUARE), tok, num_query_tokens=4)
    text = hf.OPTConfig(
        vocab_size=len(tok) + 1, hidden_size=DIM, word_embed_proj_dim=DIM, ffn_dim=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=512, eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id, bos_token_id=tok.eos_token_id, init_std=0.2,
    )  # fmt: skip
    config = hf.Blip2Config(
        vision_config=BLIP_VISION, qformer_config=_query(300), text_config=text, num_query_tokens=4,
        image_text_hidden_size=DIM, image_token_index=_ident(processor.tokenizer, "<image>"),
    )  # fmt: skip
    return hf.Blip2ForConditionalGeneration(config), processor


def instructblip() -> Made:
    tok, words = _tokenizer("<image>"), _tokenizer()
    processor = hf.InstructBlipProcessor(hf.BlipImageProcessor(size=SQUARE), tok, words, num_query_tokens=4)
    config = hf.InstructBlipConfig(
        vision_config=BLIP_VISION, qformer_config=_query(len(words)), text_config=_text(hf.LlamaConfig, tok),
        num_query_tokens=4, image_token_index=_ident(processor.tokenizer, "<image>"),
    )  # fmt: skip
    return hf.InstructBlipForConditionalGeneration(config), processor


def kosmos2() -> Made:
    pairs = [f"<{slash}{name}>" for name in ("image", "phrase", "object") for slash in ("", "/")]
    lines = ["</delimiter_of_multi_objects/>", "</doc>", "</chunk>", "</line>", "<grounding>"]
    tok = _tokenizer("<s>", *pairs, *lines, *(f"<patch_index_{i:04d}>" for i in range(4)))
    tok.bos_token, tok.unk_token = "<s>", "<pad>"
    images = hf.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=SQUARE)
    text = {
        "vocab_size": len(tok), "max_position_embeddings": 512, "embed_dim": DIM, "layers": 2, "ffn_dim": 64,
        "attention_heads": 4, "eos_token_id": tok.eos_token_id, "pad_token_id": tok.pad_token_id,
        "bos_token_id": tok.bos_token_id, "init_std": 0.2,
    }  # fmt: skip
    config = hf.Kosmos2Config(text_config=text, vision_config=BLIP_VISION, latent_query_num=64)
    return hf.Kosmos2ForConditionalGeneration(config), hf.Kosmos2Processor(images, tok, num_patch_index_tokens=4)


CHATTING = {made.__name__: made for made in (smolvlm, idefics2, pixtral, mistral3, aya_vision, mllama)}
"""Families whose processors take several pictures, or none."""

ONE_PICTURE = {made.__name__: made for made in (paligemma, blip2, instructblip, kosmos2)}
"""Families whose processors put one picture before the text and need it."""


def ready(make: Callable[[], Made]) -> Made:
    """Model and processor, seeded and ready to write."""
    torch.manual_seed(0)
    model, processor = make()
    tok = processor.tokenizer
    model.generation_config = hf.GenerationConfig(eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id)
    return model.float().eval(), processor
