"""Language models on declarative tasks: the YAML files of lm-evaluation-harness, unmodified, or one's own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fusion_eval.errors import ConfigError, Fault, FusionEvalError
from fusion_eval.evaluation.devices import Devices
from fusion_eval.harness.build import RunOptions
from fusion_eval.harness.catalog import library, peer_tasks
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.evaluate import Suite, evaluate, make_suite
from fusion_eval.harness.export import write_results
from fusion_eval.harness.fewshot import SEED
from fusion_eval.harness.index import cache_folder
from fusion_eval.harness.outcome import Outcome
from fusion_eval.harness.scheduler import Ranks
from fusion_eval.harness.validate import check_spec
from fusion_eval.report.values import ModelResult, TaskResult
from fusion_eval.taskpool.language_backend import backend_faults, opened
from fusion_eval.taskpool.language_code import code_execution
from fusion_eval.taskpool.language_model import EngineMaker
from fusion_eval.taskpool.language_report import task_results
from fusion_eval.taskpool.typed_pool import TypedTaskPool, model_info

_DEV_DOCUMENTS = 4


class LanguageModelTaskPool(TypedTaskPool):
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
        self._tasks = _plain(tasks)
        self._roots = [library(), *_folders_of(tasks_from), *(Path(path) for path in _listed(include_path))]
        self._data = DataSource(Path(data_root) if data_root else None)
        self._chat = bool(apply_chat_template)
        self._options = {
            "num_fewshot": num_fewshot, "limit": limit, "samples": _plain(samples or {}), "compat": compat,
            "gen_kwargs": _plain(gen_kwargs or {}), "system_instruction": system_instruction,
            "fewshot_as_multiturn": self._chat if fewshot_as_multiturn is None else fewshot_as_multiturn,
            "predict_only": predict_only, "fewshot_seed": fewshot_seed,
            "confirm_run_unsafe_code": confirm_run_unsafe_code,
        }  # fmt: skip
        self._maker = EngineMaker(tokenizer, batch_size, pass_tokens, _plain(model_options or {}), compat)
        self._maker.server = None if server is None else _plain(server)
        self._maker.backend, self._maker.backend_options = engine, _plain(engine_options or {})
        self._log_samples, self._answers, self._show_members = log_samples or predict_only, answers, show_members
        self._metadata = _plain(metadata or {})
        self.progress = progress
        self._suite: Suite | None = None

    @property
    def suite(self) -> Suite:
        """The tasks that were asked for, read but not loaded.

        Raises:
            ConfigError: whatever cannot be found or read, all at once.
        """
        if self._suite is None:
            self._suite = make_suite(
                self._tasks, include_path=self._roots, data=self._data, options=RunOptions(**self._options),
                metadata=self._metadata,
            )  # fmt: skip
        return self._suite

    @property
    def task_names(self) -> tuple[str, ...]:
        """Tasks and groups that were asked for."""
        grouped = {name for group in self.suite.selection.groups for name in group.leaves()}
        groups = [group.name for group in self.suite.selection.groups]
        return (*groups, *(name for name in self.suite.selection.tasks if name not in grouped))

    def restrict(self, limit: int | None, fast_dev_run: bool) -> None:
        """Evaluate only the first documents of each task."""
        sizes = [size for size in (limit, self._options["limit"]) if size is not None]
        if fast_dev_run:
            sizes.append(_DEV_DOCUMENTS)
        if sizes:
            whole = [size for size in sizes if size >= 1]
            self._options["limit"] = min(whole) if whole else min(sizes)
            self._suite = None

    def faults(self) -> list[Fault]:
        """What is wrong with the task files, found without running their Python."""
        try:
            selection = self.suite.selection
            read = self.suite.reader
            specs = [plan.spec for plan in selection.tasks.values()]
            own = [f for spec in specs if spec.source is not None for f in check_spec(spec, read(spec.source))]
            return [*backend_faults(self._maker), *own]
        except FusionEvalError as error:
            return [*backend_faults(self._maker), *error.faults]

    def setup(self) -> None:
        """Open every task's data, once."""
        with code_execution(bool(self._options["confirm_run_unsafe_code"])):
            self.suite.load()

    def results(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        name: str = "model",
        role: str = "merged",
        tasks: Sequence[str] | None = None,
    ) -> ModelResult:
        """The typed results; the same on every rank.

        Args:
            model: one model, or one per task.
            name: the model's name in the report.
            role: "base", "expert" or "merged".
            tasks: which tasks or groups to evaluate.
        """
        start = time.perf_counter()
        found: list[TaskResult] = []
        info: dict[str, float] = {}
        for current, names in self._shares(model, tasks):
            info = info or model_info(current)
            found += task_results(self._outcome(current, name, names), self._show_members)
        return ModelResult(name, role, tuple(found), info, time.perf_counter() - start)

    def _shares(
        self, model: nn.Module | Mapping[str, nn.Module], tasks: Sequence[str] | None
    ) -> list[tuple[nn.Module, list[str] | None]]:
        if not isinstance(model, Mapping):
            return [(model, None if tasks is None else self._leaves(tasks))]
        wanted = self.task_names if tasks is None else tasks
        missing = [task for task in wanted if task not in model]
        if missing:
            raise ConfigError(Fault("model", f"no model for {', '.join(missing)}", "one per task"))
        return [(model[task], self._leaves([task])) for task in wanted]

    def _leaves(self, names: Sequence[str]) -> list[str]:
        """The tasks that names of tasks and groups stand for."""
        groups = {group.name: group.leaves() for group in self.suite.selection.all_groups()}
        return [leaf for name in names for leaf in groups.get(name, [name])]

    def _outcome(self, model: nn.Module, name: str, names: list[str] | None) -> Outcome:
        devices = self.devices
        pool = getattr(self._program, "modelpool", None)
        placed = devices.place(model) if self._maker.backend == "transformers" else model
        allowed = bool(self._options["confirm_run_unsafe_code"])
        with opened(self._maker, placed, name, pool) as engine, code_execution(allowed):
            outcome = evaluate(
                self.suite, engine, chat=self._chat, store=self._store(),
                ranks=Ranks(devices.rank, devices.world, lambda item: _everywhere(devices, item)),
                seed=int(getattr(self._program, "seed", 0)), only=names,
                progress=self._progress if self.progress and devices.is_zero else None,
            )  # fmt: skip
        output = getattr(self._program, "output", None)
        if output is not None and devices.is_zero:
            write_results(Path(output) / "lm_eval", outcome, name, samples=self._log_samples)
        return outcome

    def _store(self) -> Path | None:
        if self._answers is None:
            return None
        return cache_folder() / "answers" if self._answers == "cache" else Path(self._answers)

    def _progress(self, kind: str, done: int, total: int) -> None:
        from tqdm import tqdm

        bar = getattr(self, "_bar", None)
        if bar is None or bar.desc != f"{kind}: " or done == 1:
            bar = self._bar = tqdm(total=total, desc=kind, leave=False)
        bar.update(done - bar.n)
        if done == total:
            bar.close()


def _everywhere(devices: Devices, item: Any) -> list[Any]:
    """All ranks' items, on every rank."""
    return devices.broadcast(devices.gather(item))


def _listed(value: str | Sequence[str] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(item) for item in value]


def _folders_of(packages: str | Sequence[str] | None) -> list[Path]:
    return [peer_tasks(package) for package in _listed(packages)]


def _plain(value: Any) -> Any:
    """Configuration nodes as plain Python."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
