"""Against `transformers serve`, the library's own server, in a process of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import EvaluationError
from fusion_eval.harness.engine.encoder import Encoder
from fusion_eval.harness.engine.http import HttpModel
from fusion_eval.harness.engine.server import Server
from fusion_eval.harness.engine.transformers_model import TransformersModel
from fusion_eval.harness.request import Request
from fusion_eval.harness.scheduler import Scheduler
from fusion_eval.harness.store import AnswerStore

pytestmark = pytest.mark.slow
SETTINGS = [{"max_gen_toks": 9, "until": ["e"]}, {"max_gen_toks": 6, "until": ["\n\n"]}]
MESSAGES = [{"role": "user", "content": "The cat"}]


@pytest.fixture(scope="module")
def folder(tiny_llama: Any, tokenizers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served")
    tiny_llama.save_pretrained(place)
    tokenizers["llama"].save_pretrained(place)
    return place


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    command = shutil.which("transformers", path=str(Path(sys.executable).parent)) or shutil.which("transformers")
    if command is None:
        pytest.skip("the command of transformers is not installed")
    port, process = _started([command, "serve", str(folder), "--device", "cpu", "--host", "127.0.0.1", "--port"])
    try:
        yield f"http://127.0.0.1:{port}/v1", process
    finally:
        process.kill()
        process.wait()


def _started(command: list[str]) -> tuple[int, subprocess.Popen[bytes]]:
    """A server that answers, and its port; another may take a port that was free, so there are three tries."""
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for _ in range(3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen([*command, str(port)], env={**os.environ, "HF_HUB_OFFLINE": "1"}, **silent)
        while process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30):
                    return port, process
            except OSError:
                time.sleep(0.5)
    pytest.skip(f"the server ended with {process.returncode}")


def prompts(texts: list[str]) -> list[Request]:
    return [
        Request("generate_until", {}, (text, dict(settings)), 0, ("t", i, 1))
        for i, (text, settings) in enumerate((t, s) for t in texts for s in SETTINGS)
    ]


def test_a_real_server_writes_what_the_model_in_memory_writes(
    server: tuple[str, Any], folder: Path, tiny_llama: Any, tokenizers: dict[str, Any], tmp_path: Path
) -> None:
    url, process = server
    local = TransformersModel(tiny_llama, tokenizers["llama"])
    expected, found = prompts(["The cat", "Import this and"]), prompts(["The cat", "Import this and"])
    Scheduler(local).answer(expected)
    served = HttpModel(Server(url, str(folder), retries=1, timeout=600), Encoder(tokenizers["llama"], 256))
    Scheduler(served).answer(found)
    assert [r.resps for r in found] == [r.resps for r in expected]

    chat = HttpModel(Server(url, str(folder), chat=True, retries=1, timeout=600))
    expected, found = prompts([local.apply_chat_template(MESSAGES)]), prompts([chat.apply_chat_template(MESSAGES)])
    Scheduler(local).answer(expected)
    store = AnswerStore(tmp_path, chat.fingerprint)
    Scheduler(chat, store).answer(found)
    assert [r.resps for r in found] == [r.resps for r in expected]

    scored = [Request("loglikelihood", {}, ("The cat", " sat"), 0, ("t", 0, 1))]
    with pytest.raises(EvaluationError, match="gives no log-probabilities of the prompt"):
        Scheduler(HttpModel(Server(url, str(folder), retries=1, timeout=600))).answer(scored)
    with pytest.raises(EvaluationError, match=r"must be a string.*Leave tokenizer out"):
        Scheduler(served).answer(scored)

    process.kill()
    process.wait()
    again, new = prompts([chat.apply_chat_template(MESSAGES)]), prompts(["never asked"])
    Scheduler(chat, AnswerStore(tmp_path, chat.fingerprint)).answer(again)
    assert [r.resps for r in again] == [r.resps for r in found]
    with pytest.raises(EvaluationError, match="Answers so far are kept"):
        Scheduler(chat, AnswerStore(tmp_path, chat.fingerprint)).answer(new)
