from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import ConfigError
from fusion_eval.harness.judge import JudgeError, current_judge, get_judge, judged, judging
from fusion_eval.harness.judge.active import JudgeSilence, ask_for_task
from fusion_eval.harness.judge.asked import GIVEN_UP


@pytest.fixture
def served() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers with the number of the request, and what it was asked; it refuses the word "refuse"."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({**body, "key": self.headers.get("Authorization")})
            refused = "refuse" in json.dumps(body)
            text = json.dumps({"choices": [{"message": {"content": f"answer {len(seen)}"}}]}).encode()
            self.send_response(400 if refused else 200)
            self.end_headers()
            self.wfile.write(b"no" if refused else text)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_is_asked_once_for_equal_questions(served: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    url, seen = served
    judge = get_judge({"url": url, "model": "m", "cache": str(tmp_path / "a.jsonl"), "options": {"temperature": 0.5}})
    assert judge.ask("hello", max_tokens=3, n=1, timeout=4, top_p=None, model="asked-by-the-task") == "answer 1"
    assert judge.ask([{"role": "user", "content": "hello"}], max_tokens=3, n=1, timeout=4) == "answer 1"
    assert judge.ask("hello", max_tokens=4) == "answer 2"
    assert seen[0] == {
        "model": "m", "temperature": 0.5, "max_tokens": 3, "key": None,
        "messages": [{"role": "user", "content": "hello"}],
    }  # fmt: skip


def test_answers_are_replayed_without_the_server(tmp_path: Path) -> None:
    cache = tmp_path / "a.jsonl"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 999}}
    asked = [{"role": "user", "content": [{"type": "text", "text": "q"}, image]}]
    assert get_judge({"answer": "yes", "model": "m", "cache": str(cache)}).ask(asked) == "yes"
    assert "AAAA" not in cache.read_text()
    with cache.open("ab") as file:
        file.write(b'{"key": "half')
    replayed = get_judge({"url": "http://nobody.invalid/v1", "model": "m", "cache": str(cache), "mode": "replay"})
    assert replayed.ask(asked) == "yes"
    with pytest.raises(JudgeError, match="no answer to this question is recorded"):
        replayed.ask("another")
    refreshed = get_judge({"answer": "no", "model": "m", "cache": str(cache), "mode": "refresh"})
    assert refreshed.ask(asked) == "no"
    assert replayed.ask(asked) == "yes", "a judge reads its file once"
    assert get_judge({"kind": "none", "model": "m", "cache": str(cache), "mode": "replay"}).ask(asked) == "no"


def test_several_are_asked_at_once_and_one_failure_is_one_failure(served: tuple[str, list[dict[str, Any]]]) -> None:
    judge = get_judge({"url": served[0], "model": "m", "retries": 0, "concurrency": 2})
    found = judge.ask_all(["a", "refuse", "b"])
    assert isinstance(found[1], JudgeError)
    assert {found[0], found[2]} <= {"answer 1", "answer 2", "answer 3"}


def test_a_dead_server_is_given_up() -> None:
    calls: list[Any] = []

    def dead(messages: Any, options: Any) -> str:
        calls.append(messages)
        raise OSError("down")

    judge = get_judge(dead)
    for _ in range(GIVEN_UP + 3):
        with pytest.raises(JudgeError):
            judge.ask("q")
    assert len(calls) == GIVEN_UP


@pytest.mark.parametrize("answer", ["", "  ", None])
def test_an_empty_answer_is_none(answer: Any) -> None:
    def empty(messages: Any, options: Any) -> Any:
        return answer or ""

    with pytest.raises(JudgeError, match="expected a text"):
        get_judge(empty).ask("q")


def test_functions_by_name_are_imported_when_they_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_judge.py").write_text("def say(messages, options):\n    return messages[0]['content'].upper()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert get_judge({"function": "some_judge:say"}).ask("loud") == "LOUD"
    missing = get_judge({"function": "no_such.module:say"})
    with pytest.raises(JudgeError, match="cannot be imported"):
        missing.ask("q")


def test_faults_of_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"judge\.modle.*Did you mean .*'model'"):
        get_judge({"modle": "m"})
    with pytest.raises(ConfigError) as error:
        get_judge({"kind": "server", "mode": "replays", "concurrency": 0})
    said = str(error.value)
    for part in ("judge.url: not set", "judge.mode: 'replays'", "judge.cache: not set", "judge.concurrency: 0"):
        assert part in said


def test_a_hook_that_swallows_silence_is_told_apart_all_the_same() -> None:
    def swallowing() -> float:
        for _ in range(5):
            try:
                ask_for_task("q")
            except Exception:  # noqa: BLE001 - what tasks do
                tries.append(1)
        return 0.0

    def bare() -> float:
        try:
            ask_for_task("q")
        except BaseException:  # noqa: BLE001 - what some tasks do
            return 0.0
        return 1.0

    tries: list[int] = []
    assert current_judge().name == "none"
    for hook in (swallowing, bare):
        with pytest.raises(JudgeError, match="none is set"):
            judged(hook)
    assert tries == []
    with judging(get_judge({"answer": "fine"})):
        assert judged(lambda: ask_for_task("q")) == "fine"
        assert judged(bare) == 1.0


def test_silence_in_a_thread_of_the_hook_counts() -> None:
    def threaded() -> float:
        def work() -> None:
            with pytest.raises(JudgeSilence):
                ask_for_task("q")

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return 0.0

    with pytest.raises(JudgeError):
        judged(threaded)


def test_other_errors_of_hooks_stay_what_they_are() -> None:
    def broken() -> float:
        raise KeyError("x")

    with pytest.raises(KeyError):
        judged(broken)
    with pytest.raises(JudgeError):
        ask_for_task("q")


def test_a_local_model_answers_in_its_chat_template(
    tmp_path: Path, tiny_llama: Any, tokenizers: dict[str, Any]
) -> None:
    tiny_llama.save_pretrained(tmp_path / "m")
    tokenizers["llama"].save_pretrained(tmp_path / "m")
    judge = get_judge({"kind": "local", "model": str(tmp_path / "m")})
    answer = judge.ask("hello", max_tokens=4, temperature=0.0)
    assert answer == judge.ask([{"role": "user", "content": [{"type": "text", "text": "hello"}]}], max_tokens=4)
    with pytest.raises(JudgeError, match="a judge that can see"):
        judge.ask([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}])
