"""Language models on declarative tasks: the YAML files of lm-evaluation-harness, unmodified, or one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fusion_eval.errors import Fault, FusionEvalError
from fusion_eval.harness.build import RunOptions, consent_missing
from fusion_eval.harness.catalog import library
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.export import write_results
from fusion_eval.harness.fewshot import SEED
from fusion_eval.harness.outcome import Outcome
from fusion_eval.harness.suite import Suite, make_suite
from fusion_eval.taskpool.harness_pool import HarnessTaskPool, folders_of, listed_paths, plain
from fusion_eval.taskpool.language_backend import backend_faults, opened
from fusion_eval.taskpool.language_code import code_execution
from fusion_eval.taskpool.language_model import EngineMaker


class LanguageModelTaskPool(HarnessTaskPool):
    """Tasks described by YAML files, scored by a language model.

    Args:
        tasks: names, globs, tags, groups, files, folders, or tasks written inline.
        include_path: folders with task files; only they (and folders named in `tasks`) may run Python.
        tasks_from: an installed package whose task folder is searched too, such as `lm_eval`; it is not imported.
        data_root: folder laid out as the hub is, `<organisation>/<name>/`, so that hub names load offline.
        num_fewshot: shots; null for each file's own number.
        limit: documents per task, or their share if below 1.
        samples: task -> indices of the documents to score.
        apply_chat_template: put prompts into the tokenizer's chat template.
        system_instruction: put first.
        fewshot_as_multiturn: shots as messages of their own; null for yes where a chat template is applied.
        gen_kwargs: laid over the generation settings of every task.
        batch_size: prompts generated together, or "auto".
        pass_tokens: tokens of one forward pass when scoring; null for a value that suits the device.
        tokenizer: folder or name; null for the model's own.
        model_options: max_length, add_bos_token, prefix_token_id, think_end_token, chat_template_args.
        engine: "transformers", or "vllm", for which each model is written to a temporary folder.
        engine_options: keywords of `vllm.LLM`.
        server: an OpenAI-compatible server {url, model, chat, concurrency, rate, ...}, asked in place of the model.
        log_samples: write every prompt, response and score beside the report, in the peer's layout.
        predict_only: responses without scores.
        confirm_run_unsafe_code: tasks may execute what the model writes, in the sandbox.
        fewshot_seed: of the shots.
        answers: folder where answers are kept, so that a killed run goes on and no model is asked twice; "cache" for
            the user's cache folder, null to keep none.
        show_members: report the tasks of a group beside the group.
        metadata: merged into every task's metadata.
        compat: repeat the peer's known mistakes and its bootstrap, so that its very numbers come out.
        progress: show progress on rank zero.
    """

    def __init__(
        self,
        tasks: str | Sequence[Any],
        *,
        include_path: str | Sequence[str] | None = None,
        tasks_from: str | Sequence[str] | None = None,
        data_root: str | None = None,
        num_fewshot: int | None = None,
        limit: float | None = None,
        samples: Mapping[str, Sequence[int]] | None = None,
        apply_chat_template: bool = False,
        system_instruction: str | None = None,
        fewshot_as_multiturn: bool | None = None,
        gen_kwargs: Mapping[str, Any] | None = None,
        batch_size: int | str = "auto",
        pass_tokens: int | None = None,
        tokenizer: Any = None,
        model_options: Mapping[str, Any] | None = None,
        engine: str = "transformers",
        engine_options: Mapping[str, Any] | None = None,
        server: Mapping[str, Any] | None = None,
        log_samples: bool = False,
        predict_only: bool = False,
        confirm_run_unsafe_code: bool = False,
        fewshot_seed: int | None = SEED,
        answers: str | None = "cache",
        show_members: bool = False,
        metadata: Mapping[str, Any] | None = None,
        compat: bool = False,
        progress: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._tasks = plain(tasks)
        self._roots = [library(), *folders_of(tasks_from), *listed_paths(include_path)]
        self._data = DataSource(Path(data_root) if data_root else None)
        self._chat = bool(apply_chat_template)
        self._options = {
            "num_fewshot": num_fewshot, "limit": limit, "samples": plain(samples or {}), "compat": compat,
            "gen_kwargs": plain(gen_kwargs or {}), "system_instruction": system_instruction,
            "fewshot_as_multiturn": self._chat if fewshot_as_multiturn is None else fewshot_as_multiturn,
            "predict_only": predict_only, "fewshot_seed": fewshot_seed,
            "confirm_run_unsafe_code": confirm_run_unsafe_code,
        }  # fmt: skip
        self._maker = EngineMaker(tokenizer, batch_size, pass_tokens, plain(model_options or {}), compat)
        self._maker.server = None if server is None else plain(server)
        self._maker.backend, self._maker.backend_options = engine, plain(engine_options or {})
        self._log_samples, self._answers, self._show_members = log_samples or predict_only, answers, show_members
        self._metadata = plain(metadata or {})
        self.progress = progress

    def make_suite(self) -> Suite:
        """The tasks that were asked for, read but not loaded."""
        return make_suite(
            self._tasks, include_path=self._roots, data=self._data, options=RunOptions(**self._options),
            metadata=self._metadata,
        )  # fmt: skip

    def faults(self) -> list[Fault]:
        """What is wrong with the task files, found without running their Python."""
        root = self._data.data_root
        lost = [] if root is None or root.is_dir() else [Fault("taskpool.data_root", str(root), "an existing folder")]
        return [*lost, *backend_faults(self._maker), *super().faults(), *self._without_consent()]

    def _without_consent(self) -> list[Fault]:
        """Tasks that execute what the model writes, where nobody allowed it."""
        if self._options["confirm_run_unsafe_code"]:
            return []
        try:
            specs = [plan.spec for plan in self.suite.selection.tasks.values()]
        except FusionEvalError:  # told by the check of the files
            return []
        return [consent_missing(f"{spec.task}: ") for spec in specs if spec.unsafe_code]

    def setup(self) -> None:
        """Open every task's data, once."""
        with code_execution(bool(self._options["confirm_run_unsafe_code"])):
            super().setup()

    def outcome(self, model: nn.Module, name: str, role: str, names: list[str] | None) -> Outcome:
        """What a model scores on the named tasks; its files are written."""
        placed = self.devices.place(model) if self._maker.backend == "transformers" else model
        allowed = bool(self._options["confirm_run_unsafe_code"])
        with opened(self._maker, placed, name, self.model_pool) as engine, code_execution(allowed):
            outcome = self.evaluated(engine, names, chat=self._chat)
        if self.output is not None and self.devices.is_zero:
            write_results(self.output / "lm_eval", outcome, name, samples=self._log_samples)
        return outcome
