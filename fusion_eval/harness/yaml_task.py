"""The task that a YAML file describes; Python tasks of the peer derive from it."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.harness import field, scoring
from fusion_eval.harness.aggregation import Aggregation, get_aggregation
from fusion_eval.harness.context import current
from fusion_eval.harness.fewshot import ContextSampler, sampler_class
from fusion_eval.harness.filter.pipeline import build_pipeline
from fusion_eval.harness.metric import DEFAULT_METRICS, METRICS, BoundMetric, bind, document_score
from fusion_eval.harness.prompt import Style, Turn, joined, question_and_answer, render_prompt
from fusion_eval.harness.request import Request
from fusion_eval.harness.spec import MetricSpec, TaskSpec
from fusion_eval.harness.task import Document, spec_of
from fusion_eval.harness.yaml_documents import YamlDocuments

_PER_DOCUMENT = ("mean", "median", "nanmean")


class ConfigurableTask(YamlDocuments):
    """A task made of a `TaskSpec`.

    Args:
        config: the spec, or the keys of a task file.
    """

    VERSION: Any = "Yaml"

    def __init__(
        self, data_dir: str | None = None, cache_dir: str | None = None, download_mode: Any = None,
        config: Mapping[str, Any] | TaskSpec | None = None,
    ) -> None:  # fmt: skip
        spec = self._config = _completed(spec_of(config))
        self._context = current()
        self._shot_pool = None
        self._split_docs: dict[str, Any] = {}
        self._shot_turns: dict[int, tuple[Any, list[Turn]]] = {}
        self.VERSION = spec.metadata.get("version", self.VERSION)
        self.OUTPUT_TYPE = spec.output_type
        self.MULTIMODAL = spec.multimodal
        self.UNSAFE_CODE = spec.unsafe_code or self.UNSAFE_CODE
        self.DATASET_PATH = spec.dataset_path if spec.dataset_path is not None else self.DATASET_PATH
        self.DATASET_NAME = spec.dataset_name if spec.dataset_name is not None else self.DATASET_NAME
        self._metrics, self._aggregations, self._directions = _bind_metrics(spec)
        self._filters = [build_pipeline(pipeline) for pipeline in spec.filter_list]
        self.download(dict(spec.dataset_kwargs))

    def fewshot_context(  # type: ignore[override]
        self, doc: Document, num_fewshot: int = 0, system_instruction: str | None = None,
        apply_chat_template: bool = False, fewshot_as_multiturn: bool = False, chat_template: Any = None,
        gen_prefix: str | None = None,
    ) -> Any:  # fmt: skip
        """The prompt; a list of them, one per choice, where the choices are contexts."""
        description = field.column_or_template(self.config.description, doc) or ""
        head = joined(system_instruction, description, self.config.fewshot_delimiter)
        turns = [Turn("system", head)] if head else []
        for shot in self._draw(doc, num_fewshot):
            turns += self._turns_of_shot(shot)
        chat = chat_template if apply_chat_template else None
        style = Style(self.config.target_delimiter)
        if self.multiple_input:
            style = Style("")
            questions = self.doc_to_choice(doc)
        else:
            questions = [self.doc_to_text(doc)]
        prompts = [
            render_prompt(
                [*turns, *question_and_answer(q, style, prefix=gen_prefix)], chat, fewshot_as_multiturn, gen_prefix
            )
            for q in questions
        ]
        return prompts if self.multiple_input else prompts[0]

    def _draw(self, doc: Document, shots: int) -> Sequence[Document]:
        if not shots:
            return ()
        return self.shot_sampler().sample(n=shots, eval_doc=doc if self._excludes_own else None)

    @functools.cached_property
    def _excludes_own(self) -> bool:
        """Whether a document may not be its own shot (the peer forgets pools that fall back to the test split)."""
        peer = self.shot.split == self.config.test_split
        if self._context.compat or peer:
            return peer
        if self._one_file:
            return self.shot.split is not None or self.shot.samples is None
        if self.shot.split is not None:
            return self.shot.split in (self._test_split() or self.config.validation_split,)
        return self.shot.samples is None and not self.has_training_docs()

    def shot_sampler(self) -> ContextSampler:
        """The sampler of shots."""
        if not hasattr(self, "sampler"):
            cls = sampler_class(self.shot.sampler)
            indices = {} if self._context.compat else {"fewshot_indices": self.shot.fewshot_indices}
            self.sampler = cls(self._pool(), rnd=self._context.fewshot_seed, **indices)
        return self.sampler

    def _turns_of_shot(self, shot: Document) -> list[Turn]:
        known = self._shot_turns.get(id(shot))
        if known is None or known[0] is not shot:
            known = self._shot_turns[id(shot)] = (shot, self._build_shot(shot))
        return known[1]

    def _build_shot(self, shot: Document) -> list[Turn]:
        own = self.shot
        question = self.doc_to_text(shot, own.doc_to_text)
        choices = self.doc_to_choice(shot, own.doc_to_choice) if own.doc_to_choice else None
        answer = self.doc_to_target(shot, own.doc_to_target)
        if self.multiple_input and choices is not None:
            question, choices = choices[question], None
        style = Style(own.target_delimiter or "", own.fewshot_delimiter or "")
        return question_and_answer(question, style, answer, choices, field.column_or_template(own.gen_prefix, shot))

    def construct_requests(self, doc: Document, ctx: Any, **kwargs: Any) -> Request | list[Request]:
        """The requests of a document."""
        chat = kwargs.pop("apply_chat_template", False)
        kwargs.pop("chat_template", None)
        media = self._media(doc)
        if self.OUTPUT_TYPE == "generate_until":
            return Request("generate_until", doc, (ctx, copy.deepcopy(self.config.generation), *media), 0, **kwargs)
        if self.OUTPUT_TYPE == "loglikelihood_rolling":
            return Request("loglikelihood_rolling", doc, (self.doc_to_target(doc), *media), 0, **kwargs)
        if self.OUTPUT_TYPE == "loglikelihood":
            pairs = self._ranked_pairs(doc, ctx)
        else:
            pairs = self._choice_pairs(doc, ctx, chat)
        made = [Request("loglikelihood", doc, (*pair, *media), i, **kwargs) for i, pair in enumerate(pairs)]
        return made if len(made) > 1 or self.OUTPUT_TYPE == "multiple_choice" else made[0]

    def _media(self, doc: Document) -> tuple[dict[str, Any], ...]:
        media = {}
        if self.config.doc_to_image:
            media["visual"] = self.doc_to_image(doc)
        if self.config.doc_to_audio:
            media["audio"] = self.doc_to_audio(doc)
        return (media,) if media else ()

    def _ranked_pairs(self, doc: Document, ctx: str) -> list[tuple[str, str]]:
        target = self.doc_to_target(doc)
        return [(ctx, option) for option in (target if isinstance(target, list) else [target])]

    def _choice_pairs(self, doc: Document, ctx: Any, chat: bool) -> list[tuple[str, str]]:
        choices = self.doc_to_choice(doc)
        delimiter = self.config.target_delimiter
        prefix = self.config.gen_prefix
        if chat and not (prefix and not prefix[-1].isspace()):
            delimiter = ""
        if self.multiple_input:
            target = self.doc_to_target(doc)
            pairs = [(context, f"{delimiter}{target}") for context in ctx]
        else:
            pairs = [(ctx, f"{delimiter}{choice}") for choice in choices]
        if any(metric.name == "acc_mutual_info" for metric in self._metrics):
            pairs += [("", f"{delimiter}{choice}") for choice in choices]
        return pairs

    def process_results(self, doc: Document, results: Any) -> Mapping[str, Any]:
        """Metric values of a document."""
        own = self.config.process_results
        if callable(own):
            return own(doc, results)  # type: ignore[no-any-return]
        names = [metric.name for metric in self._metrics]
        if self.OUTPUT_TYPE == "loglikelihood":
            return scoring.ranked(results, names) if len(results) > 1 else scoring.loglikelihood(results[0], names)
        if self.OUTPUT_TYPE == "loglikelihood_rolling":
            text = self.doc_to_target(doc)
            return scoring.rolling(results[0], self.count_words(text), self.count_bytes(text), names)
        if self.OUTPUT_TYPE == "multiple_choice":
            choices, gold = self._choices_and_gold(doc)
            return scoring.multiple_choice(results, choices, gold, names)
        return self._score_generated(doc, results[0])

    def _choices_and_gold(self, doc: Document) -> tuple[Any, Any]:
        choices = self.doc_to_choice(doc)
        target = self.doc_to_text(doc) if self.multiple_input else self.doc_to_target(doc)
        return choices, scoring.choice_gold(target, choices)

    def remark(self, doc: Document) -> str | None:
        """What is odd about a document's answer: one that is none of the choices counts as never found."""
        if self.OUTPUT_TYPE != "multiple_choice" or self.config.process_results is not None:
            return None
        return None if scoring.is_among(self._choices_and_gold(doc)[1]) else scoring.NO_ANSWER

    def _score_generated(self, doc: Document, result: Any) -> Mapping[str, Any]:
        gold = self.doc_to_target(doc)
        several = bool(self.multiple_target)
        if self.config.doc_to_choice is not None:
            gold = self.doc_to_choice(doc)[gold]
        elif several:
            gold = list(gold) if isinstance(gold, (list, tuple)) else [gold]
        elif not any(metric.name == "bypass" for metric in self._metrics):
            gold = scoring.as_type_of(gold, result)
        metrics = self._metrics
        if isinstance(result, list) and len(result) == 1 and self._unwraps:
            single = scoring.generated(result[0], gold, [m for m in metrics if not m.builtin], several)
            return {**scoring.generated(result, gold, [m for m in metrics if m.builtin], several), **single}
        return scoring.generated(result, gold, metrics, several)

    @functools.cached_property
    def _unwraps(self) -> bool:
        """Whether a user's metric gets the only response itself: every filter treats responses one by one."""
        lists = [pipeline for pipeline in self._filters if pipeline.keeps_lists]
        return not self._context.compat and self.config.repeats == 1 and bool(lists)

    def aggregation(self) -> Mapping[str, Aggregation]:
        """Metric -> aggregation."""
        return self._aggregations

    def higher_is_better(self) -> Mapping[str, bool]:
        """Metric -> direction."""
        return self._directions


