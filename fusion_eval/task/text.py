"""Texts against reference texts, and language modelling: logits (N, T, V) against tokens (N, T)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.task.battery import MakeMetric, Offer, OfferedBattery, metric_of
from fusion_eval.task.predict import Passthrough, TensorPredict
from fusion_eval.task.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

_OWN = "fusion_eval.task.metric"
_SEVERAL_REFERENCES = (
    "BLEUScore",
    "SacreBLEUScore",
    "CHRFScore",
    "TranslationEditRate",
    "ROUGEScore",
    "ExactTextMatch",
)
_EMBEDDINGS = "a language model's weights from the Hugging Face hub"


def _of(name: str, **options: Any) -> MakeMetric:
    return metric_of(f"torchmetrics.text:{name}", **options)


TEXT_BATTERY = OfferedBattery(
    "text",
    {
        "exact_match": Offer(metric_of(f"{_OWN}.scores:ExactTextMatch")),
        "bleu": Offer(_of("BLEUScore")),
        "chrf": Offer(_of("CHRFScore", n_word_order=0)),
        "rouge": Offer(_of("ROUGEScore", rouge_keys=("rouge1", "rouge2", "rougeL")), {"nltk": "text"}),
        "ter": Offer(_of("TranslationEditRate")),
        "wer": Offer(_of("WordErrorRate")),
        "cer": Offer(_of("CharErrorRate")),
        "edit_distance": Offer(_of("EditDistance", reduction="mean")),
        "sacrebleu": Offer(_of("SacreBLEUScore"), {"regex": "text"}, default=False),
        "chrf++": Offer(_of("CHRFScore", n_word_order=2), default=False),
        "eed": Offer(_of("ExtendedEditDistance"), default=False),
        "match_error_rate": Offer(_of("MatchErrorRate"), default=False),
        "word_info_lost": Offer(_of("WordInfoLost"), default=False),
        "word_info_preserved": Offer(_of("WordInfoPreserved"), default=False),
        "bertscore": Offer(metric_of("torchmetrics.text.bert:BERTScore"), {"transformers": "huggingface"}, _EMBEDDINGS),
    },
)


def _feed(metric: Metric, preds: Any, target: Any) -> None:
    """Every metric gets references in the form that it takes.

    Raises:
        EvaluationError: outputs that are no texts.
    """
    from fusion_eval.task.metric.scores import references, single_reference

    texts, name = list(preds), type(metric).__name__
    strange = next((text for text in texts if not isinstance(text, str)), None)
    if strange is not None:
        do = "Give the task a predict_fn that decodes them: (texts, None)."
        raise EvaluationError(Fault("the model's output", f"a {type(strange).__name__}", "a text per item", do))
    if name in _SEVERAL_REFERENCES:
        metric.update(texts, [references(entry) for entry in target])
    else:
        metric.update(texts, single_reference(list(target), name))


TEXT = Task(
    battery=TEXT_BATTERY,
    predict_fn=Passthrough(),
    requires_num_classes=False,
    description="Texts against one or several reference texts: BLEU, chrF, ROUGE, error rates, exact match.",
    feed=_feed,
    unit="text",
)


def _perplexity(num_classes: int | None, ignore_index: int | None) -> Metric:
    ignored = -100 if ignore_index is None else ignore_index
    return metric_of("torchmetrics.text:Perplexity", ignore_index=ignored)(None, None)


def _token_accuracy(num_classes: int | None, ignore_index: int | None) -> Metric:
    from fusion_eval.task.metric.scores import TokenAccuracy

    return TokenAccuracy(-100 if ignore_index is None else ignore_index, sync_on_compute=False)


LANGUAGE_MODELING = Task(
    battery=OfferedBattery(
        "language_modeling", {"perplexity": Offer(_perplexity), "token_accuracy": Offer(_token_accuracy)}
    ),
    predict_fn=TensorPredict(),
    requires_num_classes=False,
    description="Language modelling: logits (N, T, V) against tokens (N, T) that are shifted already; -100 is ignored.",
    unit="text",
    dense=True,
)
