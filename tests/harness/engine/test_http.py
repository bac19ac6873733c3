from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusion_eval.errors import EvaluationError
from fusion_eval.harness.engine.encoder import Encoder
from fusion_eval.harness.engine.http import UNSCORED, HttpModel
from fusion_eval.harness.engine.server import Server, seconds_of
from fusion_eval.harness.engine.transformers_model import TransformersModel
from fusion_eval.harness.request import Request
from fusion_eval.harness.scheduler import Scheduler
from fusion_eval.harness.store import AnswerStore


class Backend:
    """What the server knows: a model, a tokenizer, and how often it should fail."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.failures, self.calls, self.dead, self.refuses_tokens = 0, 0, False, False
        self.said: list[bytes] = []
        self.code, self.wait = 503, ""
        self.lock = threading.Lock()

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        ids = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        if body.get("echo"):
            return {"choices": [{"text": "", "logprobs": self.echo(ids)}], "usage": {"prompt_tokens": len(ids)}}
        return {"choices": [{"text": self.write(ids, body["max_tokens"])}]}

    def echo(self, ids: list[int]) -> dict[str, Any]:
        with torch.inference_mode():
            table = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        values = [None] + [float(table[i, t]) for i, t in enumerate(ids[1:])]
        best = [None] + [{str(int(row.argmax())): float(row.max())} for row in table[:-1]]
        texts = [self.tokenizer.decode(ids[:i]) for i in range(len(ids) + 1)]
        return {"token_logprobs": values, "top_logprobs": best, "text_offset": [len(text) for text in texts[:-1]]}

    def write(self, ids: list[int], count: int) -> str:
        with torch.inference_mode():
            output = self.model.generate(
                torch.tensor([ids]), attention_mask=torch.ones((1, len(ids)), dtype=torch.long), do_sample=False,
                max_new_tokens=count, pad_token_id=self.tokenizer.eos_token_id,
            )  # fmt: skip
        return str(self.tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True))


@pytest.fixture
def backend(tiny_gpt2: Any, tokenizers: dict[str, Any]) -> Backend:
    return Backend(tiny_gpt2, tokenizers["gpt2"])


@pytest.fixture
def url(backend: Backend) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with backend.lock:
                backend.calls += 1
                failing = backend.dead or backend.failures > 0
                backend.failures -= 1
            if failing:
                self.send_response(backend.code)
                if backend.wait:
                    self.send_header("Retry-After", backend.wait)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if backend.said:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(backend.said.pop(0))
                return
            if backend.refuses_tokens and isinstance(body.get("prompt"), list):
                self.send_error(500)
                return
            if self.path.endswith("/chat/completions"):
                text = "|".join(f"{m['role']}:{m['content']}" for m in body["messages"])
                found: dict[str, Any] = {"choices": [{"message": {"content": text}}]}
            else:
                found = backend.completion(body)
            data = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def requests() -> list[Request]:
    pairs = [("The cat", " sat"), ("The cat", " ran away"), ("", "Hello"), ("The dog ", "barks")]
    made = [Request("loglikelihood", {}, pair, 0, ("t", i, 1)) for i, pair in enumerate(pairs)]
    made.append(Request("loglikelihood_rolling", {}, ("Some longer text to read.",), 0, ("t", 9, 1)))
    made.append(Request("generate_until", {}, ("The", {"max_gen_toks": 5, "until": ["zz"]}), 0, ("t", 10, 1)))
    return made


def test_a_server_gives_what_the_model_in_memory_gives(url: str, tiny_gpt2: Any, tokenizers: dict[str, Any]) -> None:
    expected, found = requests(), requests()
    Scheduler(TransformersModel(tiny_gpt2, tokenizers["gpt2"], max_length=100)).answer(expected)
    model = HttpModel(Server(url, "tiny"), Encoder(tokenizers["gpt2"], 100))
    Scheduler(model).answer(found)
    for mine, wanted in zip(found, expected, strict=True):
        if mine.request_type == "loglikelihood":
            assert mine.resps[0][0] == pytest.approx(wanted.resps[0][0], abs=1e-3)
            assert mine.resps[0][1] == wanted.resps[0][1]
        elif mine.request_type == "loglikelihood_rolling":
            assert mine.resps[0] == pytest.approx(wanted.resps[0], abs=1e-3)
        else:
            assert mine.resps == wanted.resps
    assert model.work["server_requests"] == 6


def test_without_a_tokenizer_the_servers_offsets_find_the_border(
    url: str, tiny_gpt2: Any, tokenizers: dict[str, Any]
) -> None:
    expected, found = requests()[:2], requests()[:2]
    Scheduler(TransformersModel(tiny_gpt2, tokenizers["gpt2"], max_length=100)).answer(expected)
    Scheduler(HttpModel(Server(url, "tiny"))).answer(found)
    assert [r.resps[0][0] for r in found] == pytest.approx([r.resps[0][0] for r in expected], abs=1e-3)


def test_a_first_token_that_no_server_scores_is_marked(url: str) -> None:
    asked = [Request("loglikelihood", {}, pair, 0, ("t", i, 1)) for i, pair in enumerate([("", "Hello"), ("a", " b")])]
    asked.append(Request("loglikelihood_rolling", {}, ("Some text.",), 0, ("t", 2, 1)))
    Scheduler(HttpModel(Server(url, "tiny"))).answer(asked)
    assert [request.marks for request in asked] == [(UNSCORED,), (), (UNSCORED,)]


def test_a_server_that_refuses_tokens_is_asked_once(url: str, tokenizers: dict[str, Any], backend: Backend) -> None:
    backend.refuses_tokens = True
    with pytest.raises(EvaluationError, match="Leave tokenizer out"):
        Scheduler(HttpModel(Server(url, "tiny"), Encoder(tokenizers["gpt2"], 100))).answer(requests()[:1])
    assert backend.calls == 1


def test_chats_are_sent_as_messages(url: str) -> None:
    model = HttpModel(Server(url, "tiny", chat=True))
    prompt = model.apply_chat_template([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    asked = [Request("generate_until", {}, (text, {}), 0, ("t", i, 1)) for i, text in enumerate([prompt, "plain"])]
    Scheduler(model).answer(asked)
    assert [r.resps for r in asked] == [["system:s|user:u"], ["user:plain"]]


def test_passing_failures_are_tried_again(url: str, backend: Backend, tokenizers: dict[str, Any]) -> None:
    backend.failures = 2
    asked = requests()[:1]
    Scheduler(HttpModel(Server(url, "tiny"), Encoder(tokenizers["gpt2"], 100))).answer(asked)
    assert asked[0].resps
    assert backend.calls == 3


def test_a_server_that_dies_loses_nothing(
    url: str, backend: Backend, tokenizers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusion_eval.harness.engine.server.time.sleep", lambda seconds: None)
    server = Server(url, "tiny", retries=1, concurrency=1)
    model = HttpModel(server, Encoder(tokenizers["gpt2"], 100))
    Scheduler(model, AnswerStore(tmp_path, model.fingerprint)).answer(requests()[:4])
    backend.dead = True
    with pytest.raises(EvaluationError, match=r"503.*Answers so far are kept"):
        Scheduler(model, AnswerStore(tmp_path, model.fingerprint)).answer(requests())
    kept = requests()[:4]
    Scheduler(model, AnswerStore(tmp_path, model.fingerprint)).answer(kept)
    assert all(request.resps for request in kept)


def test_rates_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=iter([5.0, 5.0, 5.05, 9.0]).__next__)
    monkeypatch.setattr("fusion_eval.harness.engine.server.time", clock)
    server = Server("http://x", "m", rate=10.0)
    for _ in range(4):
        server._wait()
    assert slept == pytest.approx([0.0, 0.1, 0.15, 0.0])


def test_a_server_is_left_alone_as_long_as_it_asks(
    url: str, backend: Backend, tokenizers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("fusion_eval.harness.engine.server.time.sleep", slept.append)
    backend.failures, backend.code, backend.wait = 1, 429, "42"
    asked = requests()[:1]
    Scheduler(HttpModel(Server(url, "tiny"), Encoder(tokenizers["gpt2"], 100))).answer(asked)
    assert slept == [42.0]
    assert asked[0].resps


def test_waits_are_seconds_or_dates() -> None:
    assert [seconds_of(said) for said in (None, "", "7", "1e9", "-3", "soon")] == [0.0, 0.0, 7.0, 300.0, 0.0, 0.0]
    assert seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert seconds_of("Wed, 21 Oct 2915 07:28:00 GMT") == 300.0


def test_broken_answers_are_asked_for_again(
    url: str, backend: Backend, tokenizers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusion_eval.harness.engine.server.time.sleep", lambda seconds: None)
    backend.said = [b'{"choices": [', b"[1, 2]", b'{"error": {"message": "overloaded"}}', b""]
    asked = requests()[:1]
    Scheduler(HttpModel(Server(url, "tiny"), Encoder(tokenizers["gpt2"], 100))).answer(asked)
    assert asked[0].resps
    assert backend.calls == 5


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"object": "list"}, "answers without choices"),
        ({"choices": []}, "answers without choices"),
        ({"choices": [{"text": ""}]}, "gives no log-probabilities of the prompt"),
        ({"choices": [{"logprobs": {"token_logprobs": [None]}}]}, "of another shape"),
    ],
)  # fmt: skip
def test_answers_of_another_shape_are_told(
    url: str, backend: Backend, tokenizers: dict[str, Any], said: dict[str, Any], told: str
) -> None:
    backend.said = [json.dumps(said).encode()]
    model = HttpModel(Server(url, "tiny"), Encoder(tokenizers["gpt2"], 100))
    with pytest.raises(EvaluationError, match=told):
        Scheduler(model).answer(requests()[:1])
