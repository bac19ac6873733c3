"""Tiny random models in the real folder layouts, made on the spot: seeded, offline, well under a second.

``variant=0`` is the base; each other variant is the base plus small seeded noise, so that variants form a merge pool.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

__all__ = ["TinyConvNet", "tiny_bert", "tiny_clip", "tiny_convnet", "tiny_llama"]

Model = TypeVar("Model", bound=nn.Module)

BASE_SEED = 1234
DRIFT = 0.05
IMAGE_SIZE = 16
CLIP_CONTEXT = 77
TEXT_CONTEXT = 128
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"


def tiny_clip(folder: str | Path, variant: int = 0) -> Path:
    """Saves a CLIP (60,641 weights, 16 x 16 images, projection 16) and returns its folder.

    ``CLIPModel``, ``CLIPVisionModel``, ``CLIPTextModel`` and ``CLIPProcessor`` load from it by ``from_pretrained``.
    """
    folder = Path(folder)
    vocabulary = _save_clip_tokenizer(folder, CLIP_CONTEXT)
    crop = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    CLIPImageProcessor(size={"shortest_edge": IMAGE_SIZE}, crop_size=crop).save_pretrained(folder)
    _seeded(lambda: CLIPModel(_clip_config(vocabulary)), variant).save_pretrained(folder)
    return folder


def tiny_bert(folder: str | Path, variant: int = 0, num_labels: int = 2) -> Path:
    """Saves a sequence classifier with its tokenizer and returns its folder."""
    folder = Path(folder)
    config = BertConfig(
        vocab_size=_save_bert_tokenizer(folder, TEXT_CONTEXT),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=TEXT_CONTEXT,
        num_labels=num_labels,
    )
    _seeded(lambda: BertForSequenceClassification(config), variant).save_pretrained(folder)
    return folder


def tiny_llama(folder: str | Path, variant: int = 0, tied: bool = False) -> Path:
    """Saves a causal language model (grouped-query attention) with a byte-level tokenizer and returns its folder."""
    folder = Path(folder)
    config = LlamaConfig(
        vocab_size=_save_byte_tokenizer(folder, TEXT_CONTEXT),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=TEXT_CONTEXT,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=tied,
    )
    _seeded(lambda: LlamaForCausalLM(config), variant).save_pretrained(folder)
    return folder


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.bn1(self.conv1(images)))
        return F.relu(self.bn2(self.conv2(hidden)) + self.downsample(images))


class TinyConvNet(nn.Module):
    """Images (N, channels, H, W) -> logits (N, num_classes), with the names of torchvision's ResNet."""

    def __init__(self, channels: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = _Residual(8, 8, stride=1)
        self.layer2 = _Residual(8, 16, stride=2)
        self.fc = nn.Linear(16, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.bn1(self.conv1(images)))
        return self.fc(self.layer2(self.layer1(hidden)).mean((2, 3)))


def tiny_convnet(variant: int = 0, channels: int = 3, num_classes: int = 10) -> TinyConvNet:
    """A seeded network whose BatchNorm statistics come from seeded noise images, not from their defaults."""
    model = _seeded(lambda: TinyConvNet(channels, num_classes), variant)
    generator = torch.Generator().manual_seed(variant)
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.rand(16, channels, 8, 8, generator=generator))
    return model.eval()


def _clip_config(vocabulary: int) -> CLIPConfig:
    tower = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "projection_dim": 16,
    }
    ends = {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1, "pad_token_id": vocabulary - 1}
    return CLIPConfig(
        text_config={**tower, **ends, "vocab_size": vocabulary, "max_position_embeddings": CLIP_CONTEXT},
        vision_config={**tower, "image_size": IMAGE_SIZE, "patch_size": 8},
        projection_dim=16,
    )


def _seeded(build: Callable[[], Model], variant: int) -> Model:
    """The base built under a fixed seed; for another variant each weight moves by 5 % of its tensor's spread."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(BASE_SEED)
        model = build()
    if variant:
        generator = torch.Generator().manual_seed(BASE_SEED + variant)
        with torch.no_grad():
            for _, weight in sorted(model.named_parameters()):
                spread = weight.std(correction=0).clamp(min=0.02)
                weight.add_(DRIFT * spread * torch.randn(weight.shape, generator=generator))
    return model.eval()


def _save_clip_tokenizer(folder: Path, context: int) -> int:
    """Saves a CLIP tokenizer of single letters; returns the size of its vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(letter + "</w>" for letter in alphabet), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: index for index, word in enumerate(words)}
    CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=context).save_pretrained(folder)
    return len(words)


def _save_bert_tokenizer(folder: Path, context: int) -> int:
    """Saves a WordPiece tokenizer of single letters; returns the size of its vocabulary."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *("##" + letter for letter in LETTERS)]
    vocabulary = {word: index for index, word in enumerate(words)}
    BertTokenizer(vocab=vocabulary, model_max_length=context).save_pretrained(folder)
    return len(words)


def _save_byte_tokenizer(folder: Path, context: int) -> int:
    """Saves a byte-level tokenizer with <s>, </s> and <pad>; returns the size of its vocabulary."""
    words = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=context
    ).save_pretrained(folder)
    return len(words)
