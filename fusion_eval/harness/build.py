"""From plans to tasks with their data, and from tasks to requests."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from fusion_eval.errors import ConfigError, DataError, Fault, FusionEvalError
from fusion_eval.harness.context import BuildContext, building
from fusion_eval.harness.fewshot import SEED
from fusion_eval.harness.function import ModuleSpace, is_task_module
from fusion_eval.harness.plan import Selection, TaskPlan
from fusion_eval.harness.request import Request
from fusion_eval.harness.spec import MetricSpec, TaskSpec
from fusion_eval.harness.task import Task
from fusion_eval.harness.yaml_task import ConfigurableTask

ChatTemplate = Callable[..., str]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run changes in every task.

    Args:
        num_fewshot: shots; None for each file's own number. A file that says 0 keeps 0.
        limit: documents per task, or their share if below 1; None for all.
        samples: task -> indices of the documents to score; tasks that are not named run in full.
        gen_kwargs: laid over the generation settings of every task.
        system_instruction: put first.
        chat_template: `(messages, add_generation_prompt=...) -> text`; None for plain text.
        fewshot_as_multiturn: shots as messages of their own.
        predict_only: responses without scores.
        confirm_run_unsafe_code: tasks that execute what the model writes may run.
        fewshot_seed: seed of the shots.
        compat: repeat the peer's known mistakes, so that its numbers come out.
        on_error: "fail" where a document cannot be asked or scored, or "unscored" to count it and go on.
    """

    num_fewshot: int | None = None
    limit: float | None = None
    samples: Mapping[str, Sequence[int]] = field(default_factory=dict)
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)
    system_instruction: str | None = None
    chat_template: ChatTemplate | None = None
    fewshot_as_multiturn: bool = False
    predict_only: bool = False
    confirm_run_unsafe_code: bool = False
    fewshot_seed: int | None = SEED
    compat: bool = False
    on_error: Literal["fail", "unscored"] = "fail"

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "unscored"):
            raise ConfigError(Fault("on_error", repr(self.on_error), "fail or unscored"))
        if self.limit is not None and self.limit <= 0:
            raise ConfigError(Fault("limit", repr(self.limit), "a positive number, or a share below 1"))
        if self.limit is not None and self.samples:
            raise ConfigError(Fault("limit", "is given together with samples", "one of them"))


@dataclass(slots=True)
class BuiltTask:
    """A task with its requests.

    Args:
        task: what scores the responses.
        spec: its settings after all overrides.
        docs: (document id, document) of those that are scored.
        requests: all requests, document after document.
        total: number of documents before limit and samples.
        unscored: document id -> why it could not be asked.
    """

    name: str
    task: Task
    spec: TaskSpec
    docs: list[tuple[int, Any]]
    requests: list[Request]
    total: int
    unscored: dict[int, str] = field(default_factory=dict)


def load_tasks(
    selection: Selection, modules: ModuleSpace, context: BuildContext, options: RunOptions
) -> dict[str, Task]:
    """Tasks with their data.

    Raises:
        FusionEvalError: whatever is wrong with any of them, all at once, each named.
    """
    loaded: dict[str, Task] = {}
    faults: list[Fault] = []
    with building(context):
        for name, plan in selection.tasks.items():
            try:
                with telling(name):
                    loaded[name] = load_task(plan, modules, options)
            except FusionEvalError as error:
                faults += error.faults
    if faults:
        raise DataError(*faults)
    return loaded


@contextmanager
def telling(name: str) -> Iterator[None]:
    """Errors inside, those of a task's own Python too, name the task and the place where they arose."""
    try:
        yield
    except FusionEvalError as error:
        said = (f"task '{name}'", f"{name}:", f"{name} ", f"{name}.")
        raise type(error)(
            *(
                f if f.where == name or f.where.startswith(said) else dataclasses.replace(f, where=f"{name}: {f.where}")
                for f in error.faults
            )
        ) from error
    except Exception as error:
        raise DataError(Fault(f"task '{name}'", f"{type(error).__name__}: {error}{line_of(error)}")) from error


def load_task(plan: TaskPlan, modules: ModuleSpace, options: RunOptions) -> Task:
    """One task with its data, inside the current build context.

    Raises:
        ConfigError: a key that cannot be honoured, or code that would run without consent.
    """
    spec = adjusted(modules.resolve(plan.spec), options)
    if spec.unsafe_code and not options.confirm_run_unsafe_code:
        raise ConfigError(consent_missing())
    if spec.class_ is not None:
        return _python_task(plan, modules, spec)
    if spec.use_prompt is not None:
        raise ConfigError(
            Fault("use_prompt", repr(spec.use_prompt), "templates in the file itself",
                  "Write doc_to_text, doc_to_target and doc_to_choice instead.")
        )  # fmt: skip
    return ConfigurableTask(config=spec)


def consent_missing(where: str = "") -> Fault:
    """The fault of a task that would run generated code."""
    return Fault(f"{where}unsafe_code", "the task executes what the model writes", "your consent",
                 "Set confirm_run_unsafe_code=true.")  # fmt: skip


def adjusted(spec: TaskSpec, options: RunOptions) -> TaskSpec:
    """The spec with a run's options laid over it."""
    spec = spec.with_shots(options.num_fewshot)
    if options.gen_kwargs and spec.output_type == "generate_until":
        spec = dataclasses.replace(spec, generation_kwargs={**spec.generation, **options.gen_kwargs})
    if options.predict_only:
        spec = dataclasses.replace(spec, metric_list=(MetricSpec("bypass"),), process_results=None)
    return spec


