from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fusion_eval.errors import MissingDependencyError
from fusion_eval.harness.judge import JudgeError, get_judge, judged
from fusion_eval.harness.multimodal.peer import multimodal_names
from fusion_eval.harness.multimodal.peer.names import MODULES, OTHERS

NAMES = """
from lmms_eval import utils as lmms_utils
from lmms_eval.api.filter import Filter
from lmms_eval.api.instance import Instance
from lmms_eval.api.metrics import anls, levenshtein_distance, mean
from lmms_eval.api.reasoning import strip_reasoning_tags
from lmms_eval.api.registry import register_aggregation, register_metric
from lmms_eval.api.task import ConfigurableMessagesTask, ConfigurableTask
from lmms_eval.filters.extraction import ExtendedRegexFilter, RegexFilter, SimpleMultiChoiceRegexFilter
from lmms_eval.filters.transformation import MapFilter
from lmms_eval.llm_judge import Request, ServerConfig, get_server
from lmms_eval.llm_judge.protocol import ServerConfig
from lmms_eval.loggers.evaluation_tracker import GeneralConfigTracker
from lmms_eval.tasks._task_utils.file_utils import generate_submission_file
from lmms_eval.tasks._task_utils.vqa_eval_metric import EvalAIAnswerProcessor
from lmms_eval.utils import eval_logger, resolve_cache_dir, sanitize_model_name
from lmms_eval.verifiers import VerificationPipeline, VerifyResult
from lmms_eval.verifiers.extractors import StripReasoningExtractor
from lmms_eval.verifiers.openai import OpenAIVerifier
"""


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / (name.replace("__", "/").replace("start", "__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def ours() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("lmms_eval", "lm_eval")]


def test_every_name_that_tasks_import_is_there_and_gone_afterwards() -> None:
    before = {name for name in ours()}
    finders, paths = list(sys.meta_path), list(sys.path)
    with multimodal_names():
        exec(NAMES, {})
    assert set(ours()) == before
    assert sys.meta_path == finders
    assert sys.path == paths


@pytest.mark.parametrize("module", sorted({**MODULES, **OTHERS}))
def test_every_module_supplies_what_it_promises(module: str) -> None:
    supplied = {**MODULES, **OTHERS}[module]()
    assert all(value is not None for name, value in supplied.items() if name != "api_key")


def test_files_of_the_tree_go_first_and_siblings_are_importable(tmp_path: Path) -> None:
    tasks = tree(
        tmp_path / "lmms_eval" / "tasks",
        _task_utils__file_utils="def generate_submission_file(*_):\n    return 'of the tree'\n",
        a__utils="from lmms_eval.tasks.a.more import Y\nfrom .deep import Z\n",
        a__more="Y = 1\n", a__deep__start="from .inner import Z\n", a__deep__inner="Z = 2\n",
    )  # fmt: skip
    with multimodal_names([tasks]):
        from lmms_eval.tasks._task_utils.file_utils import (  # type: ignore[import-not-found, unused-ignore]
            generate_submission_file,
        )
        from lmms_eval.tasks.a import utils  # type: ignore[import-not-found, unused-ignore]

        assert generate_submission_file() == "of the tree"
        assert (utils.Y, utils.Z) == (1, 2)


def test_a_tasks_own_folder_has_its_name(tmp_path: Path) -> None:
    folder = tree(tmp_path / "mmbench", mmbench_evals="X = 5\n")
    with multimodal_names([folder]):
        from lmms_eval.tasks.mmbench.mmbench_evals import X  # type: ignore[import-not-found, unused-ignore]

        assert X == 5


def test_an_installed_package_is_hidden_inside_and_back_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("lmms_eval")
    monkeypatch.setitem(sys.modules, "lmms_eval", real)
    with multimodal_names():
        import lmms_eval  # type: ignore[import-not-found, unused-ignore]

        assert lmms_eval is not real
    assert sys.modules["lmms_eval"] is real


def test_each_context_has_fresh_modules_of_tasks(tmp_path: Path) -> None:
    tasks = tree(tmp_path / "lmms_eval" / "tasks", a__utils="COUNT = []\n")

    def count() -> list[int]:
        from lmms_eval.tasks.a.utils import COUNT  # type: ignore[import-not-found, unused-ignore]

        COUNT.append(1)
        return list(COUNT)

    with multimodal_names([tasks]):
        assert count() == [1]
        with multimodal_names([tasks]):
            assert count() == [1]
        assert count() == [1, 1]


def test_paths_that_tasks_add_are_taken_back(tmp_path: Path) -> None:
    folder = tree(tmp_path / "t", utils=f"import sys\nsys.path.append({str(tmp_path / 'lib')!r})\nimport odd_helper\n")
    tree(tmp_path / "lib", odd_helper="X = 1\n")
    with multimodal_names([folder]):
        import lmms_eval.tasks.t.utils as utils  # type: ignore[import-not-found, unused-ignore]

        assert utils.odd_helper.X == 1
    assert "odd_helper" not in sys.modules
    assert str(tmp_path / "lib") not in sys.path


def test_modules_from_where_python_looks_anyway_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "lib", usual_helper="X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    with multimodal_names():
        sys.path.insert(0, str(tmp_path))
        import usual_helper  # type: ignore[import-not-found, unused-ignore]
    assert sys.modules.pop("usual_helper") is usual_helper


def test_variables_that_tasks_need_are_there_only_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    with multimodal_names():
        assert os.environ["HF_HOME"].endswith("huggingface")
        assert os.environ["OPENAI_API_KEY"] == "mine"
    assert "HF_HOME" not in os.environ


def stand_in(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


def test_clients_of_an_installed_package_ask_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    real = stand_in("openai", OpenAI=object, AsyncOpenAI=object, kept=1)
    monkeypatch.setitem(sys.modules, "openai", real)
    asked: list[Any] = []
    judge = get_judge(lambda messages, options: str(asked.append((messages, options)) or "fine"))
    with multimodal_names(judge=judge):
        import openai

        client: Any = openai.OpenAI(api_key=None, base_url="anywhere")
        answer = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "q"}], max_tokens=4, n=2
        )
        assert [choice.message.content for choice in answer.choices] == ["fine", "fine"]
        assert answer.model_dump()["choices"][0]["message"]["content"] == "fine"
        assert client.responses.create(model="m", input="q").output_text == "fine"

        async def awaited() -> Any:
            made: Any = openai.AsyncOpenAI()
            return await made.chat.completions.create(model="m", messages=[])

        assert asyncio.run(awaited()).choices[0].message.content == "fine"
        with pytest.raises(JudgeError, match=r"openai\.images\.generate"):
            client.images.generate(prompt="x")
    assert real.OpenAI is object  # type: ignore[attr-defined]
    assert asked[0][1] == {"model": "m", "max_tokens": 4, "seed": 0}


