"""One task by its name, from Python: `get_task("mytask", model_name="eagle").run(model)`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.build import RunOptions
from fusion_eval.harness.catalog import picture_library
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.engine.protocol import LanguageModel
from fusion_eval.harness.multimodal.aggregate import numbers_of
from fusion_eval.harness.multimodal.suite import MultimodalSuite, make_multimodal_suite
from fusion_eval.harness.outcome import Outcome
from fusion_eval.harness.suite import evaluate

_INCLUDED: list[Path] = []


def include_path(folder: str | Path) -> None:
    """Let `get_task` find the tasks of a folder, whose Python may then run."""
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise ConfigError(Fault("include_path", f"{folder} is not a folder", "a folder with task files"))
    if path not in _INCLUDED:
        _INCLUDED.append(path)


@dataclass(slots=True)
class NamedTask:
    """A task, or a group of tasks, that models can be evaluated on.

    Args:
        name: of the task or group.
        suite: what it stands for.
        outcome: everything about the last run.
    """

    name: str
    suite: MultimodalSuite
    outcome: Outcome | None = field(default=None, repr=False)

    def run(
        self, model: Any = None, processor: Any = None, *, batch_size: int | str = "auto",
        store: str | Path | None = None, seed: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """The scores of a model: metric -> number; of a group, task -> metric -> number.

        Args:
            model: a folder, a vision-language model of transformers, or an engine.
            processor: None for the one in the model's folder.
            batch_size: prompts written together.
            store: folder where answers are kept, so that a killed run goes on.
            seed: of sampled text.

        Raises:
            FusionEvalError: a task that cannot be loaded, asked or scored.
        """
        engine = engine_of(model, processor, batch_size)
        self.outcome = evaluate(self.suite, engine, store=Path(store) if store else None, seed=seed)
        scores = {name: _numbers(task.values) for name, task in self.outcome.tasks.items()}
        groups = {name: _numbers(group.values) for name, group in self.outcome.groups.items() if group.values}
        return scores[self.name] if list(scores) == [self.name] else {**scores, **groups}


def _numbers(values: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for value in values.values():
        name = value.metric if value.pipeline == "none" else value.key
        found.update(numbers_of(name, value.value) or {name: value.value})
    return found


def engine_of(model: Any, processor: Any, batch_size: int | str) -> LanguageModel:
    """The engine of whatever a model was given as."""
    if isinstance(model, LanguageModel):
        return model
    if model is None:
        raise ConfigError(
            Fault("run(model)", "no model", "a folder, a vision-language model of transformers, or an engine",
                  'Write get_task(name).run("folder/of/the/model").')
        )  # fmt: skip
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from fusion_eval.harness.engine.vision import VisionLanguageModel

    if isinstance(model, (str, Path)):
        place = str(model)
        model = AutoModelForImageTextToText.from_pretrained(place).eval()  # type: ignore[no-untyped-call]
    else:
        place = str(getattr(model, "name_or_path", ""))
    chosen = processor if processor is not None else AutoProcessor.from_pretrained(place)  # type: ignore[no-untyped-call]
    return VisionLanguageModel(model, chosen, name=Path(place).name or "model", batch_size=batch_size)


def get_task(
    task_name: str, model_name: str | Sequence[str] | None = None, *, folder: str | Path | None = None,
    data_root: str | Path | None = None, limit: float | None = None, output: str | Path | None = None,
    on_error: Any = "fail",
) -> NamedTask:  # fmt: skip
    """The task of a name.

    Args:
        task_name: a task or a group.
        model_name: what settings of the task for single models go by, then aliases.
        folder: with task files, besides those given to `include_path`, those in `$FUSION_EVAL_TASKS` (separated as
            in `$PATH`) and the package's own.
        data_root: folder laid out as the hub is.
        limit: documents, or their share if below 1.
        output: folder for submission files.
        on_error: "fail" or "unscored".

    Raises:
        ConfigError: no such task, or a file that cannot be read.
    """
    named = [Path(part) for part in os.environ.get("FUSION_EVAL_TASKS", "").split(os.pathsep) if part]
    roots = [picture_library(), *named, *_INCLUDED, *([Path(folder)] if folder else [])]
    suite = make_multimodal_suite(
        [task_name], include_path=roots, data=DataSource(Path(data_root) if data_root else None),
        options=RunOptions(limit=limit, on_error=on_error), model_names=model_name, output=output,
    )  # fmt: skip
    return NamedTask(task_name, suite)