def _completed(spec: TaskSpec) -> TaskSpec:
    """The spec with the generation settings in full, which Python tasks read from it."""
    if spec.output_type != "generate_until":
        return spec
    return dataclasses.replace(spec, generation_kwargs=spec.generation)


def _bind_metrics(spec: TaskSpec) -> tuple[list[BoundMetric], dict[str, Aggregation], dict[str, bool]]:
    entries = spec.metric_list
    if entries is None:
        entries = tuple(MetricSpec(name) for name in DEFAULT_METRICS.get(spec.output_type, ()))
    bound: list[BoundMetric] = []
    aggregations: dict[str, Aggregation] = {}
    directions: dict[str, bool] = {}
    for entry in entries:
        strict = spec.output_type == "generate_until" and not callable(spec.process_results)
        known = METRICS.get(entry.name)
        default = entry.aggregation if entry.aggregation is not None else (known.aggregation if known else "mean")
        aggregations[entry.name] = get_aggregation(default)
        metric = entry.metric if isinstance(entry.metric, str) or spec.process_results is None else entry.name
        own = document_score(metric) if strict and isinstance(metric, str) and default in _PER_DOCUMENT else None
        bound.append(bind(entry.name, own or metric, entry.options, strict))
        better = entry.higher_is_better
        directions[entry.name] = better if better is not None else (known.higher_is_better if known else True)
    return bound, aggregations, directions