def test_a_package_is_swapped_when_a_task_imports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, requests="def post(*args, **kwargs):\n    return 'posted'\ndef get(url):\n    return url\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "requests", raising=False)
    with multimodal_names(judge=get_judge({"answer": "fine"})):
        import requests

        reply = requests.post("https://api.openai.com/v1/chat/completions", json={"messages": []}, timeout=3)
        reply.raise_for_status()
        assert reply.json()["choices"][0]["message"]["content"] == "fine"
        assert requests.post("https://elsewhere.org/submit", json={"a": 1}) == "posted"
    assert requests.post("https://api.openai.com/v1/chat/completions", json={"messages": []}) == "posted"
    monkeypatch.delitem(sys.modules, "requests")


def test_packages_that_are_not_installed_have_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.machinery as machinery

    find = machinery.PathFinder.find_spec
    hidden = ("loguru", "requests", "openai", "editdistance")
    monkeypatch.setattr(machinery.PathFinder, "find_spec", lambda name, *a: None if name in hidden else find(name, *a))
    for name in hidden:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with multimodal_names(judge=get_judge({"answer": "fine"})):
        import editdistance  # type: ignore[import-not-found, unused-ignore]
        import openai
        import requests
        from loguru import logger  # type: ignore[import-not-found, unused-ignore]

        logger.bind(a=1).warning("{} and {x}", 1, x=2)
        assert openai.OpenAI().chat.completions.create(messages=[]).choices[0].message.content == "fine"  # type: ignore
        assert requests.post("u", data=b'{"messages": []}').json()["model"] == ""
        assert editdistance.eval("kitten", "sitting") == 3
        with pytest.raises(MissingDependencyError, match="pip install requests"):
            requests.get("https://elsewhere.org")
        assert issubclass(requests.exceptions.HTTPError, requests.exceptions.RequestException)
    assert not [name for name in hidden if name in sys.modules]


def test_a_task_that_retries_and_gives_zero_stays_unscored() -> None:
    def hook() -> float:
        for _ in range(3):
            try:
                server = SimpleNamespace(ask=__import__("lmms_eval.llm_judge", fromlist=["x"]).get_server("openai"))
                return float(server.ask.evaluate_binary("q", "a", "p")["result"])
            except Exception:  # noqa: BLE001 - what tasks do
                tries.append(1)
        return 0.0

    tries: list[int] = []
    with multimodal_names(), pytest.raises(JudgeError):
        judged(hook)
    assert tries == []
    with multimodal_names(judge=get_judge({"answer": "[1]"})):
        assert judged(hook) == 1.0
