"""What a hook is told that fails since its file has settings for other models only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fusion_eval.errors import DataError, Fault, listed
from fusion_eval.harness.build import line_of
from fusion_eval.harness.multimodal.dialect import CURRENT_KEY, EAGLE_KEY, ModelNames
from fusion_eval.harness.spec import TaskSpec


@contextmanager
def naming_blocks(spec: TaskSpec, names: ModelNames) -> Iterator[None]:
    """Inside, an error of `doc_to_text` names the models that the file has settings for, if this one has none.

    Args:
        spec: the task.
        names: what the model is called.

    Raises:
        DataError: the hook failed, and neither the model nor `default` has settings.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        key = EAGLE_KEY if EAGLE_KEY in spec.extra else CURRENT_KEY
        blocks = {name: block for name, block in (spec.extra.get(key) or {}).items() if isinstance(block, Mapping)}
        if not blocks or "default" in blocks or names.pick(blocks) is not None:
            raise
        raise DataError(
            Fault("doc_to_text", f"{type(error).__name__}: {error}{line_of(error)}; {key} has nothing for this model",
                  f"settings for it or 'default' beside those for {listed(list(blocks))}",
                  "Set model_name or aliases to one of these, or add a block to the file.")
        ) from error  # fmt: skip
