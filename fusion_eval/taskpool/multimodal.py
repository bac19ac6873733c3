"""Vision-language models on declarative tasks: folders of YAML files and Python hooks in the manner of LMMS-Eval."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fusion_eval.errors import ConfigError, Fault, FusionEvalError
from fusion_eval.harness.build import RunOptions
from fusion_eval.harness.catalog import picture_library
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.export import write_results
from fusion_eval.harness.fewshot import SEED
from fusion_eval.harness.judge import get_judge
from fusion_eval.harness.multimodal.adapter_names import families
from fusion_eval.harness.multimodal.aggregate import arguments
from fusion_eval.harness.multimodal.dialect import ModelNames, Style, names_of
from fusion_eval.harness.multimodal.sample import SampleLog
from fusion_eval.harness.multimodal.setting import MAX_NEW_TOKENS, Setting, prepared
from fusion_eval.harness.multimodal.suite import MultimodalSuite, make_multimodal_suite
from fusion_eval.harness.outcome import Outcome
from fusion_eval.taskpool.harness_pool import HarnessTaskPool, folders_of, listed_paths, plain
from fusion_eval.taskpool.language_backend import backend_faults, opened
from fusion_eval.taskpool.language_model import EngineMaker, sees

logger = logging.getLogger(__name__)


class MultimodalTaskPool(HarnessTaskPool):
    """Tasks described by YAML files with Python hooks, scored by a model that sees.

    Args:
        tasks: names, globs, tags, groups, files or folders.
        include_path: folders with task files; only they (and folders named in `tasks`) may run Python.
        tasks_from: an installed package whose task folder is searched too, such as `lmms_eval`; it is not imported.
        data_root: folder laid out as the hub is, `<organisation>/<name>/`, so that hub names load offline.
        offline: contact no hub; data that are not there are an error.
        model_name: what settings of tasks for single models go by; null for the model's name in the pool.
        aliases: further names of the model, before those of its architecture's family.
        style: eagle or current, whose meaning the files have; null to tell from the files.
        messages: ask by a task's `doc_to_messages` where it has one.
        num_fewshot: shots; null for each file's own number.
        limit: documents per task, or their share if below 1.
        samples: task -> indices of the documents to score.
        system_instruction: put first.
        gen_kwargs: laid over the generation settings of every task.
        max_new_tokens: length of answers where neither the task nor `gen_kwargs` says one.
        reasoning_tags: pairs of tags whose content is taken away before scoring, where a task does not say.
        num_frames: frames that a video file is shown by; null leaves it to the processor.
        batch_size: prompts generated together, or "auto".
        pass_tokens: tokens of one forward pass when scoring; null for a value that suits the device.
        tokenizer: folder or name of the processor; null for the model's own.
        model_options: max_length, think_end_token, chat_template_args, max_pixels and so on.
        engine: "transformers" or "vllm".
        engine_options: keywords of `vllm.LLM`.
        server: an OpenAI-compatible server {url, model, chat, ...}, asked in place of the model.
        judge: what tasks ask about answers: {url, model, ...}, {kind: dummy, answer}, {cache, mode: replay}, ...
        on_error: "fail" where a document cannot be asked or scored, "unscored" to count it and go on.
        log_samples: append prompt, digests of media, response and scores of every document as it is scored.
        predict_only: responses without scores.
        fewshot_seed: of the shots.
        answers: folder where answers are kept, so that a killed run goes on; "cache" for the user's cache folder, null
            to keep none.
        show_members: report the tasks of a group beside the group.
        metadata: merged into every task's metadata.
        compat: repeat the peers' known mistakes in scores and standard errors.
        output_dir: where submission files go if the pool is used without a program.
        progress: show progress on rank zero.
    """

    def __init__(
        self, tasks: str | Sequence[Any], *, include_path: str | Sequence[str] | None = None,
        tasks_from: str | Sequence[str] | None = None, data_root: str | None = None, offline: bool = False,
        model_name: str | None = None, aliases: Sequence[str] = (), style: str | None = None, messages: bool = True,
        num_fewshot: int | None = None, limit: float | None = None,
        samples: Mapping[str, Sequence[int]] | None = None, system_instruction: str | None = None,
        gen_kwargs: Mapping[str, Any] | None = None, max_new_tokens: int = MAX_NEW_TOKENS, reasoning_tags: Any = None,
        num_frames: int | None = None,
        batch_size: int | str = "auto", pass_tokens: int | None = None, tokenizer: Any = None,
        model_options: Mapping[str, Any] | None = None, engine: str = "transformers",
        engine_options: Mapping[str, Any] | None = None, server: Mapping[str, Any] | None = None, judge: Any = None,
        on_error: str = "fail", log_samples: bool = False, predict_only: bool = False,
        fewshot_seed: int | None = SEED, answers: str | None = "cache", show_members: bool = False,
        metadata: Mapping[str, Any] | None = None, compat: bool = False, output_dir: str | None = None,
        progress: bool = True, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._tasks = plain(tasks)
        self._roots = [picture_library(), *folders_of(tasks_from), *listed_paths(include_path)]
        self._data = DataSource(Path(data_root) if data_root else None, offline=offline)
        self._options = {
            "num_fewshot": num_fewshot, "limit": limit, "samples": plain(samples or {}), "compat": compat,
            "system_instruction": system_instruction, "predict_only": predict_only, "fewshot_seed": fewshot_seed,
            "on_error": on_error,
        }  # fmt: skip
        self._setting = Setting(
            style=_style(style), messages=messages, max_new_tokens=max_new_tokens, gen_kwargs=plain(gen_kwargs or {}),
            reasoning_tags=plain(reasoning_tags), num_frames=num_frames,
        )  # fmt: skip
        self._maker = EngineMaker(tokenizer, batch_size, pass_tokens, plain(model_options or {}), compat)
        self._maker.server = None if server is None else plain(server)
        self._maker.backend, self._maker.backend_options = engine, plain(engine_options or {})
        self._model_name, self._aliases = model_name, tuple(aliases)
        self._judge = None if judge is None else get_judge(plain(judge))
        self._log_samples, self._answers, self._show_members = log_samples or predict_only, answers, show_members
        self._metadata, self._output_dir = plain(metadata or {}), output_dir
        self.progress = progress

    def make_suite(self) -> MultimodalSuite:
        """The tasks that were asked for, read but not loaded."""
        suite = make_multimodal_suite(
            self._tasks, include_path=self._roots, data=self._data, options=RunOptions(**self._options),
            model_names=names_of([name for name in (self._model_name, *self._aliases) if name]),
            metadata=self._metadata, setting=self._setting, judge=self._judge,
        )  # fmt: skip
        for note in suite.selection.notes:
            logger.warning("%s", note)
        return suite

    def faults(self) -> list[Fault]:
        """What is wrong with the task files, found without running their Python."""
        found = [*backend_faults(self._maker), *super().faults()]
        if found:
            return found
        for plan in self.suite.selection.tasks.values():
            try:
                prepared(plan.spec, self._setting)
            except FusionEvalError as error:
                found += error.faults
        return found

    def outcome(self, model: nn.Module, name: str, role: str, names: list[str] | None) -> Outcome:
        """What a model scores on the named tasks; its files are written."""
        suite = self.suite
        assert isinstance(suite, MultimodalSuite)
        folder = self._folder(name, role)
        suite.setting = replace(suite.setting, names=self._names(model, name), args=arguments(folder))
        logs = self._log_samples and self.output is not None and self.devices.is_zero
        suite.on_row = SampleLog(folder / "lmms_eval") if logs else None
        placed = self.devices.place(model) if self._maker.backend == "transformers" else model
        with opened(self._maker, placed, name, self.model_pool, visual=sees(model)) as engine:
            outcome = self.evaluated(engine, names)
        if self.output is not None and self.devices.is_zero:
            write_results(folder / "lmms_eval", outcome, name)
        return outcome

    def _folder(self, name: str, role: str) -> Path:
        """Where the files of a model go: the output's own folder for the merged one, a folder inside for others."""
        folder = self.output or (Path(self._output_dir) if self._output_dir is not None else None)
        if not self.devices.is_zero:
            return folder or Path(tempfile.gettempdir())  # only rank zero scores, and so writes
        if folder is None:
            return Path(tempfile.mkdtemp(prefix="fusion_eval_"))
        if role != "merged":
            folder = folder / "models" / "".join("_" if c in "/\\:" else c for c in name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _names(self, model: nn.Module, name: str) -> ModelNames:
        kind = str(getattr(getattr(model, "config", None), "model_type", ""))
        return ModelNames(self._model_name or name, (*self._aliases, *families(kind)))


def _style(value: str | None) -> Style | None:
    if value is None or value == "eagle" or value == "current":
        return value  # type: ignore[return-value]
    raise ConfigError(Fault("taskpool.style", repr(value), "eagle, current or null"))
