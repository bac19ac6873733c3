"""The task of a multimodal file: questions with pictures, videos and sounds, and the scores of its own functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness import field, scoring
from fusion_eval.harness.context import current
from fusion_eval.harness.media import Conversation, Media, Turn
from fusion_eval.harness.metric import METRICS, Metric
from fusion_eval.harness.multimodal import results as scores
from fusion_eval.harness.multimodal.adapter_names import SHOWN
from fusion_eval.harness.multimodal.aggregate import peer_aggregation, with_arguments
from fusion_eval.harness.multimodal.blocks import naming_blocks
from fusion_eval.harness.multimodal.dialect import IN_ROUNDS, prompt_kwargs, style_of, target_kwargs
from fusion_eval.harness.multimodal.documents import Gallery, call_hook, column_of, own_copy, without_media
from fusion_eval.harness.multimodal.messages import conversation_of
from fusion_eval.harness.multimodal.metrics import anls
from fusion_eval.harness.multimodal.redirect import unpack_media
from fusion_eval.harness.multimodal.rounds import Dialogue, next_question
from fusion_eval.harness.multimodal.setting import Setting, prepared, steps_of
from fusion_eval.harness.multimodal.visual import media_list, sampled
from fusion_eval.harness.prompt import answer_text, joined
from fusion_eval.harness.request import Request
from fusion_eval.harness.spec import TaskSpec
from fusion_eval.harness.task import Document
from fusion_eval.harness.yaml_task import ConfigurableTask

METRICS.setdefault("anls", Metric(compute=anls))


@dataclass(frozen=True, slots=True)
class Context:
    """What stands around the media of a question.

    Args:
        lead: shots with their media, which come first.
        text: the question; of a task without shots with its description before it.
        system: a system message.
    """

    lead: tuple[str | Media, ...]
    text: str
    system: str | None = None


class MultimodalTask(ConfigurableTask):
    """A task made of a multimodal file.

    Hooks for texts, targets, choices and scores get documents without their media, `doc_to_visual` and
    `doc_to_messages` the whole ones.

    Args:
        config: the spec, its functions imported.
        setting: what the run gives.
    """

    MULTIMODAL = True
    unlisted_aggregation = None

    def __init__(self, config: TaskSpec, setting: Setting | None = None) -> None:
        self.setting = setting or Setting()
        folder = [config.source.parent] if config.source else []
        self.style = self.setting.style or style_of(config, folder)
        self._places: dict[int, int] = {}
        self._shots_whole: Any = ()
        self._dialogues: dict[int, Dialogue] = {}
        self._round = 0
        unpack_media(config.dataset_kwargs, self._folder_of(config))
        self._steps = steps_of(config)
        super().__init__(config=prepared(config, self.setting, self.style))
        self.MULTIMODAL = True
        self.prompt_kwargs = prompt_kwargs(self.config, self.setting.names, self.style)
        self.target_kwargs = target_kwargs(self.config, self.setting.names)
        self._gallery = Gallery(self._media_at, self.setting.memory)
        compat = self._context.compat
        self._aggregations = {
            name: with_arguments(peer_aggregation(function, compat), self.setting.args)
            for name, function in self._aggregations.items()
        }
        self._bare = self.full_docs if self._scores_media else without_media(self.full_docs)

    @staticmethod
    def _folder_of(config: TaskSpec) -> Path | None:
        found = current().data.local(config.dataset_path) if config.dataset_path else None
        return found if found is not None and found.is_dir() else None

    @property
    def full_docs(self) -> Any:
        """The documents that are scored, with their media."""
        return super().eval_docs

    @property
    def eval_docs(self) -> Any:
        """The documents that are scored, without their media unless the task scores those."""
        return self._bare

    @property
    def _scores_media(self) -> bool:
        named = self.style == "eagle" and any(part in (self.config.task or "") for part in SHOWN)
        return named or bool(self.config.extra.get("process_results_use_image"))

    def set_fewshot_seed(self, seed: int | None = None) -> None:
        """Start the sampler of shots anew, where there are shots."""
        if self.config.shots:
            super().set_fewshot_seed(seed)

    def fewshot_docs(self) -> Any:
        """The pool of shots, without their media."""
        self._shots_whole = super().fewshot_docs() or []
        return without_media(self._shots_whole)

    def _pool(self) -> list[Document]:
        pool = super()._pool()
        self._places = {id(shot): i for i, shot in enumerate(pool)}
        return pool

    def doc_to_text(self, doc: Document, doc_to_text: Any = None) -> Any:
        """The question: text, or an index into the choices."""
        template = self.config.doc_to_text if doc_to_text is None else doc_to_text
        if not callable(template):
            return super().doc_to_text(doc, template)
        with naming_blocks(self.config, self.setting.names):
            return self._said(template, doc, self.prompt_kwargs)

    def doc_to_target(self, doc: Document, doc_to_target: Any = None) -> Any:
        """The answer: text, an index, a list; nothing where the file has no target."""
        template = self.config.doc_to_target if doc_to_target is None else doc_to_target
        if template is None:
            return ""
        return (
            self._said(template, doc, self.target_kwargs)
            if callable(template)
            else super().doc_to_target(doc, template)
        )

    @staticmethod
    def _said(hook: Callable[..., Any], doc: Document, kwargs: Any) -> Any:
        return call_hook(hook, own_copy(doc), copy.deepcopy(kwargs))

    def doc_to_visual(self, doc: Document) -> Any:
        """What the hook shows of a whole document, as the hook gives it."""
        hook = self.config.extra.get("doc_to_visual")
        if callable(hook):
            return call_hook(hook, doc, copy.deepcopy(self.prompt_kwargs), exactly=True)
        return None if hook is None else [column_of(doc, str(hook))]

    @property
    def _in_rounds(self) -> bool:
        return self.OUTPUT_TYPE in IN_ROUNDS

    def _media_at(self, doc_id: int) -> Sequence[Media]:
        doc = self.full_docs[doc_id]
        return self._messages(doc).media if self._asks_by_messages else self._media_of(doc)

    @property
    def _asks_by_messages(self) -> bool:
        there = callable(self.config.extra.get("doc_to_messages"))
        return there and self.setting.messages and self.OUTPUT_TYPE == "generate_until"

    def _messages(self, doc: Document) -> Conversation:
        return conversation_of(call_hook(self.config.extra["doc_to_messages"], doc, copy.deepcopy(self.prompt_kwargs)))

    def _media_of(self, doc: Document) -> list[Media]:
        found = media_list(self.doc_to_visual(doc))
        for key in ("doc_to_image", "doc_to_audio"):
            template = getattr(self.config, key)
            if template:
                found += media_list(field.media_of(template, doc, set(doc), key), key)
        frames = self.setting.num_frames
        return found if frames is None else [sampled(medium, frames) for medium in found]

    def fewshot_context(self, doc: Document, num_fewshot: int = 0, **kwargs: Any) -> Context:  # type: ignore[override]
        """What stands around the media of a document."""
        description = field.column_or_template(self.config.description, doc) or ""
        question = "" if self.multiple_input else self._question(doc)
        system = kwargs.get("system_instruction")
        if not num_fewshot:
            return Context((), description + question, system)
        lead: list[str | Media] = [description] if description else []
        for shot in self._draw(doc, num_fewshot):
            lead += self._shot_parts(shot)
        if not any(isinstance(part, Media) for part in lead):
            return Context((), "".join(str(part) for part in lead) + question, system)
        return Context(tuple(lead), question, system)

    def _question(self, doc: Document) -> str:
        if self.config.doc_to_text is None and self._asks_by_messages:
            return ""
        text = self.doc_to_text(doc)
        if isinstance(text, tuple) and len(text) == 5:
            text = text[1]
        if isinstance(text, int):
            return str(self.doc_to_choice(doc)[text] if self.config.doc_to_choice is not None else text)
        if not isinstance(text, str):
            raise DataError(Fault("doc_to_text", f"gives {text!r} ({type(text).__name__})", "a string"))
        return text

    def _shot_parts(self, shot: Document) -> list[str | Media]:
        """A shot's media, its question with its answer."""
        own = self.shot
        question = self.doc_to_text(shot, own.doc_to_text)
        choices = self.doc_to_choice(shot, own.doc_to_choice) if own.doc_to_choice else None
        answer = answer_text(self.doc_to_target(shot, own.doc_to_target), choices)
        text = joined(str(question), answer, own.target_delimiter or "") + (own.fewshot_delimiter or "")
        whole = self._shots_whole[self._places[id(shot)]] if id(shot) in self._places else shot
        return [*self._media_of(whole), text]

    def construct_requests(self, doc: Document, ctx: Context, **kwargs: Any) -> Request | list[Request]:
        """The requests of a document."""
        metadata = kwargs["metadata"]
        doc_id = int(metadata[1])
        self._places_of(doc, doc_id)
        asked = self._conversation(doc_id, ctx)
        if self.OUTPUT_TYPE == "generate_until" or self._in_rounds:
            request = Request("generate_until", doc, (asked, copy.deepcopy(self.config.generation)), 0, metadata)
            if self._in_rounds:
                self._dialogues[doc_id] = Dialogue(request, request, steps=self._steps)
            return request
        if self.OUTPUT_TYPE == "loglikelihood":
            pairs: list[tuple[Any, str]] = [(asked, str(self.doc_to_target(doc)))]
        else:
            pairs = self._choices(doc, asked)
        return [Request("loglikelihood", doc, pair, i, metadata) for i, pair in enumerate(pairs)]

    def _places_of(self, doc: Document, doc_id: int) -> None:
        self._places[id(doc)] = doc_id

    def _conversation(self, doc_id: int, ctx: Context) -> Conversation:
        doc = self.full_docs[doc_id]
        if self._asks_by_messages:
            made = self._messages(doc)
            held = iter(self._gallery.held(doc_id, made.media))
            turns = [
                replace(t, parts=tuple(next(held) if isinstance(p, Media) else p for p in t.parts)) for t in made.turns
            ]
            return Conversation((*((Turn("system", (ctx.system,)),) if ctx.system else ()), *turns))
        media = self._gallery.held(doc_id, self._media_of(doc))
        return Conversation.ask([*ctx.lead, *media], ctx.text, ctx.system)  # type: ignore[list-item]

    def _choices(self, doc: Document, asked: Conversation) -> list[tuple[Any, str]]:
        choices = self.doc_to_choice(doc)
        delimiter = self.config.target_delimiter
        if self.multiple_input:
            target = f"{delimiter}{self.doc_to_target(doc)}"
            return [(_continued(asked, str(choice)), target) for choice in choices]
        pairs: list[tuple[Any, str]] = [(asked, f"{delimiter}{choice}") for choice in choices]
        if any(metric.name == "acc_mutual_info" for metric in self._metrics):
            pairs += [(Conversation.ask((), ""), f"{delimiter}{choice}") for choice in choices]
        return pairs

    def next_round(self, requests: Sequence[Request]) -> list[Request]:
        """The next questions of tasks that ask in rounds; their requests get all answers when nothing is asked."""
        self._round += 1
        asked = []
        for doc_id, dialogue in list(self._dialogues.items()):
            dialogue.outputs.append(dialogue.asked.resps[0])
            following = self._next(doc_id, dialogue)
            if following is None:
                dialogue.finish()
                del self._dialogues[doc_id]
            else:
                asked.append(following)
        return asked

    def _next(self, doc_id: int, dialogue: Dialogue) -> Request | None:
        hook = self.config.doc_to_text
        assert callable(hook)
        said = next_question(hook, self.full_docs[doc_id], self.prompt_kwargs, dialogue, self._round)
        dialogue.outputs, dialogue.info = said.outputs, said.info
        if said.final:
            return None
        own, before = dialogue.request, dialogue.asked.args[0]
        again = dialogue.steps is not None and said.visuals is None
        media = before.media if again else media_list(said.visuals, f"doc_to_text, round {self._round}")
        conversation = Conversation.ask(media, before.turns[-1].text if said.text is None else said.text)
        arguments = (conversation, copy.deepcopy(self.config.generation))
        dialogue.asked = Request("generate_until", own.doc, arguments, self._round, (own.task_name, doc_id, 1))
        return dialogue.asked

    def process_results(self, doc: Document, results: Any) -> Mapping[str, Any]:
        """Metric values of a document; its own function gets a copy of it, since some write into it."""
        own = self.config.process_results
        strip = self.style == "current" and self.OUTPUT_TYPE == "generate_until"
        generated = self.OUTPUT_TYPE == "generate_until" or self._in_rounds
        said = scores.responses(results, strip) if generated else list(results)
        if callable(own):
            more = {"full_docs": self.full_docs} if self.config.extra.get("full_docs") else {}
            return scores.checked(own(own_copy(doc), said, **more))
        if generated:
            return self._score_generated(doc, said[0])
        return super().process_results(doc, results)

    def remark(self, doc: Document) -> str | None:
        """What is odd about a document's answer; also where a word of the file that is no column is taken for it."""
        target = self.config.doc_to_target
        own = callable(self.config.process_results) or self.config.doc_to_choice is not None
        if not own and isinstance(target, str) and target.isidentifier() and target not in doc:
            return f"doc_to_target '{target}' is no column, so the word itself is the answer"
        return super().remark(doc)

    def _score_generated(self, doc: Document, result: Any) -> Mapping[str, Any]:
        several = [metric for metric in self._metrics if metric.name == "anls" and metric.builtin]
        if not several:
            return super()._score_generated(doc, result)
        inflated = self._context.compat and self.style == "eagle"
        gold = self.doc_to_target(doc)
        found = {m.name: scores.similarity(gold, result, m.options, inflated) for m in several}
        others = [metric for metric in self._metrics if metric not in several]
        if others:
            listed = isinstance(gold, (list, tuple))
            gold = list(gold) if listed else scoring.as_type_of(gold, result)
            found.update(scoring.generated(result, gold, others, listed))
        return found


def _continued(asked: Conversation, text: str) -> Conversation:
    """The conversation with a text behind its last part."""
    *before, last = asked.turns
    return Conversation((*before, Turn(last.role, (*last.parts[:-1], f"{last.parts[-1]}{text}"))))
