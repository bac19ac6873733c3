"""From a rendered prompt and its pictures to what a model's `forward` takes."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusion_eval.errors import ConfigError, DataError, Fault, missing_dependency
from fusion_eval.harness.engine.vision_picture import MAX_PIXELS, rgb
from fusion_eval.harness.media import Media

logger = logging.getLogger(__name__)
_NAMES = {"image": "images", "video": "videos", "audio": "audio"}
TYPE_KEYS = ("mm_token_type_ids", "token_type_ids")
PER_TOKEN = ("cross_attention_mask", "image_embeds_position_mask")
"""Tensors [1, tokens, ...] that say which tokens see, or stand for, which parts of pictures."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One prompt as the model reads it.

    Args:
        tokens: ids, slots expanded.
        prefix: tokens up to and with the last one that stands for a part of a picture; 0 without media.
        media: digests, in order.
        types: values per token by keyword (which tokens are pictures).
        tensors: what goes with the pictures, by keyword, as `forward` takes it.
        features: of the pictures, as the model's `get_image_features` gives them; None where `tensors` holds pixels.
        exact: whether each picture's features were computed by themselves.
    """

    tokens: tuple[int, ...]
    prefix: int
    media: tuple[str, ...] = ()
    types: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    features: tuple[Any, ...] | None = None
    exact: bool = True

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal where the same keys and values come out of the prefix."""
        return self.tokens[: self.prefix], self.media, self.features is None, self.exact


@dataclass(slots=True)
class Picture:
    """One picture, computed once: the text in the place of its slot, small tensors, features."""

    replacement: str
    tensors: dict[str, torch.Tensor]
    features: Any
    bytes: int


class Recent:
    """The values used last, within a number of bytes.

    Args:
        limit: bytes; the newest value is kept even if it alone has more.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._values: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

    def __contains__(self, key: Any) -> bool:
        return key in self._values

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self.held = 0

    def get(self, key: Any, make: Callable[[], tuple[Any, int]]) -> Any:
        """The value of a key, made where it is not there."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key][0]
        value, size = make()
        self._values[key] = (value, size)
        self.held += size
        while self.held > self.limit and len(self._values) > 1:
            self.held -= self._values.popitem(last=False)[1][1]
        return value


