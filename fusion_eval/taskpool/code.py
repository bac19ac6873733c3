"""Code-generation tasks: the model writes programs, the sandbox runs them, pass@k comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fusion_eval.cache import cache_folder
from fusion_eval.errors import ConfigError, Fault, FusionEvalError, SandboxError
from fusion_eval.harness.code.execution import ExecutionTask
from fusion_eval.harness.code.generate import Options, candidates, requests
from fusion_eval.harness.code.registry import native_tasks, select, tasks_in
from fusion_eval.harness.code.scoring import CodeResult, evaluate, require_references, unavailable
from fusion_eval.harness.code.source import data_root as use_data
from fusion_eval.harness.code.task import Task
from fusion_eval.harness.scheduler import Ranks, Scheduler
from fusion_eval.harness.store import AnswerStore
from fusion_eval.report.values import TaskResult
from fusion_eval.sandbox import Sandbox
from fusion_eval.taskpool.code_files import load_descriptions, load_rows, save_rows
from fusion_eval.taskpool.code_report import task_result
from fusion_eval.taskpool.language_model import EngineMaker
from fusion_eval.taskpool.typed_pool import Measurements, TypedTaskPool, model_info

_DEV_DOCUMENTS = 4
_PROMPTED = ("humanevalsynth", "humanevalfix", "humanevalexplain", "quixbugs", "python_bugs", "parity")


class CodeTaskPool(TypedTaskPool):
    """Tasks whose answers are programs.

    Args:
        tasks: names or patterns of tasks, such as `humaneval` or `multiple-*`.
        task_folder: a file or folder with task classes of your own; its Python runs outside the sandbox.
        data_root: folder with local data files; null for the hub.
        allow_code_execution: must be true for tasks that run programs.
        generation: `n_samples`, `temperature`, `top_p`, `top_k`, `max_new_tokens`, `max_length_generation`, `limit`,
            `limit_start`, `prefix`, `instruction_tokens`, `postprocess`.
        prompt: prompt template of HumanEvalPack tasks, and of quixbugs, python_bugs and parity.
        descriptions: file with the generations of `humanevalexplaindescribe-*`, for `humanevalexplainsynthesize-*`.
        apply_chat_template: put prompts into the tokenizer's chat template.
        generation_only: write generations, score nothing.
        load_generations: file or folder with generations to score instead of asking a model.
        check_references: run every task's own solutions first, and refuse a task whose references fail.
        sandbox: `workers`, `bubblewrap`, `cache`, `preload`, `unsafe`.
        batch_size: prompts generated together, or "auto".
        tokenizer: folder or name; null for the model's own.
        model_options: max_length, add_bos_token, think_end_token, chat_template_args.
        answers: folder where completions are kept, so that runs resume and grow; "cache", or null to keep none.
    """

    def __init__(
        self,
        tasks: str | Sequence[str],
        *,
        task_folder: str | None = None,
        data_root: str | None = None,
        allow_code_execution: bool = False,
        generation: Mapping[str, Any] | None = None,
        prompt: str | None = None,
        descriptions: str | None = None,
        apply_chat_template: bool = False,
        generation_only: bool = False,
        load_generations: str | None = None,
        check_references: bool = False,
        sandbox: Mapping[str, Any] | None = None,
        batch_size: int | str = "auto",
        tokenizer: Any = None,
        model_options: Mapping[str, Any] | None = None,
        answers: str | None = "cache",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._patterns = [tasks] if isinstance(tasks, str) else [str(task) for task in tasks]
        self._folder, self._root, self._prompt, self._descriptions = task_folder, data_root, prompt, descriptions
        self._allowed, self._chat = allow_code_execution is True, bool(apply_chat_template)
        self._only_generate, self._load, self._check = generation_only, load_generations, check_references
        self._generation, self._sandbox = dict(generation or {}), dict(sandbox or {})
        self._maker = EngineMaker(tokenizer, batch_size, None, dict(model_options or {}))
        self._answers = answers
        self._tasks: dict[str, Task] | None = None

    @property
    def options(self) -> Options:
        """The generation settings; raises ConfigError for values or names that make no sense."""
        given = {"seed": int(getattr(self._program, "seed", 0) or 0), **self._generation}
        unknown = sorted(set(given) - set(Options.__slots__))
        if unknown:
            raise ConfigError(Fault("taskpool.generation", ", ".join(unknown), f"of {', '.join(Options.__slots__)}"))
        tokens = given.get("instruction_tokens")
        tokens = tokens.split(",") if isinstance(tokens, str) else tokens  # as BigCode's command line has them
        return Options(**{**given, "instruction_tokens": None if tokens is None else tuple(tokens)})

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks that were asked for, by name; raises ConfigError for names that mean none."""
        if self._tasks is None:
            known = {**native_tasks(), **(tasks_in(self._folder) if self._folder else {})}
            self._tasks = {name: known[name](**self._task_options(name)) for name in select(self._patterns, known)}
        return self._tasks

    def _task_options(self, name: str) -> dict[str, Any]:
        """Further arguments of the tasks that take some."""
        found: dict[str, Any] = {}
        if self._prompt is not None and name.startswith(_PROMPTED):
            found["prompt"] = self._prompt
        if self._descriptions is not None and name.startswith("humanevalexplainsynthesize"):
            found["descriptions"] = load_descriptions(Path(self._descriptions), name)
        return found

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks that were asked for."""
        return tuple(self.tasks)

    def restrict(self, limit: int | None, fast_dev_run: bool) -> None:
        """Evaluate only the first problems of each task."""
        sizes = [self._generation.get("limit"), limit, _DEV_DOCUMENTS if fast_dev_run else None]
        known = [int(size) for size in sizes if size is not None]
        if known:
            self._generation["limit"] = min(known)

    def faults(self) -> list[Fault]:
        """What is wrong, found before a model is loaded: names, settings, permission."""
        faults: list[Fault] = []
        for look in (lambda: self.options, lambda: self.tasks, self._require_permission):
            try:
                look()
            except FusionEvalError as error:
                faults += error.faults
        return faults

    def _require_permission(self) -> None:
        if self._only_generate or not any(task.requires_execution for task in self.tasks.values()):
            return
        Sandbox(allow_code_execution=self._allowed, **self._sandbox)

    def setup(self) -> None:
        """Open every task's documents."""
        with use_data(self._root):
            for task in self.tasks.values():
                task.get_dataset()

    def _measured(
        self, model: nn.Module | Mapping[str, nn.Module], name: str, role: str, tasks: Sequence[str] | None
    ) -> Measurements:
        chosen = [task for task in self.task_names if tasks is None or task in tasks]
        models = {task: model[task] if isinstance(model, Mapping) else model for task in chosen}
        with use_data(self._root):
            rows = {task: self._rows(task, models[task], name) for task in chosen}
            found = self._on_rank_zero(rows)
        return model_info(next(iter(models.values()))) if models else {}, found

    def _rows(self, task: str, model: nn.Module, name: str) -> list[list[str]]:
        """The candidates of each problem of a task: from a file, or from the model."""
        options = self.options
        if self._load is not None:
            return load_rows(Path(self._load), task, self.tasks[task], options)
        devices = self.devices
        engine: Any = self._maker.engine(devices.place(model), name, getattr(self._program, "modelpool", None))
        template = engine.apply_chat_template if self._chat else None
        asked = requests(task, self.tasks[task], options, tokenizer=engine.tokenizer, template=template)
        ranks = Ranks(devices.rank, devices.world, lambda item: devices.broadcast(devices.gather(item)))
        Scheduler(engine, self._store(engine.fingerprint, devices.rank), ranks).answer(asked, options.seed)
        samples = candidates(task, self.tasks[task], asked, options, options.digest(engine.fingerprint))
        output = getattr(self._program, "output", None)
        if output is not None and devices.is_zero:
            save_rows(Path(output) / "generations" / name, task, samples)
        width = options.n_samples
        return [[s.candidate for s in samples[i : i + width]] for i in range(0, len(samples), width)]

    def _store(self, fingerprint: str, rank: int) -> AnswerStore | None:
        if self._answers is None:
            return None
        folder = cache_folder() / "code_answers" if self._answers == "cache" else Path(self._answers)
        return AnswerStore(folder, fingerprint, rank)

    def _on_rank_zero(self, rows: Mapping[str, list[list[str]]]) -> list[TaskResult]:
        """Scores there; every rank gets the results, or raises the same error."""
        found: list[TaskResult] | FusionEvalError = []
        if self.devices.is_zero:
            try:
                found = self._scored(rows)
            except FusionEvalError as error:
                found = error
        found = self.devices.broadcast(found)
        if isinstance(found, FusionEvalError):
            raise found
        return found

    def _scored(self, rows: Mapping[str, list[list[str]]]) -> list[TaskResult]:
        if self._only_generate:
            return [TaskResult(task, {}, len(row), notes=("generated, not scored",)) for task, row in rows.items()]
        with ExitStack() as stack:
            box = None
            if any(self.tasks[task].requires_execution for task in rows):
                box = stack.enter_context(Sandbox(allow_code_execution=self._allowed, **self._sandbox))
            return [
                self._with_notes(task_result(task, self._score(task, row, box), self.options))
                for task, row in rows.items()
            ]

    def _with_notes(self, result: TaskResult) -> TaskResult:
        """Says of a task without solutions that its references were not checked, where that was asked for."""
        if not self._check or isinstance(self.tasks[result.name], ExecutionTask):
            return result
        note = "references not checked: only an ExecutionTask, whose `solution` gives them, has any to run"
        return replace(result, notes=(*result.notes, note))

    def _score(self, name: str, rows: list[list[str]], box: Sandbox | None) -> CodeResult:
        task, options = self.tasks[name], self.options
        if self._check and isinstance(task, ExecutionTask) and not unavailable(task):
            if box is None:
                raise SandboxError(
                    Fault("check_references", f"task '{name}' runs nothing", "a task that runs programs")
                )
            require_references(task, box, options.limit, options.limit_start)
        return evaluate(task, rows, box if task.requires_execution else None, options.limit, options.limit_start)
