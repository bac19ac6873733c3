"""Generation settings of tasks about pictures, without what only the adapters that they were written for know."""

from __future__ import annotations

import dataclasses

from fusion_eval.harness.engine.generation import Settings

_ADAPTERS_OWN = frozenset({"image_aspect_ratio", "use_cache", "modality", "modalities"})


def plain(settings: Settings) -> Settings:
    """The settings without what changes nothing and what only other adapters know."""
    other = {k: v for k, v in settings.other.items() if (k, v) != ("num_beams", 1) and k not in _ADAPTERS_OWN}
    return dataclasses.replace(settings, other=other)
