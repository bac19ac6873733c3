"""Eight views of real handwritten digits, the encoder they share and one frozen head per view.

The benchmark has the shape of CLIP merging: every task (view) uses the same encoder, only the encoder is fine-tuned,
and a frozen head per task maps its features to ten logits. Everything is read from the safetensors files beside this
module, which ``scripts/train_digits_experts`` writes; scikit-learn is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from fusion_eval.errors import DataError, Fault, did_you_mean, listed

FOLDER = Path(__file__).resolve().parent
IMAGES_FILE = "digits.safetensors"
HEADS_FILE = "heads.safetensors"
SPLITS = ("train", "validation", "test")
NUM_CLASSES = 10
HIDDEN = 336
WIDTH = 32

_SIDE = 8
_GREY_LEVELS = 16
_BLOCK_ORDER = (14, 5, 2, 0, 8, 11, 12, 9, 1, 13, 15, 6, 3, 4, 7, 10)


def _shuffle_blocks(images: Tensor) -> Tensor:
    """The images with their sixteen 2 x 2 blocks in one fixed other order."""
    count = len(images)
    blocks = images.unfold(1, 2, 2).unfold(2, 2, 2).reshape(count, 16, 2, 2)[:, list(_BLOCK_ORDER)]
    return blocks.reshape(count, 4, 4, 2, 2).permute(0, 1, 3, 2, 4).reshape(count, _SIDE, _SIDE)


def _edges(images: Tensor) -> Tensor:
    """The images less their local 3 x 3 mean, around mid grey."""
    local_mean = F.avg_pool2d(images[:, None], kernel_size=3, stride=1, padding=1)[:, 0]
    return ((images - local_mean) * 1.5 + 0.5).clamp(0, 1)


VIEWS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "upright": lambda images: images,
        "negative": lambda images: 1 - images,
        "rot90": lambda images: torch.rot90(images, 1, (1, 2)),
        "shuffled": _shuffle_blocks,
        "mirror": lambda images: images.flip(2),
        "edges": _edges,
        "negrot": lambda images: 1 - torch.rot90(images, -1, (1, 2)),
        "rolled": lambda images: images.roll((4, 4), (1, 2)),
    }
)
"""Task name -> a function from images (N, 8, 8) in [0, 1] to the same images seen another way."""


class DigitsEncoder(nn.Module):
    """The network that the tasks share: images (N, 8, 8) or (N, 1, 8, 8) in [0, 1] -> unit features (N, width)."""

    def __init__(self, hidden: int = HIDDEN, width: int = WIDTH) -> None:
        super().__init__()
        self.linear1 = nn.Linear(_SIDE * _SIDE, hidden)
        self.norm1 = nn.LayerNorm(hidden)
        self.linear2 = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.projection = nn.Linear(hidden, width, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Features (N, width) of length one."""
        hidden = F.gelu(self.norm1(self.linear1(images.flatten(1) * 2 - 1)))
        hidden = F.gelu(self.norm2(self.linear2(hidden)))
        return F.normalize(self.projection(hidden), dim=-1)


class DigitsDataset(Dataset[tuple[Tensor, int]]):
    """Items (image (8, 8) float32 in [0, 1], label 0..9) of one view and split.

    The three splits hold 1100, 197 and 500 different images, the same ones in every view. Tune on ``validation``.

    Args:
        view: a name in ``VIEWS``.
        split: "train", "validation" or "test".

    Raises:
        DataError: an unknown view or split.
    """

    classes: Sequence[str] = tuple(str(digit) for digit in range(NUM_CLASSES))

    def __init__(self, view: str, split: str = "test") -> None:
        _check_name("view", view, tuple(VIEWS))
        _check_name("split", split, SPLITS)
        stored = load_file(FOLDER / IMAGES_FILE)
        self.view, self.split = view, split
        self.images = VIEWS[view](stored[f"{split}.images"].float() / _GREY_LEVELS).contiguous()
        self.labels = stored[f"{split}.labels"].long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])

    def __repr__(self) -> str:
        return f"DigitsDataset(view={self.view!r}, split={self.split!r}, {len(self)} items)"


def class_codes(view: str) -> Tensor:
    """The frozen head (10, width) of a view: ``logits = features @ class_codes(view).T``.

    Rows have length 12, the inverse temperature. As with prompts of different data sets, the codes of one digit in
    two views are close (mean cosine 0.71) and not equal.
    """
    _check_name("view", view, tuple(VIEWS))
    return load_file(FOLDER / HEADS_FILE)[view]


def checkpoint_path(name: str) -> Path:
    """The packaged safetensors file of ``"base"`` or of the expert of a view (float16 tensors)."""
    _check_name("checkpoint", name, ("base", *VIEWS))
    return FOLDER / f"{name}.safetensors"


def load_encoder(name: str) -> DigitsEncoder:
    """The packaged base or an expert as a float32 module in evaluation mode."""
    encoder = DigitsEncoder()
    encoder.load_state_dict(load_file(checkpoint_path(name)))
    return encoder.eval()


def _check_name(kind: str, found: str, known: Sequence[str]) -> None:
    if found not in known:
        hint = did_you_mean(str(found), known) or f"Choose a {kind} of the list."
        raise DataError(Fault(f"digits {kind}", f"'{found}'", f"one of {listed(known, shown=len(known))}", hint))
