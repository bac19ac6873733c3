"""`lmms_eval.verifiers`: a response is cleaned by extractors, then a verifier says whether it is right."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fusion_eval.harness.multimodal.peer.llm_judge import Request, ServerConfig, ServerInterface
from fusion_eval.harness.multimodal.peer.text import TAG_PAIRS, strip_reasoning_tags

_NUMBER = r"-?\d+(?:\.\d+)?"
T = TypeVar("T")


@dataclass
class VerifyResult:
    """What a verifier found; `score` is between 0 and 1."""

    score: float
    is_correct: bool
    raw_output: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


class Verifier(ABC):
    """Says whether a prediction is right."""

    @abstractmethod
    def verify(self, question: str, prediction: str, ground_truth: str, **kwargs: Any) -> VerifyResult:
        """The verdict."""

    def __call__(self, question: str, prediction: str, ground_truth: str, **kwargs: Any) -> VerifyResult:
        """The verdict."""
        return self.verify(question, prediction, ground_truth, **kwargs)


class Extractor(ABC):
    """Cleans a prediction."""

    @abstractmethod
    def extract(self, text: str, **kwargs: Any) -> str:
        """The cleaned text."""

    def __call__(self, text: str, **kwargs: Any) -> str:
        """The cleaned text."""
        return self.extract(text, **kwargs)


class StripReasoningExtractor(Extractor):
    """Leaves out what stands between tags of reasoning."""

    def __init__(self, tag_pairs: Sequence[Sequence[str]] | None = None) -> None:
        self.tag_pairs = tag_pairs or TAG_PAIRS

    def extract(self, text: Any, **kwargs: Any) -> str:
        """The text without its thoughts."""
        plain = text if isinstance(text, str) else "" if text is None else str(text)
        return strip_reasoning_tags(plain, self.tag_pairs)


class RegexExtractor(Extractor):
    """The first match of a pattern."""

    def __init__(self, pattern: str, group: int = 1, fallback: str = "", flags: int = 0) -> None:
        self.regex, self.group, self.fallback = re.compile(pattern, flags), group, fallback

    def extract(self, text: str, **kwargs: Any) -> str:
        """The group that matched, the whole match where there is no such group, or the fallback."""
        found = self.regex.search(text)
        if found is None:
            return self.fallback
        return found.group(self.group if self.group <= self.regex.groups else 0).strip()


class NumberExtractor(Extractor):
    """What is boxed, else the last number."""

    def __init__(self, fallback: str = "") -> None:
        self.fallback = fallback

    def extract(self, text: str, **kwargs: Any) -> str:
        """The number without commas, or the fallback."""
        if boxed := re.search(r"\\boxed\{([^}]+)\}", text):
            return boxed[1].strip()
        found = re.findall(r"-?\d+(?:,\d{3})*(?:\.\d+)?", text)
        return found[-1].replace(",", "") if found else self.fallback


class StripExtractor(Extractor):
    """Leaves out marks that models end with, and white space at both ends."""

    marks = ("</s>", "<|endoftext|>", "<|end_of_sentence|>", "<|im_end|>", "[/INST]")

    def extract(self, text: str, **kwargs: Any) -> str:
        """The stripped text."""
        for mark in self.marks:
            text = text.replace(mark, "")
        return text.strip()


def parse_binary_response(text: str) -> bool:
    """Whether a judge's answer says that something is right."""
    upper = text.upper()
    if "INCORRECT" in upper or "NOT_ATTEMPTED" in upper:
        return False
    return any(word in upper for word in ("CORRECT", "YES", "TRUE", "1"))


