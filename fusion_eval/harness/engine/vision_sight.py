"""How a model sees: pictures computed once, prefixes kept, parts used apart where a trial shows that they may be."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fusion_eval.errors import EvaluationError, Fault, FusionEvalError
from fusion_eval.harness.engine.tree import out_of_memory
from fusion_eval.harness.engine.trie import Item, build_pack
from fusion_eval.harness.engine.vision_inputs import TYPE_KEYS, InputMaker, Picture, Recent, Shown
from fusion_eval.harness.engine.vision_passes import Passes, Prefix, split
from fusion_eval.harness.engine.vision_render import Renderer
from fusion_eval.harness.media import Conversation, Media

logger = logging.getLogger(__name__)
Way = Literal["features", "prefix", "whole"]
WAYS: tuple[Way, ...] = ("features", "prefix", "whole")
_TOGETHER, _WORTH = 32, 8
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
        self._glanced = Recent(kept_bytes)
        self._together: bool | None = None
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

    def show(self, rendered: str, media: Sequence[Media], way: Way | None = None, exact: bool = True) -> Shown:
        """A rendered prompt as the model reads it.

        Args:
            rendered: the prompt.
            media: in its slots.
            way: see `way`; None to ask there.
            exact: take no features that were computed together with those of other pictures.
        """
        if self.renderer.leaves_slots:
            self.maker.check_slots(rendered, media)
        chosen = way or self.way(media)
        if chosen == "whole" or (media and chosen != "features"):
            return self.maker.whole(rendered, media)
        known = [
            self._glanced if not exact and m.digest not in self._pictures and m.digest in self._glanced
            else self._pictures for m in media
        ]  # fmt: skip
        pictures = [kept.get(m.digest, partial(self._picture, m)) for kept, m in zip(known, media, strict=True)]
        return self.maker.assembled(rendered, media, pictures, all(kept is self._pictures for kept in known))

    def glance(self, shown: Sequence[Sequence[Media]]) -> None:
        """Compute what is not known yet of the pictures of several prompts, some at a time, as far as the model can."""
        media = {m.digest: m for row in shown if row and self.way(row) == "features" for m in row}
        new = [m for digest, m in media.items() if digest not in self._pictures and digest not in self._glanced]
        if len(new) < 2 or not self._gains(new[0]) or not self.sees_together:
            return
        parts: list[list[Media]] = [[]]
        area = 0
        for medium in new:
            held = replace(medium, held=medium.value)
            width, height = getattr(held.value, "size", (0, 0))
            if parts[-1] and (area + width * height > self._area or len(parts[-1]) >= _TOGETHER):
                parts.append([])
                area = 0
            parts[-1].append(held)
            area += width * height
        try:
            for part in parts:
                for medium, picture in zip(part, self._several(part), strict=True):
                    self._glanced.get(medium.digest, partial(_sized, picture))
        except torch.OutOfMemoryError:
            self._together = False
            self._forget()

    def _forget(self) -> None:
        """Give back what is kept."""
        for kept in (self._pictures, self._glanced, self._prefixes):
            kept.clear()
        torch.cuda.empty_cache()

    def _gains(self, medium: Media) -> bool:
        """Whether so small a picture keeps the device busy only beside others."""
        width, height = getattr(medium.value, "size", (0, 0))
        return width * height * _WORTH <= self._area

    @property
    def _area(self) -> int:
        """Pixels of pictures that are computed together."""
        return 4 * 224 * 224 * (1 if self.passes.device.type == "cpu" else 16)

    @property
    def sees_together(self) -> bool:
        """Whether several pictures at once give each what it gives alone (found out on two small ones)."""
        if self._together is None:
            media = [_noise(0), _noise(1)]
            kept = dict(self.passes.work)
            try:
                alone = [self._picture(medium)[0] for medium in media]
                self._together = all(map(self._alike, alone, self._several(media)))
            except torch.OutOfMemoryError:
                raise
            except (FusionEvalError, RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
                logger.debug("pictures are computed one by one: %s", error)
                self._together = False
            finally:
                self.passes.work.clear()
                self.passes.work.update(kept)
        return self._together

    def _alike(self, one: Picture, other: Picture) -> bool:
        """Whether two computations of a picture agree."""
        if one.replacement != other.replacement or one.tensors.keys() != other.tensors.keys():
            return False
        if not all(torch.equal(one.tensors[key], other.tensors[key]) for key in one.tensors if key not in TYPE_KEYS):
            return False
        limit = _TOLERANCE.get(self.passes.dtype, 0.1)
        pairs = zip(_tensors(one.features), _tensors(other.features), strict=True)
        return all(a.shape == b.shape and bool((a - b).abs().max() <= limit * a.abs().max()) for a, b in pairs)

    def _several(self, media: Sequence[Media]) -> list[Picture]:
        """Pictures computed in one pass.

        Raises:
            ValueError: the processor or the model does not tell them apart.
        """
        replacements, types, tensors = self.maker.pictures(media)
        features = split(self.passes.features(tensors))
        small = {key: value for key, value in tensors.items() if not key.startswith("pixel")}
        count = len(media)
        if len(features) != count or any(len(value) != count for value in small.values()):
            raise ValueError("pictures that are processed together are not told apart")
        return [
            Picture(replacements[i], {**types, **{key: value[i : i + 1] for key, value in small.items()}}, features[i],
                    _bytes_of(features[i])) for i in range(count)
        ]  # fmt: skip

    def prefix(self, shown: Shown) -> Prefix:
        """What is kept of a prompt up to its last picture, computed by itself and once for as long as it is needed."""

        def make() -> tuple[Prefix, int]:
            with torch.inference_mode():
                found = self.passes.alone(shown)
            return found, found.bytes

        kept: Prefix = self._prefixes.get(shown.key, make)
        return kept

    def _picture(self, medium: Media) -> tuple[Picture, int]:
        try:
            return self._computed(medium)
        except torch.OutOfMemoryError:
            self._forget()
        try:
            return self._computed(medium)
        except torch.OutOfMemoryError as error:
            found = f"does not suffice for image {medium.digest[:12]}"
            raise EvaluationError(Fault("memory", found, do="Use a smaller picture or a larger device.")) from error

    def _computed(self, medium: Media) -> tuple[Picture, int]:
        replacements, types, tensors = self.maker.pictures([medium])
        features = self.passes.features(tensors)
        small = {key: value for key, value in tensors.items() if not key.startswith("pixel")}
        return _sized(Picture(replacements[0], {**types, **small}, features, _bytes_of(features)))

    def _trial(self, pictures: int) -> Way:
        """The first way that gives what the model's own `forward` gives over whole prompts."""
        media = [_noise(i) for i in range(pictures)]
        rendered = self.renderer.render(Conversation.ask(media, "What is to be seen?"))
        kept = dict(self.passes.work)
        try:
            with torch.inference_mode():
                whole = self.maker.whole(rendered, media) if media else self.maker.assembled(rendered, (), ())
                count = min(4, len(whole.tokens) - whole.prefix)
                expected = self._expected(whole, count) if count and self.passes.takes_trees else None
                for way in WAYS[0 if self.passes.takes_features and self.maker.takes_slots else 1 : 2]:
                    if expected is not None and self._agrees(way, rendered, media, whole, expected):
                        return way
        finally:
            self.passes.work.clear()
            self.passes.work.update(kept)
        return "whole"

    def _expected(self, whole: Shown, count: int) -> torch.Tensor | None:
        """Log-probabilities at the end of a prompt; None where the model keeps other things than keys and values."""
        try:
            return self.passes.logits(whole, count).float().log_softmax(-1) if self.passes.keeps(whole) else None
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            logger.debug("%d pictures: %s", len(whole.media), error)
            return None

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


@contextmanager
def refusing(shown: Shown, name: str) -> Iterator[None]:
    """Says what a model refuses: some take no prompt without a picture, or only one picture.

    Raises:
        EvaluationError: instead of the model's own error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise out_of_memory(len(shown.tokens)) from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise EvaluationError(
            Fault(f"model '{name}'", f"refuses a prompt with {len(shown.media)} pictures: {error}",
                  "a prompt as the model was made for", "Leave out such documents (on_error=unscored), or the task.")
        ) from error  # fmt: skip


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
    return sum(t.numel() * t.element_size() for t in _tensors(features))


def _tensors(features: Any) -> list[torch.Tensor]:
    parts = [features.pooler_output, *(getattr(features, "deepstack_features", None) or ())]
    return [t for part in parts for t in ([part] if isinstance(part, torch.Tensor) else part)]


def _sized(picture: Picture) -> tuple[Picture, int]:
    return picture, picture.bytes
