"""Runs the hostile corpus through the sandbox and prints what happened as JSON; also a script for another user.

python tests/sandbox/corpus.py CORPUS.json [--no-bubblewrap] [--no-landlock] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import socket
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fusion_eval.sandbox import Limits, Program, Sandbox, Status, Verdict

OUTCOME = {Status.PASSED: "pass", Status.TIMEOUT: "timeout", Status.INFRASTRUCTURE: "infrastructure"}


class Listener:
    """Counts connections to a port of the host."""

    def __init__(self, port: int) -> None:
        self.count = 0
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return
            self.count += 1

    def close(self) -> None:
        self._socket.close()


def program(problem: dict[str, str], code: str, mode: str = "split", cpu: float = 1.5) -> Program:
    test = problem["test"] + "\n" + problem["call"] + "\n"
    return Program(
        code=code, test=test, entry_points=(problem["entry_point"],), helpers=problem["prompt"], mode=mode,
        limits=Limits(cpu=cpu),
    )  # fmt: skip


def _budget(expected: str) -> float:
    """Samples that may run out of time get little of it, all others plenty: machines differ."""
    return 0.25 if "timeout" in expected else 10.0


def outcome(verdict: Verdict) -> str:
    return OUTCOME.get(verdict.status, "fail")


def filled(corpus: dict[str, object], folder: Path, port: int) -> dict[str, object]:
    """The corpus with this run's own paths and port."""
    text = json.dumps(corpus)
    for mark, value in (("@MARKER@", folder / "marker"), ("@SECRET_FILE@", folder / "secret"), ("@PORT@", port)):
        text = text.replace(mark, str(value))
    return json.loads(text)


def run(corpus: dict[str, object], only: list[str], **options: object) -> dict[str, object]:
    """Verdicts by name, plus what the host saw."""
    folder = Path(tempfile.mkdtemp(prefix="hostile_"))
    folder.chmod(0o777)
    (folder / "secret").write_text("secret")
    os.environ[str(corpus["secret_env"])] = "secret"
    listener = Listener(0)
    corpus = filled(corpus, folder, listener.port)
    has_numpy = importlib.util.find_spec("numpy") is not None
    samples = [
        sample
        for sample in corpus["samples"]
        if (not only or sample["name"] in only) and (has_numpy or "numpy" not in sample["code"])
    ]
    plain = program(corpus["problem"], next(s["code"] for s in corpus["samples"] if s["name"] == "ok_plain"))
    found: dict[str, object] = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Sandbox(allow_code_execution=True, **options) as box:
        programs = [program(corpus["problem"], s["code"], cpu=_budget(s["expected"])) for s in samples]
        verdicts = box.run(programs)
        again = [program(corpus["problem"], f"{plain.code}# {number}\n") for number in range(8)]
        found["alive"] = all(verdict.passed for verdict in box.run(again))
        found["servers"] = [worker._process.pid for worker in box._pool.workers]
        found["level"] = box.level
    listener.close()
    found["verdicts"] = {s["name"]: [outcome(v), v.detail, v.wall] for s, v in zip(samples, verdicts, strict=True)}
    found["wrong"] = [
        s["name"] for s, v in zip(samples, verdicts, strict=True) if outcome(v) not in s["expected"].split("|")
    ]
    found["left"] = [pid for pid in found["servers"] if Path(f"/proc/{pid}").exists()]
    found["marker"] = sorted(path.name for path in folder.iterdir()) != ["secret"]
    found["connections"] = listener.count
    found["grown_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    shutil.rmtree(folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus")
    parser.add_argument("--no-bubblewrap", action="store_true")
    parser.add_argument("--no-landlock", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    corpus = json.loads(Path(args.corpus).read_text(encoding="utf-8"))
    found = run(corpus, args.only, bubblewrap=not args.no_bubblewrap, landlock=not args.no_landlock)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
