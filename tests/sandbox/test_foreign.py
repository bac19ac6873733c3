"""Programs in other languages: compiled and run in one jail, their whole tree ended, missing tools told."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from fusion_eval.errors import SandboxError
from fusion_eval.sandbox import Limits, Program, Sandbox, Status, Verdict
from fusion_eval.sandbox.languages import build, find_language, missing_tools

HELLO = {
    "js": "console.log(6 * 7)",
    "cpp": '#include <cstdio>\nint main() { printf("42"); }',
    "c": '#include <stdio.h>\nint main(void) { printf("42"); }',
    "java": "class Helper {}\npublic class Answer { public static void main(String[] a) { System.out.print(42); } }",
    "rs": 'fn main() { println!("42"); }',
    "sh": "echo 42",
    "pl": "print 42;",
    "rb": "puts 42",
    "php": "<?php echo 42;",
    "lua": "print(42)",
    "cs": "class Problem { public static void Main() { System.Console.Write(42); } }",
    "d": "import std.stdio;\nvoid main() { write(42); }",
    "rkt": "#lang racket\n(display 42)",
    "ml": "let () = print_int 42",
    "elixir": "IO.puts(42)",
    "scala": "object Problem { def main(args: Array[String]): Unit = { print(42) } }",
}
CLAIM = {  # a program whose tests hold when @ is 42 and not when it is 41
    "js": "console.assert(6 * 7 === @)",
    "cpp": "#include <cassert>\nint main() { assert(6 * 7 == @); }",
    "java": "public class P { public static void main(String[] a) { assert 6 * 7 == @; } }",
    "rs": "fn main() { assert_eq!(6 * 7, @); }",
    "go": 'package main\nimport "testing"\nfunc TestX(t *testing.T) { if 6*7 != @ { t.Fatal("no") } }',
    "sh": "set -e\n[ $((6 * 7)) = @ ]",
    "pl": "die unless 6 * 7 == @;",
    "rb": "raise unless 6 * 7 == @",
    "php": "<?php if (6 * 7 !== @) { throw new Exception('no'); }",
    "lua": "assert(6 * 7 == @)",
    "r": "stopifnot(6 * 7 == @)",
    "cs": "using System.Diagnostics; class P { static void Main() { int x = 6 * 7; Debug.Assert(x == @); } }",
    "d": "unittest { int x = 6 * 7; assert(x == @); }\nvoid main() {}",
    "rkt": "#lang racket\n(require rackunit)\n(check-equal? (* 6 7) @)",
    "ml": "let () = assert (6 * 7 = @)",
    "elixir": 'ExUnit.start()\ndefmodule T do\n  use ExUnit.Case\n  test "x" do\n    assert 6 * 7 == @\n  end\nend',
    "scala": "object Problem { def main(args: Array[String]): Unit = { assert(6 * 7 == @) } }",
}


def run(box: Sandbox, language: str, code: str, **fields: object) -> Verdict:
    return box.run([Program(code, language=language, **fields)])[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("language", HELLO)
def test_every_installed_language_prints(box: Sandbox, language: str) -> None:
    verdict = run(box, language, HELLO[language], mode="output", limits=Limits(cpu=60))
    if find_language(language).proc and not box.level.startswith("bubblewrap"):
        assert verdict.status is Status.UNAVAILABLE
    elif missing_tools(language):
        assert verdict.status is Status.UNAVAILABLE
        assert "apt-get install" in verdict.detail
        assert not verdict.scored
    else:
        assert (verdict.status, verdict.stdout.strip()) == (Status.PASSED, "42"), verdict.detail


@pytest.mark.parametrize("language", CLAIM)
def test_every_installed_language_tells_right_from_wrong(box: Sandbox, language: str) -> None:
    if missing := missing_tools(language):
        pytest.skip(f"no {missing[0]} here")
    if find_language(language).proc and not box.level.startswith("bubblewrap"):
        pytest.skip(f"{language} needs bubblewrap")
    limits = Limits(cpu=60)
    right, wrong = box.run(
        [Program(CLAIM[language].replace("@", value), language=language, limits=limits) for value in ("42", "41")]
    )
    assert right.passed, right.detail
    assert wrong.status in (Status.FAILED, Status.KILLED), wrong.detail
    assert "compile" not in wrong.detail


def needs(language: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(bool(missing_tools(language)), reason=f"no {language} here")


@needs("js")
def test_an_assertion_that_only_prints_fails(box: Sandbox) -> None:
    assert run(box, "js", "console.assert(1 === 2)").status is Status.FAILED
    assert run(box, "js", "console.assert(1 === 1)").passed


@needs("cpp")
def test_compilers_have_their_own_limits_and_messages(box: Sandbox) -> None:
    verdict = run(box, "cpp", "int main( {")
    assert verdict.status is Status.FAILED
    assert "does not compile" in verdict.detail
    assert "main.cpp" in verdict.detail


@needs("java")
def test_java_assertions_are_on(box: Sandbox) -> None:
    code = "public class P { public static void main(String[] a) { assert 1 == 2; } }"
    assert "AssertionError" in run(box, "java", code, limits=Limits(cpu=60)).detail


@needs("sh")
def test_standard_input_reaches_the_program(box: Sandbox) -> None:
    assert run(box, "sh", "read line; echo got $line", mode="output", stdin="it\n").stdout == "got it\n"


@needs("sh")
def test_no_process_is_left(box: Sandbox) -> None:
    mark = str(uuid.uuid4().int % 10**12)  # others may run this test, too
    verdict = run(box, "sh", f"sleep {mark} & setsid sleep {mark} & (sleep {mark} &) ; exit 0")
    assert verdict.passed
    assert not [process for process in Path("/proc").glob("[0-9]*") if mark in arguments(process)]


def arguments(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:  # it has just ended
        return ""


@needs("sh")
@pytest.mark.parametrize(
    "code",
    [
        "cat /etc/shadow",
        "echo x > /usr/bin/fusion_eval_probe",
        "echo x > ../../fusion_eval_probe",
        "exec 3<>/dev/tcp/127.0.0.1/9",
        "unshare -U true",
        "mount -t tmpfs none .",
    ],
)
def test_the_jail_holds(box: Sandbox, code: str) -> None:
    assert run(box, "sh", f"set -e\n{code}\nexit 0").status is Status.FAILED


@needs("sh")
def test_fork_bomb_loop_and_flood_end(box: Sandbox) -> None:
    limits = Limits(cpu=0.5)
    bomb, loop, flood = (
        run(box, "sh", code, limits=limits) for code in (":(){ :|:& };:; wait", "while :; do :; done", "yes")
    )
    assert bomb.scored
    assert loop.status is Status.TIMEOUT
    assert flood.status is Status.TIMEOUT
    assert len(flood.stdout) <= limits.output
    assert run(box, "sh", "exit 0").passed


@needs("pl")
def test_memory_is_watched(box: Sandbox) -> None:
    code = "my @a; while (1) { push @a, 'x' x 1000000 }"
    assert run(box, "pl", code, limits=Limits(cpu=20, memory=200 << 20)).status is Status.OUT_OF_MEMORY


@needs("sh")
def test_without_bubblewrap(can_run: None) -> None:
    with Sandbox(allow_code_execution=True, bubblewrap=False, workers=1) as box:
        assert run(box, "sh", "echo $((6 * 7))", mode="output").stdout == "42\n"
        assert run(box, "sh", "cat /etc/passwd").status is Status.FAILED


def test_unknown_languages_are_named() -> None:
    with pytest.raises(SandboxError, match="Did you mean 'java'"):
        find_language("jav")


@needs("java")
def test_java_source_is_named_after_its_class() -> None:
    steps = build("java", HELLO["java"])
    assert steps.source == "Answer.java"
    assert steps.run[-1] == "Answer"
    assert build("java", "class A {} class B { public static void main(String[] a) {} } class C {}").run[-1] == "B"


def test_the_runner_needs_nothing_of_the_package() -> None:
    code = "import sys, fusion_eval.sandbox.jail.runner; print(any(n in sys.modules for n in ('torch', 'numpy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
