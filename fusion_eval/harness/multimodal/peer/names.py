"""The modules of `lmms_eval` that tasks import, and what each gives; every one is made when it is imported."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from fusion_eval.harness import peer_names
from fusion_eval.harness.multimodal.peer import stand_ins

PEER: Final = "lmms_eval"
Supply = Callable[[], Mapping[str, Any]]


def _of(module: str, *names: str, **renamed: str) -> Supply:
    """Names of a module of this package, imported late."""

    def supply() -> Mapping[str, Any]:
        found = importlib.import_module(f"fusion_eval.harness.{module}")
        return {name: getattr(found, own) for name, own in {**{n: n for n in names}, **renamed}.items()}

    return supply


def _all(*supplies: Supply) -> Supply:
    return lambda: {name: value for supply in supplies for name, value in supply().items()}


def _nothing() -> Mapping[str, Any]:
    return {}


def resolve_cache_dir(cache_dir: str, base_dir: str | None = None) -> str:
    """A folder with `~` and variables expanded, below `base_dir` where it is relative."""
    found = os.path.expanduser(os.path.expandvars(cache_dir))
    return found if base_dir is None or os.path.isabs(found) else os.path.join(base_dir, found)


def sanitize_model_name(model_name: str, full_path: bool = False) -> str:
    """A model's name (of a path the last two parts) as a file can be called."""
    return re.sub(r'["<>:/|\\?*\[\]]+', "__", model_name if full_path else "/".join(model_name.split("/")[-2:]))


def _sanitized(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_sanitized(item) for item in value)
    return str(value)


class GeneralConfigTracker:
    """What a task may ask of the peer's log of runs."""

    @staticmethod
    def _get_model_name(model_args: Any) -> str:
        """The part of `pretrained=name,...` that names the model."""
        found = re.search(r"(?:^|,)(?:pretrained|peft|delta|model|model_version)=([^,]+)", str(model_args))
        return found[1] if found else ""


def _utils() -> Mapping[str, Any]:
    return {
        **peer_names.MODULES["lm_eval.utils"](), "eval_logger": logging.getLogger("lmms-eval"),
        "resolve_cache_dir": resolve_cache_dir, "sanitize_model_name": sanitize_model_name, "sanitize_list": _sanitized,
        "load_yaml_config": _load_yaml_config,
    }  # fmt: skip


def _load_yaml_config(yaml_path: str | os.PathLike[str], **_: Any) -> dict[str, Any]:
    from fusion_eval.harness.peer_utils import load_yaml

    return load_yaml(os.fspath(yaml_path))


def _task() -> Mapping[str, Any]:
    language = peer_names.MODULES["lm_eval.api.task"]()
    return {**language, "ConfigurableMessagesTask": language["ConfigurableTask"]}


def _openai() -> Mapping[str, Any]:
    from fusion_eval.harness.multimodal.peer.openai_names import stand_in

    return stand_in()


_JUDGE = _of(
    "multimodal.peer.llm_judge", "ServerInterface", "ServerConfig", "Request", "Response", "ProviderFactory",
    "JudgePromptBuilder", "ResponseParser", "get_server", AsyncServerInterface="ServerInterface",
)  # fmt: skip
_VERIFIERS = _of(
    "multimodal.peer.verifiers", "Verifier", "Extractor", "VerifyResult", "VerificationPipeline", "OpenAIVerifier",
    "CompositeVerifier", "ExactMatchVerifier", "ContainsVerifier", "MCQMatchVerifier", "NumericToleranceVerifier",
    "RegexExtractor", "NumberExtractor", "StripExtractor", "StripReasoningExtractor", "parse_binary_response",
    "build_verification_pipeline",
)  # fmt: skip
_FILTERS = _all(
    peer_names.MODULES["lm_eval.api.filter"],
    _of(
        "multimodal.peer.filters", "MapFilter", "ExtendedRegexFilter", "SimpleMultiChoiceRegexFilter",
        "StripThinkingFilter",
    ),
    _of("filter.simple", WhitespaceFilter="Strip"),
)  # fmt: skip
_METRICS = _all(peer_names.MODULES["lm_eval.api.metrics"], _of("multimodal.peer.text", "levenshtein_distance", "anls"))
_AZURE = _of("multimodal.peer.openai_names", "build_client", "has_endpoint_support")

MODULES: Final[dict[str, Supply]] = {
    PEER: _nothing,
    f"{PEER}.api": _nothing,
    f"{PEER}.api.task": _task,
    f"{PEER}.api.filter": _FILTERS,
    f"{PEER}.api.metrics": _METRICS,
    f"{PEER}.api.reasoning": _of("multimodal.peer.text", "strip_reasoning_tags"),
    **{f"{PEER}.api.{name}": peer_names.MODULES[f"lm_eval.api.{name}"]
       for name in ("instance", "registry", "samplers", "group")},
    f"{PEER}.utils": _utils,
    f"{PEER}.filters": _FILTERS,
    **{f"{PEER}.filters.{name}": _FILTERS for name in ("extraction", "selection", "transformation")},
    f"{PEER}.llm_judge": _JUDGE,
    **{f"{PEER}.llm_judge.{name}": _JUDGE for name in ("protocol", "base", "factory", "utils")},
    f"{PEER}.verifiers": _VERIFIERS,
    **{f"{PEER}.verifiers.{name}": _VERIFIERS
       for name in ("base", "composite", "extractors", "openai", "pipeline", "rule")},
    f"{PEER}.loggers": _nothing,
    f"{PEER}.loggers.evaluation_tracker": lambda: {"GeneralConfigTracker": GeneralConfigTracker},
    f"{PEER}.azure_openai_compat": _AZURE,
    f"{PEER}.tasks._task_utils": _nothing,
    f"{PEER}.tasks._task_utils.file_utils": _of("multimodal.peer.text", "generate_submission_file"),
    f"{PEER}.tasks._task_utils.vqa_eval_metric": _of("multimodal.peer.text", "EvalAIAnswerProcessor"),
}  # fmt: skip
"""Modules that are supplied; below `tasks` a file of the user's tree goes before them."""

OTHERS: Final[dict[str, Supply]] = {
    "loguru": stand_ins.loguru,
    "requests": stand_ins.requests,
    "openai": _openai,
    "azure": _nothing,
    "azure.identity": _of(
        "multimodal.peer.openai_names",
        "get_bearer_token_provider",
        **{
            name: "Credential"
            for name in (
                "AzureCliCredential",
                "ChainedTokenCredential",
                "DefaultAzureCredential",
                "ManagedIdentityCredential",
            )
        },
    ),
    "editdistance": _of("multimodal.peer.text", eval="levenshtein_distance", distance="levenshtein_distance"),
    "Levenshtein": _of("multimodal.peer.text", distance="levenshtein_distance"),
}
"""Packages that are supplied where they are not installed."""