class InputMaker:
    """Makes inputs with a processor.

    Args:
        processor: of the model.
        name: of the model, for messages.
        encode: text -> token ids.
        dtype: of pixels.
        device: of tensors.
        max_pixels: of one picture.
        takes: keywords of the model's `forward`.
    """

    def __init__(
        self, processor: Any, name: str, encode: Callable[[str], tuple[int, ...]], *, dtype: torch.dtype,
        device: torch.device, max_pixels: int = MAX_PIXELS, takes: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.processor = processor
        self.takes = takes
        self.name = name
        self.encode = encode
        self.dtype = dtype
        self.device = device
        self.max_pixels = max_pixels
        kinds = ("image", "video", "audio")
        found = [i for kind in kinds for i in getattr(processor, f"{kind}_token_ids", None) or [] if i is not None]
        self.slots = frozenset(found)
        self.takes_slots = bool(self.slots) and callable(getattr(processor, "get_text_with_replacements", None))

    def value_of(self, medium: Media) -> Any:
        """What the processor takes: an RGB picture, frames, or samples.

        Raises:
            DataError: a picture that cannot be read.
        """
        where = f"{medium.kind} {medium.digest[:12]}"
        if medium.kind == "image":
            return rgb(medium.value, where, self.max_pixels)
        if medium.kind == "video" and isinstance(medium.value, Sequence) and not isinstance(medium.value, str):
            if not medium.value:
                raise DataError(Fault(where, "a video without a frame", "at least one frame"))
            return [rgb(frame, f"{where}, frame {i}", self.max_pixels) for i, frame in enumerate(medium.value)]
        return medium.value

    def whole(self, rendered: str, media: Sequence[Media]) -> Shown:
        """Inputs by one call of the processor, pixels and all."""
        out = self.call(rendered, media)
        row = tuple(out.pop("input_ids")[0].tolist())
        for key in ("attention_mask", "labels"):
            out.pop(key, None)
        types = {key: tuple(out.pop(key)[0].tolist()) for key in TYPE_KEYS if key in out}
        types = {key: kinds for key, kinds in types.items() if any(kinds) or (media and key in self.takes)}
        digests = tuple(medium.digest for medium in media)
        return Shown(row, self.prefix_of(row) if media else 0, digests, types, self.moved(out))

    def assembled(
        self, rendered: str, media: Sequence[Media], pictures: Sequence[Picture], exact: bool = True
    ) -> Shown:
        """The same from pictures that were computed before."""
        replacements = [picture.replacement for picture in pictures]
        text = self.processor.get_text_with_replacements([rendered], replacements)[0][0] if pictures else rendered
        row = self.encode(text)
        typed = [key for key in TYPE_KEYS if pictures and key in pictures[0].tensors]
        kinds = tuple(self.processor.create_mm_token_type_ids([list(row)])[0]) if typed else ()
        types = dict.fromkeys(typed, kinds)
        names = [key for key in (pictures[0].tensors if pictures else ()) if key not in TYPE_KEYS]
        tensors = {key: torch.cat([picture.tensors[key] for picture in pictures]) for key in names}
        digests = tuple(medium.digest for medium in media)
        features = tuple(picture.features for picture in pictures)
        return Shown(row, self.prefix_of(row) if media else 0, digests, types, tensors, features or None, exact)

    def prefix_of(self, row: Sequence[int]) -> int:
        """Tokens up to and with the last slot; all of them where slots are unknown."""
        if not self.slots:
            return len(row)
        return max((i + 1 for i, token in enumerate(row) if token in self.slots), default=0)

    def moved(self, tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Tensors on the device, pixels in the model's precision."""
        found = {key: value.to(self.device) for key, value in tensors.items() if isinstance(value, torch.Tensor)}
        return {key: value.to(self.dtype) if value.is_floating_point() else value for key, value in found.items()}

    def pictures(self, media: Sequence[Media]) -> tuple[list[str], dict[str, Any], dict[str, torch.Tensor]]:
        """The texts in the places of pictures' slots, values per token by keyword, and tensors on the device."""
        values = [[self.value_of(medium)] for medium in media]
        options: dict[str, Any] = {"padding": True} if len(media) > 1 else {}
        texts = [str(self.processor.image_token)] * len(media)
        out = self._called(texts, {"images": values}, {"return_text_replacement_offsets": True, **options})
        replacements = [offsets[0]["replacement"] for offsets in out.pop("text_replacement_offsets")]
        types = {key: out.pop(key) for key in TYPE_KEYS if key in out}
        for key in ("input_ids", "attention_mask"):
            out.pop(key, None)
        return replacements, types, self.moved(out)

    def call(self, text: str, media: Sequence[Media], **options: Any) -> dict[str, Any]:
        """What the processor makes of one prompt.

        Raises:
            DataError: the processor refuses it.
            ConfigError: slots and media do not match.
            MissingDependencyError: a decoder of videos that is not installed.
        """
        given: dict[str, list[Any]] = {}
        for medium in media:
            given.setdefault(_NAMES[medium.kind], []).append(self.value_of(medium))
        if any(isinstance(video, list) for video in given.get("videos", ())):
            options = {"do_sample_frames": False, **options}
        if "audio" in given:
            options = {"sampling_rate": given["audio"][0]["sampling_rate"], **options}
            given["audio"] = [sound["array"] for sound in given["audio"]]
        if self._begins(text):
            options = {"add_special_tokens": False, **options}
        if "images" not in given:
            return self._called([text], given, options)
        try:
            return self._called([text], {**given, "images": [given["images"]]}, options)
        except DataError as error:  # some processors know no pictures by prompt, only a list of them
            try:
                return self._called([text], given, options)
            except DataError:
                raise error from error.__cause__

    def _called(self, texts: list[str], given: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self.processor(text=texts, **given, return_tensors="pt", **options))
        except ImportError as error:
            raise missing_dependency("av", "multimodal", f"reading videos ({error})") from error
        except (ValueError, TypeError, KeyError, RuntimeError, OSError) as error:
            kinds = ", ".join(given) or "text"
            raise DataError(
                Fault(f"processor of '{self.name}'", f"refuses a prompt with {kinds}: {error}", "what it was made for",
                      f"The prompt: {texts[0][:200]!r}")
            ) from error  # fmt: skip

    def _begins(self, text: str) -> bool:
        bos = getattr(getattr(self.processor, "tokenizer", None), "bos_token", None)
        return bool(bos) and text.startswith(str(bos))

    def check_slots(self, rendered: str, media: Sequence[Media]) -> None:
        """Refuse a prompt whose text holds more slots than there are media.

        Raises:
            ConfigError: see above.
        """
        for kind in _NAMES:
            slot = getattr(self.processor, f"{kind}_token", None)
            count = sum(medium.kind == kind for medium in media)
            if slot and rendered.count(str(slot)) != count:
                raise ConfigError(
                    Fault(f"prompt for '{self.name}'",
                          f"has {rendered.count(str(slot))} slots '{slot}' for {count} media of the kind {kind}",
                          "one slot for each", f"Look at doc_to_text and doc_to_visual. The prompt: {rendered[:200]!r}")
                )  # fmt: skip
