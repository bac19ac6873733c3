"""Models whose files hold their weights in other pieces than the model does (experts of a mixture, for instance)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from fusion_eval.errors import AlignmentError, Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint


def fuses_weights(model: nn.Module, names: Iterable[str]) -> bool:
    """Whether the installed transformers fuses or splits tensors of a file with these names when it loads the model.

    Such checkpoints are merged tensor by tensor as the file has them; only building a model fuses.
    """
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    except ImportError:  # transformers 4 loads what files hold
        return False
    rules: list[Any] = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    if not converters:
        return False
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    own = model.state_dict()
    return any(name not in own and rename_source_key(name, renamings, converters)[1] is not None for name in names)


def load_fused(model: nn.Module, weights: Checkpoint) -> nn.Module:
    """A model like `model` with these weights, loaded by transformers itself, in evaluation mode.

    Raises:
        AlignmentError: listing weights that are missing, unexpected or of another shape.
    """
    cls: Any = type(model)
    state = {**weights, **{name: weights[kept] for name, kept in weights.tied.items()}}
    try:
        loaded, info = cls.from_pretrained(None, config=model.config, state_dict=state, output_loading_info=True)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise AlignmentError(Fault(weights.source, f"transformers cannot load it ({first})")) from error
    faults = [
        Fault(weights.source, f"{len(found)} {what} weights: {listed(sorted(map(str, found)))}")
        for what, found in (
            ("missing", info["missing_keys"]),
            ("unexpected", info["unexpected_keys"]),
            ("mismatched", info["mismatched_keys"]),
        )
        if found
    ]
    if faults:
        raise AlignmentError(*faults)
    built: nn.Module = loaded
    return built.eval()
