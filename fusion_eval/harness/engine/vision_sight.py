"""How a model sees: pictures computed once, prefixes kept, parts used apart where a trial shows that they may be."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fusion_eval.errors import EvaluationError, Fault, FusionEvalError
from fusion_eval.harness.engine.trie import Item, build_pack
from fusion_eval.harness.engine.vision_inputs import InputMaker, Picture, Recent, Shown
from fusion_eval.harness.engine.vision_passes import Passes, Prefix
from fusion_eval.harness.engine.vision_render import Renderer
from fusion_eval.harness.media import Conversation, Media

logger = logging.getLogger(__name__)
Way = Literal["features", "prefix", "whole"]
WAYS: tuple[Way, ...] = ("features", "prefix", "whole")
_TOLERANCE = {torch.float32: 5e-3, torch.float64: 5e-3}


class Sight:
    """Prompts with pictures, ready to be continued.

    Args:
        passes: the model.
        maker: its processor.
        renderer: its chat template.
        kept_bytes: of picture features, and once more of keys and values of prefixes.
        way: "features" uses features apart, "prefix" keys and values only, "whole" neither; None to find out.
    """

    def __init__(
        self, passes: Passes, maker: InputMaker, renderer: Renderer, kept_bytes: int = 512 << 20, way: Way | None = None
    ) -> None:
        self.passes = passes
        self.maker = maker
        self.renderer = renderer
        self._pictures = Recent(kept_bytes)
        self._prefixes = Recent(kept_bytes)
        self._given = way
        self._ways: dict[int, Way] = {}

    def way(self, media: Sequence[Media]) -> Way:
        """Which parts of the model may be used apart for a prompt with such media."""
        if self._given is not None:
            return self._given
        if any(medium.kind != "image" for medium in media):
            return "prefix" if self.maker.slots and self.way_of(1) != "whole" else "whole"
        return self.way_of(min(len(media), 2))

    def way_of(self, pictures: int) -> Way:
        """The same for no, one and several pictures, found out on small ones."""
        if pictures not in self._ways:
            found = self._ways[pictures] = self._trial(pictures)
            if found != "features" and pictures:
                rest = (
                    "prompts share what precedes the question" if found == "prefix" else "every prompt runs as a whole"
                )
                name = type(self.passes.model).__name__
                logger.warning(
                    "%s: features of pictures cannot be used apart (%d in a prompt); %s", name, pictures, rest
                )
        return self._ways[pictures]

    def show(self, rendered: str, media: Sequence[Media], way: Way | None = None) -> Shown:
        """A rendered prompt as the model reads it."""
        self.maker.check_slots(rendered, media)
        way = way or (self.way(media) if media else None)
        if media and way != "features":
            return self.maker.whole(rendered, media)
        pictures = [self._pictures.get(medium.digest, partial(self._picture, medium)) for medium in media]
        return self.maker.assembled(rendered, media, pictures)

    def prefix(self, shown: Shown) -> Prefix:
        """What is kept of a prompt up to its last picture, computed by itself and once for as long as it is needed."""

        def make() -> tuple[Prefix, int]:
            with torch.inference_mode():
                found = self.passes.alone(shown)
            return found, found.bytes

        kept: Prefix = self._prefixes.get(shown.key, make)
        return kept

    def _picture(self, medium: Media) -> tuple[Picture, int]:
        out = self.maker.call(self.maker.processor.image_token, [medium], return_text_replacement_offsets=True)
        replacement = out["text_replacement_offsets"][0][0]["replacement"]
        types = {key: value for key, value in out.items() if key in ("mm_token_type_ids", "token_type_ids")}
        for key in ("input_ids", "attention_mask", "text_replacement_offsets", *types):
            out.pop(key, None)
        tensors = self.maker.moved(out)
        features = self.passes.features(tensors)
        small = {key: value for key, value in tensors.items() if not key.startswith("pixel")}
        picture = Picture(replacement, {**types, **small}, features, _bytes_of(features))
        return picture, picture.bytes

    def _trial(self, pictures: int) -> Way:
        """The first way that gives what the model's own `forward` gives over whole prompts."""
        media = [_noise(i) for i in range(pictures)]
        rendered = self.renderer.render(Conversation.ask(media, "What is to be seen?"))
        kept = dict(self.passes.work)
        try:
            with torch.inference_mode():
                whole = self.maker.whole(rendered, media) if media else self.show(rendered, ())
                count = min(4, len(whole.tokens) - whole.prefix)
                known = count and self.passes.takes_trees
                expected = self.passes.logits(whole, count).float().log_softmax(-1) if known else None
                for way in WAYS[0 if self.passes.takes_features and self.maker.takes_slots else 1 : 2]:
                    if expected is not None and self._agrees(way, rendered, media, whole, expected):
                        return way
        finally:
            self.passes.work.clear()
            self.passes.work.update(kept)
        return "whole"

    def _agrees(self, way: Way, rendered: str, media: list[Media], whole: Shown, expected: torch.Tensor) -> bool:
        try:
            shown = self.show(rendered, media, way)
            if shown.tokens != whole.tokens or shown.types != whole.types:
                logger.debug("%s: other tokens than the processor's", way)
                return False
            tail = np.array(shown.tokens, dtype=np.int64)
            pack = build_pack([Item(0, tail, (0,) * len(expected))], shown.prefix)
            found = self.passes.tree(self.passes.alone(shown), pack, pack.paths[0])
        except torch.OutOfMemoryError:
            raise
        except (FusionEvalError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            logger.debug("%s: %s", way, error)
            return False
        far = (found.float().log_softmax(-1) - expected).abs().max()
        return bool(far < _TOLERANCE.get(self.passes.dtype, 0.5))


def require_room(shown: Shown, limit: int, name: str) -> int:
    """New tokens that fit after a prompt.

    Raises:
        EvaluationError: none.
    """
    room = limit - len(shown.tokens)
    if room < 1:
        raise EvaluationError(
            Fault(f"prompt for '{name}'", f"takes {len(shown.tokens)} tokens with {len(shown.media)} media",
                  f"fewer than {limit}, which the model takes", "Show fewer or smaller pictures, or raise max_length.")
        )  # fmt: skip
    return room


def _noise(number: int) -> Media:
    """A small picture without meaning; two differ in shape."""
    from PIL import Image

    shape = ((64, 48, 3), (40, 80, 3))[number % 2]
    values = np.random.default_rng(number).integers(0, 255, shape, dtype=np.uint8)
    return Media("image", f"trial {number}", Image.fromarray(values))


def _bytes_of(features: Any) -> int:
    parts = [features.pooler_output, *(getattr(features, "deepstack_features", None) or ())]
    tensors = [t for part in parts for t in ([part] if isinstance(part, torch.Tensor) else part)]
    return sum(t.numel() * t.element_size() for t in tensors)