def _python_task(plan: TaskPlan, modules: ModuleSpace, spec: TaskSpec) -> Task:
    cls: Any = spec.class_
    values = {**modules.resolve(dict(plan.values)), "class": cls}
    parameters = inspect.signature(cls.__init__).parameters
    takes_config = "config" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    task = cls(config=values) if takes_config else cls()
    if not isinstance(task, Task):
        raise ConfigError(
            Fault(
                "class", f"{cls.__module__}.{cls.__qualname__} is not a task", "a subclass of ConfigurableTask or Task"
            )
        )
    shots = spec.num_fewshot if spec.num_fewshot is not None else task.config.num_fewshot
    task.config = dataclasses.replace(task.config, task=plan.name, num_fewshot=shots, source=spec.source)
    return task


def build_requests(name: str, task: Task, options: RunOptions) -> BuiltTask:
    """All requests of a task, the same on every rank.

    Raises:
        DataError: no documents, or a document that cannot be turned into a prompt, with its id.
        ConfigError: a task that runs generated code without consent.
    """
    if task.UNSAFE_CODE and not options.confirm_run_unsafe_code:
        raise ConfigError(consent_missing(f"{name}: "))
    with telling(name), task.randomness.lent():
        return _built(name, task, options)


def _built(name: str, task: Task, options: RunOptions) -> BuiltTask:
    task.set_fewshot_seed(options.fewshot_seed)
    pool = task.eval_docs
    total = len(pool)
    docs = selected_documents(name, pool, options)
    built = BuiltTask(name, task, task.config, [], [], total)
    for doc_id, doc in docs:
        try:
            built.requests += document_requests(name, task, doc_id, doc, options)
        except FusionEvalError as error:
            if options.on_error == "fail":
                raise
            built.unscored[doc_id] = str(error)
            continue
        built.docs.append((doc_id, doc))
    return built


def document_requests(name: str, task: Task, doc_id: int, doc: Any, options: RunOptions) -> list[Request]:
    """The requests of one document.

    Raises:
        DataError: what went wrong, with task, document and, for a user's function, file and line.
    """
    chat = options.chat_template
    try:
        context = task.fewshot_context(
            doc, num_fewshot=task.config.shots, system_instruction=options.system_instruction,
            apply_chat_template=chat is not None, fewshot_as_multiturn=options.fewshot_as_multiturn,
            chat_template=chat, gen_prefix=task.doc_to_prefix(doc),
        )  # fmt: skip
        made = task.construct_requests(
            doc=doc, ctx=context, metadata=(name, doc_id, task.config.repeats),
            apply_chat_template=chat is not None, chat_template=chat,
        )  # fmt: skip
    except Exception as error:
        raise document_error(name, doc_id, error) from error
    return [made] if isinstance(made, Request) else list(made)


def document_error(name: str, doc_id: int, error: Exception) -> FusionEvalError:
    """The error of one document, with the place in the user's code where it arose."""
    where = f"task '{name}', document {doc_id}"
    if isinstance(error, FusionEvalError):
        return type(error)(
            *(dataclasses.replace(f, where=f"{where}, {f.where}" if f.where else where) for f in error.faults)
        )
    return DataError(Fault(where, f"{type(error).__name__}: {error}{line_of(error)}"))


def line_of(error: Exception) -> str:
    """Where it arose: the innermost line of a task's Python, else of any code that is not the harness's own."""
    trace, place, task = error.__traceback__, "", ""
    while trace is not None:
        code, name = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__", ""))
        here = f" at {code.co_filename}:{trace.tb_lineno}"
        if is_task_module(name):
            task = here
        if "fusion_eval/harness" not in code.co_filename.replace("\\", "/"):
            place = here
        trace = trace.tb_next
    return task or place


def selected_documents(name: str, pool: Any, options: RunOptions) -> list[tuple[int, Any]]:
    """(id, document) of the documents that are scored, in the order of the data set.

    Raises:
        DataError: none, or an index that the data set does not have.
    """
    total = len(pool)
    wanted = list(options.samples.get(name, ()))
    if wanted:
        outside = [i for i in wanted if not 0 <= i < total]
        if outside:
            raise DataError(Fault(f"samples.{name}", f"indices {outside[:5]}", f"0 to {total - 1}"))
        ids = sorted(set(wanted))
        labels: Iterable[int] = wanted if options.compat and len(ids) == len(wanted) else ids
        return [(label, pool[i]) for label, i in zip(labels, ids, strict=True)]
    count = total
    if options.limit is not None:
        count = math.ceil(total * options.limit) if options.limit < 1 else int(options.limit)
    rows = pool.select(range(min(count, total))) if hasattr(pool, "select") else pool[:count]
    docs = list(enumerate(rows))
    if not docs:
        raise DataError(Fault(name, "has no documents to score", "a split that is not empty", "Look at process_docs "
                              "and the split names."))  # fmt: skip
    return docs


def reset(built: BuiltTask) -> BuiltTask:
    """The same requests without responses, for another model."""
    fresh = [copy.copy(request) for request in built.requests]
    for request in fresh:
        request.resps, request.filtered_resps = [], {}
    return dataclasses.replace(built, requests=fresh)