class ExactMatchVerifier(Verifier):
    """Equal texts."""

    def __init__(self, ignore_case: bool = True, strip: bool = True) -> None:
        self.ignore_case, self.strip = ignore_case, strip

    def verify(self, question: str, prediction: str, ground_truth: str, **kwargs: Any) -> VerifyResult:
        """The verdict; sure of itself only where the texts are equal."""
        right = self._plain(prediction) == self._plain(ground_truth)
        return _verdict(right, f"{prediction!r}, expected {ground_truth!r}", right)

    def _plain(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.lower() if self.ignore_case else text


class ContainsVerifier(Verifier):
    """A prediction that holds the truth."""

    def __init__(self, ignore_case: bool = True) -> None:
        self.ignore_case = ignore_case

    def verify(self, question: str, prediction: str, ground_truth: str, **kwargs: Any) -> VerifyResult:
        """The verdict; sure of itself only where it is found."""
        fold = str.lower if self.ignore_case else str
        right = fold(ground_truth) in fold(prediction)
        return _verdict(right, f"{ground_truth!r} in {prediction!r}", right)


class MCQMatchVerifier(Verifier):
    """Equal letters of a choice."""

    def verify(self, question: str, prediction: str, ground_truth: str, **kwargs: Any) -> VerifyResult:
        """The verdict; sure of itself where the prediction is one letter."""
        found, truth = (text.strip().upper().strip("(). ") for text in (prediction, ground_truth))
        return _verdict(found == truth, f"{found!r}, expected {truth!r}", bool(re.fullmatch("[A-Z]", found)))


class NumericToleranceVerifier(Verifier):
    """Numbers that are nearly equal."""

    def __init__(self, rel_tol: float = 1e-3, abs_tol: float = 1e-6) -> None:
        self.rel_tol, self.abs_tol = rel_tol, abs_tol

    def verify(self, question: str, prediction: str, ground_truth: str, **kwargs: Any) -> VerifyResult:
        """The verdict; sure of itself where both texts hold a number."""
        found, truth = _number(prediction), _number(ground_truth)
        if found is None or truth is None:
            return _verdict(False, f"no number in {prediction!r} or {ground_truth!r}", False)
        right = math.isclose(found, truth, rel_tol=self.rel_tol, abs_tol=self.abs_tol)
        return _verdict(right, f"{found}, expected {truth}", True)


class CompositeVerifier(Verifier):
    """The first of several verifiers that is sure of itself, else the last."""

    def __init__(self, verifiers: Sequence[Verifier]) -> None:
        if not verifiers:
            raise ValueError("CompositeVerifier needs at least one verifier")
        self.verifiers = list(verifiers)

    def verify(self, question: str, prediction: str, ground_truth: str, **kwargs: Any) -> VerifyResult:
        """The verdict."""
        for verifier in self.verifiers:
            result = verifier.verify(question, prediction, ground_truth, **kwargs)
            if result.metadata.get("confident", True):
                break
        return result


class OpenAIVerifier(Verifier):
    """Asks the judge of the run, which may be any model; one that gives no answer leaves the document unscored."""

    def __init__(
        self, model: str = "gpt-4o-2024-11-20", api_type: str | None = None, judge_type: str = "binary",
        custom_prompt: str | Callable[..., str] | None = None, response_format: str = "binary",
        response_parser: Callable[[str], VerifyResult] | None = None, score_range: tuple[float, float] = (0.0, 10.0),
        max_retries: int = 5, retry_delay: float = 2.0, temperature: float = 0.0, max_tokens: int = 1024,
    ) -> None:  # fmt: skip
        self.judge_type, self.custom_prompt, self.response_format = judge_type, custom_prompt, response_format
        self.response_parser, self.score_range = response_parser, score_range
        self._server = ServerInterface(ServerConfig(model, temperature, max_tokens))

    def verify(self, question: str, prediction: str, ground_truth: str, **kwargs: Any) -> VerifyResult:
        """The judge's verdict."""
        images = kwargs.get("images")
        if self.custom_prompt is not None:
            prompt = self._prompt(question, prediction, ground_truth, kwargs)
            asked = Request([{"role": "user", "content": prompt}], images)
            return self._parsed(self._server.evaluate(asked).content)
        if self.judge_type == "binary":
            found = self._server.evaluate_binary(
                question, ground_truth, prediction, kwargs.get("output_format", "0/1"), images=images
            )
            metadata = {"model": found["model"]}
            return VerifyResult(float(bool(found["result"])), bool(found["result"]), found["raw_response"], metadata)
        if self.judge_type == "comparative":
            return self._compared(question, prediction, kwargs.get("reference_response", ground_truth), images)
        raise ValueError(f"judge_type is {self.judge_type!r}, expected binary or comparative")

    def _compared(self, question: str, prediction: str, reference: str, images: Any) -> VerifyResult:
        found = self._server.evaluate_comparative(question, prediction, reference, images=images)
        own, other = found["scores"]
        metadata = {"score_1": own, "score_2": other, "model": found["model"]}
        return VerifyResult(self._normal(own), own > other, found["raw_response"], metadata)

    def _prompt(self, question: str, prediction: str, ground_truth: str, kwargs: Mapping[str, Any]) -> str:
        if callable(self.custom_prompt):
            return self.custom_prompt(question, prediction, ground_truth, **kwargs)
        return str(self.custom_prompt).format(
            question=question, prediction=prediction, ground_truth=ground_truth, **kwargs
        )

    def _parsed(self, text: str) -> VerifyResult:
        if self.response_parser is not None:
            return self.response_parser(text)
        if self.response_format == "score":
            found = re.search(_NUMBER, text)
            score = self._normal(float(found[0])) if found else 0.0
            return VerifyResult(score, score >= 0.5, text)
        right = parse_binary_response(text)
        return VerifyResult(float(right), right, text)

    def _normal(self, score: float) -> float:
        low, high = self.score_range
        return max(0.0, min(1.0, (score - low) / (high - low))) if high > low else float(score >= high)


class VerificationPipeline:
    """Extractors, then a verifier."""

    def __init__(self, extractors: Sequence[Extractor] | None = None, verifier: Verifier | None = None) -> None:
        if verifier is None:
            raise ValueError("VerificationPipeline needs a verifier")
        self.extractors, self.verifier = list(extractors or ()), verifier

    def __call__(self, question: str, prediction: str, ground_truth: str, **kwargs: Any) -> VerifyResult:
        """The verdict on the cleaned prediction."""
        cleaned = prediction
        for extractor in self.extractors:
            cleaned = extractor(cleaned, **kwargs)
        result = self.verifier.verify(question, cleaned, ground_truth, **kwargs)
        result.metadata.update(raw_prediction=prediction, extracted_prediction=cleaned)
        return result

    def verify(self, question: str, prediction: str, ground_truth: str, **kwargs: Any) -> VerifyResult:
        """The verdict on the cleaned prediction."""
        return self(question, prediction, ground_truth, **kwargs)


EXTRACTORS: Mapping[str, Callable[..., Extractor]] = {
    "strip_reasoning": StripReasoningExtractor, "regex": RegexExtractor, "number": NumberExtractor,
    "strip": StripExtractor,
}  # fmt: skip
VERIFIERS: Mapping[str, Callable[..., Verifier]] = {
    "exact_match": ExactMatchVerifier, "contains": ContainsVerifier, "mcq_match": MCQMatchVerifier,
    "numeric": NumericToleranceVerifier, "openai": OpenAIVerifier,
}  # fmt: skip


def build_verification_pipeline(config: Mapping[str, Any]) -> VerificationPipeline:
    """The pipeline that a mapping with `extractors` and `verifier` describes, each with its `type`."""
    extractors = [_made(EXTRACTORS, item) for item in config.get("extractors", ())]
    return VerificationPipeline(extractors, _verifier(config["verifier"]))


def _verifier(node: Mapping[str, Any]) -> Verifier:
    if node["type"] == "composite":
        return CompositeVerifier([_verifier(item) for item in node.get("verifiers", ())])
    return _made(VERIFIERS, node)


def _made(known: Mapping[str, Callable[..., T]], node: Mapping[str, Any]) -> T:
    options = dict(node)
    return known[options.pop("type")](**options)


def _verdict(right: bool, told: str, sure: bool) -> VerifyResult:
    return VerifyResult(float(right), right, told, {"confident": sure})


def _number(text: str) -> float | None:
    plain = text.strip().replace(",", "").replace("%", "")
    try:
        return float(plain)
    except ValueError:
        found = re.findall(_NUMBER, plain)
        return float(found[-1]) if found else None
