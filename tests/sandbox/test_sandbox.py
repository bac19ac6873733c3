"""Verdicts of the sandbox: modes, limits, caching, refusals."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import SandboxError
from fusion_eval.sandbox import Limits, Program, Sandbox, Status, encode
from fusion_eval.sandbox import level as level_module
from fusion_eval.sandbox.level import Layers, find_layers, require

TEST = "assert double(2) == 4\nassert double([1]) == [1, 1]\n"


def double(code: str, **fields: object) -> Program:
    return Program(code=code, **{"test": TEST, "entry_points": ("double",), **fields})  # type: ignore[arg-type]


RIGHT = "def double(x):\n    return x * 2\n"


def test_nothing_runs_without_permission() -> None:
    with pytest.raises(SandboxError, match="allow_code_execution=true"):
        Sandbox()
    with pytest.raises(SandboxError):
        Sandbox(allow_code_execution="yes")  # type: ignore[arg-type]


def test_a_machine_without_protection_is_refused() -> None:
    bare = Layers(bubblewrap=False, landlock=0, seccomp=True, uid=True)
    with pytest.raises(SandboxError, match="Landlock"):
        require(bare, unsafe=False)
    require(bare, unsafe=True)
    assert str(bare) == "seccomp+uid+rlimits"


def test_bubblewrap_can_be_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_module, "bubblewrap_works", lambda: False)
    with pytest.raises(SandboxError, match="Install"):
        find_layers(True)


def test_a_closed_sandbox_runs_nothing(can_run: None) -> None:
    with pytest.raises(SandboxError, match="closed"):
        Sandbox(allow_code_execution=True).run([double(RIGHT)])


def test_right_and_wrong(box: Sandbox) -> None:
    right, wrong, broken = box.run([double(RIGHT), double("def double(x): return x"), double("def double(x")])
    assert (right.status, right.integrity, right.sandbox_level) == (Status.PASSED, "split", box.level)
    assert right.cpu > 0
    assert right.memory > 1 << 20
    assert (wrong.status, wrong.detail) == (Status.FAILED, "AssertionError: ")
    assert broken.detail.startswith("SyntaxError")


def test_equal_programs_run_once(box: Sandbox) -> None:
    verdicts = box.run([double(RIGHT + "# once\n")] * 3)
    assert [verdict.cached for verdict in verdicts] == [False, True, True]
    assert all(verdict.passed for verdict in verdicts)


def test_in_place_changes_reach_the_tests(box: Sandbox) -> None:
    test = "x = [3, 1, 2]\narrange(x)\nassert x == [1, 2, 3]\nd = {}\nassert fill(d) is None and d == {1: [2]}\n"
    code = "def arrange(x):\n    x.sort()\ndef fill(d):\n    d[1] = [2]\n"
    assert box.run([Program(code, test, ("arrange", "fill"))])[0].passed


def test_what_a_program_raises_is_told_from_its_end(box: Sandbox) -> None:
    codes = [
        "input()",
        "raise BrokenPipeError",
        "import os; os._exit(0)",
        "import subprocess; subprocess.run(['true'])",
    ]
    programs = [Program(f"def f():\n    {code}\n", "f()\n", ("f",)) for code in codes]
    details = [verdict.detail for verdict in box.run(programs)]
    assert [detail.partition(":")[0] for detail in details[:2]] == ["EOFError", "BrokenPipeError"]
    assert details[2] == "the candidate's process ended"
    assert "no other program" in details[3]


def test_exceptions_cross_by_their_built_in_base(box: Sandbox) -> None:
    test = "try:\n    f()\n    raise SystemError\nexcept ValueError as error:\n    assert 'bad' in str(error)\n"
    code = "class Mine(ValueError):\n    pass\ndef f():\n    raise Mine('bad')\n"
    assert box.run([Program(code, test, ("f",))])[0].passed


def test_an_exception_that_wants_more_than_a_text_keeps_its_type(box: Sandbox) -> None:
    test = "try:\n    f()\n    raise SystemError\nexcept UnicodeDecodeError as error:\n    assert error.args\n"
    assert box.run([Program("def f():\n    return b'\\xff'.decode()\n", test, ("f",))])[0].passed


def test_an_argument_that_is_no_plain_data_falls_back(box: Sandbox) -> None:
    verdict = box.run([Program("def f(g):\n    return g(2)\n", "assert f(lambda x: x + 1) == 3\n", ("f",))])[0]
    assert (verdict.status, verdict.integrity) == (Status.PASSED, "in_process")


def test_an_opaque_result_fails_unless_the_tests_need_objects(box: Sandbox) -> None:
    code = "class Node:\n    def __init__(self, v):\n        self.v = v\ndef f():\n    return Node(3)\n"
    plain, needed = box.run([Program(code, "assert f().v == 3", ("f",), objects=flag) for flag in (False, True)])
    assert plain.status is Status.OPAQUE
    assert plain.scored
    assert (needed.status, needed.integrity) == (Status.PASSED, "in_process")


def test_helpers_of_the_prompt_are_the_tests_own(box: Sandbox) -> None:
    helpers = "def poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\ndef zero(xs):\n    'doc'\n"
    code = "def poly(xs, x):\n    return 0\ndef zero(xs):\n    return 99\n"
    assert not box.run([Program(code, "assert poly([1, 1], zero([1, 1])) == 0", ("zero",), helpers)])[0].passed


def test_a_module_that_only_the_solution_imported(box: Sandbox) -> None:
    code = "import math\ndef area(r):\n    return math.pi * r * r\n"
    assert box.run([Program(code, "assert math.isclose(area(1), math.pi)", ("area",))])[0].passed
    renamed = "import cmath as math\ndef area(r):\n    return 3\n"
    assert not box.run([Program(renamed, "assert math.isclose(area(1), math.pi)", ("area",))])[0].passed


def test_a_class_method_is_called_on_a_fresh_instance(box: Sandbox) -> None:
    code = "class Solution:\n    def twice(self, x):\n        return 2 * x\n"
    program = Program(code, entry_points=("Solution.twice",), inputs=([1], [2]), expected=(2, 4))
    assert box.run([program])[0].passed


def test_results_are_collected_then_compared(box: Sandbox) -> None:
    code = "def f(x):\n    return (x, x / 3)\n"
    inputs = ([1], [2])
    collected = box.run([Program(code, entry_points=("f",), inputs=inputs)])[0]
    assert collected.results == (encode((1, 1 / 3)), encode((2, 2 / 3)))
    same, other, raising = (
        Program(text, entry_points=("f",), inputs=inputs, expected=collected.results)
        for text in (code + "#", code.replace("3", "4"), code.replace("3", "0"))
    )
    verdicts = box.run([same, other, raising])
    assert [verdict.passed for verdict in verdicts] == [True, False, False]
    assert "input 0 of 2" in verdicts[1].detail
    assert "ZeroDivisionError" in verdicts[2].detail


def test_tests_may_say_what_they_accept(box: Sandbox) -> None:
    test = "def accept(inputs, expected, output):\n    return set(output) == set(expected)\n"
    program = Program("def f(x):\n    return x[::-1]\n", test, ("f",), inputs=([[1, 2]],), expected=([1, 2],))
    assert box.run([program])[0].passed


def test_floats_are_compared_with_tolerance(box: Sandbox) -> None:
    fields = {"entry_points": ("f",), "inputs": ([1],), "expected": (1.0,)}
    near, far = box.run([Program(f"def f(x):\n    return {value}\n", **fields) for value in ("1 + 5e-7", "1 + 5e-6")])
    assert near.passed
    assert not far.passed


def test_output_mode_reads_and_prints(box: Sandbox) -> None:
    script = "if __name__ == '__main__':\n    print(int(input()) + 1)\n"
    fine, bad, flood = box.run(
        [
            Program(script, mode="output", stdin="41\n"),
            Program("print('x')\nraise ValueError", mode="output"),
            Program("print('y' * 5000)", mode="output", limits=Limits(output=1000)),
        ]
    )
    assert (fine.status, fine.stdout, fine.integrity) == (Status.PASSED, "42\n", "output")
    assert (bad.status, bad.stdout) == (Status.FAILED, "x\n")
    assert (len(flood.stdout), flood.truncated) == (1000, True)


def test_cpu_time_decides_and_memory_is_bounded(box: Sandbox) -> None:
    limits = Limits(cpu=0.4)
    spin, sleep, big = box.run(
        [
            double("def double(x):\n    while True:\n        pass\n", limits=limits),
            double("import time\ndef double(x):\n    time.sleep(60)\n", limits=limits),
            double("def double(x):\n    return bytearray(1 << 30)\n", limits=Limits(memory=256 << 20)),
        ]
    )
    assert spin.status is Status.TIMEOUT
    assert spin.cpu < 3.0  # the kernel's own bound, for a watcher that does not get to look
    assert sleep.status is Status.TIMEOUT
    assert "s of CPU time in" in sleep.detail
    assert big.status is Status.OUT_OF_MEMORY


def test_a_lost_server_is_replaced(can_run: None) -> None:
    with Sandbox(allow_code_execution=True, workers=1) as box:
        assert box.run([double(RIGHT)])[0].passed
        worker = box._pool.workers[0]
        os.killpg(worker._process.pid, 9)
        select.select([worker.socket], [], [])  # until the jail has hung up
        assert box.run([double(RIGHT + "#")])[0].passed
        assert box._pool.workers[0] is not worker


def test_a_sample_that_ends_its_server_twice_is_not_scored(can_run: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(allow_code_execution=True, workers=1) as box:
        box.run([double(RIGHT)])
        feed = box._pool._feed

        def deadly(worker: Any, jobs: object, waiting: object) -> None:
            os.killpg(worker._process.pid, 9)
            select.select([worker.socket], [], [])  # until the jail has hung up
            feed(worker, jobs, waiting)

        monkeypatch.setattr(box._pool, "_feed", deadly)
        verdict = box.run([double(RIGHT + "##")])[0]
    assert verdict.status is Status.INFRASTRUCTURE
    assert not verdict.scored


def test_preload_names_what_is_missing(can_run: None) -> None:
    box = Sandbox(allow_code_execution=True, workers=1, preload=("no_such_module",))
    with box, pytest.raises(SandboxError, match="no_such_module"):
        box.run([double(RIGHT)])


def test_verdicts_outlive_the_sandbox(can_run: None, tmp_path: Path) -> None:
    for expected in (False, True):
        with Sandbox(allow_code_execution=True, workers=1, cache=tmp_path) as box:
            verdict = box.run([double(RIGHT, label=str(expected))])[0]
            assert (verdict.passed, verdict.cached) == (True, expected)
    for path in tmp_path.rglob("*.json"):
        path.write_text("torn")
    with Sandbox(allow_code_execution=True, workers=1, cache=tmp_path) as box:
        assert box.run([double(RIGHT)])[0].cached is False


@pytest.mark.parametrize(
    "fields", [{"mode": "maybe"}, {"inputs": ([1],)}, {"inputs": ([1],), "expected": (), "entry_points": ("f",)}]
)
def test_programs_that_make_no_sense(fields: dict[str, object]) -> None:
    with pytest.raises(SandboxError):
        Program("", **fields)  # type: ignore[arg-type]
    with pytest.raises(SandboxError, match="cpu"):
        Limits(cpu=0)


def test_a_busy_machine_flips_nothing(can_run: None) -> None:
    """More programs than cores, each needing half of its budget: wall time would fail them."""
    spin = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end:\n    pass\n"
    programs = [double(f"{spin}{RIGHT}# {number}", limits=Limits(cpu=1.0)) for number in range(8)]
    with Sandbox(allow_code_execution=True, workers=8) as box:
        verdicts = box.run(programs)
    assert all(verdict.passed for verdict in verdicts)


def test_a_candidate_cannot_force_the_weaker_mode(box: Sandbox) -> None:
    """What it sends nested past the encoder's depth comes back as an argument that cannot be sent."""
    code = (
        "import sys\ndeep = []\nfor _ in range(230):\n    deep = [deep]\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.endswith('jail.candidate'):\n"
        "        module.encode = lambda value: deep\n"
        "def f(x=None):\n    return 1\n"
    )
    verdict = box.run([Program(code, "assert f(f()) == 1\n", ("f",))])[0]
    assert (verdict.status, verdict.integrity) == (Status.FAILED, "split")
    assert "nested too deeply" in verdict.detail
