"""Pictures for servers: what is sent, byte for byte, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import threading
import wave
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fusion_eval.errors import ConfigError, DataError, EvaluationError
from fusion_eval.harness.engine.chat_parts import wav
from fusion_eval.harness.engine.http import HttpModel
from fusion_eval.harness.engine.server import Server
from fusion_eval.harness.media import Conversation, Media, Turn
from fusion_eval.harness.request import Request
from fusion_eval.harness.scheduler import Scheduler
from tests.harness.engine.tiny_vlm import picture


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def url(told: list[dict[str, Any]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.append({"path": self.path, **body})
            data = json.dumps({"choices": [{"message": {"content": f"answer {len(told)}. Stop here"}}]}).encode()
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


def ask(model: HttpModel, *asked: Any) -> list[str]:
    settings = {"max_new_tokens": 9, "until": ["."], "num_beams": 1, "image_aspect_ratio": "original"}
    made = [Request("generate_until", {}, (a, settings), 0, ("t", i, 1)) for i, a in enumerate(asked)]
    Scheduler(model).answer(made)
    return [request.resps[0] for request in made]


def test_pictures_go_as_png_data_urls_in_their_places(url: str, told: list[dict[str, Any]]) -> None:
    one, two = picture(1), picture(2, 33, 17)
    turns = (Turn("system", ("Be brief.",)), Turn("user", (one, "And this: ", two, "Which?")))
    assert ask(HttpModel(Server(url, "tiny", chat=True)), Conversation(turns)) == ["answer 1"]
    sent = told[0]
    assert sent["path"] == "/v1/chat/completions"
    assert (sent["max_tokens"], sent["temperature"], sent["stop"]) == (9, 0.0, ["."])
    assert "num_beams" not in sent
    assert "image_aspect_ratio" not in sent
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    parts = sent["messages"][1]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text", "image_url", "text"]
    assert [part["text"] for part in parts if part["type"] == "text"] == ["And this: ", "Which?"]
    for part, medium in zip(parts[::2], (one, two), strict=True):
        head, _, data = part["image_url"]["url"].partition(",")
        assert head == "data:image/png;base64"
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), np.asarray(medium.value))


def test_equal_questions_go_once_and_other_pictures_or_places_go_apart(url: str, told: list[dict[str, Any]]) -> None:
    one, two = picture(1), picture(2)
    first = Conversation((Turn("user", (one, "Which?")),))
    last = Conversation((Turn("user", ("Which?", one)),))
    answers = ask(HttpModel(Server(url, "tiny", chat=True)), first, Conversation.ask([two], "Which?"), first, last)
    assert len(told) == 3
    assert answers[0] == answers[2]
    assert len(set(answers)) == 3


def test_sounds_go_as_wav(url: str, told: list[dict[str, Any]]) -> None:
    sound = Media("audio", "s", {"array": np.linspace(-1, 1, 160), "sampling_rate": 8000})
    ask(HttpModel(Server(url, "tiny", chat=True)), Conversation.ask([sound], "What is heard?"))
    part = told[0]["messages"][0]["content"][0]
    assert part["input_audio"]["format"] == "wav"
    with wave.open(io.BytesIO(base64.b64decode(part["input_audio"]["data"]))) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (8000, 160, 1)
    with pytest.raises(DataError, match="finite samples"):
        wav({"array": [float("nan")], "sampling_rate": 8000}, "audio s")


def test_what_a_server_cannot_be_asked_is_refused(url: str, told: list[dict[str, Any]]) -> None:
    asked = Conversation.ask([picture(1)], "Which?")
    with pytest.raises(ConfigError, match=r"Set server\.chat=true"):
        ask(HttpModel(Server(url, "tiny")), asked)
    with pytest.raises(EvaluationError, match="asked about media"):
        HttpModel(Server(url, "tiny", chat=True)).encode_pairs([(asked, " red")])
    video = Conversation.ask([Media("video", "v", [picture(1).value])], "What happens?")
    with pytest.raises(EvaluationError, match="is asked about a video"):
        ask(HttpModel(Server(url, "tiny", chat=True)), video)
    assert not told
