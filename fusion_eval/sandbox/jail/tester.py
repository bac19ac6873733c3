"""The tests' process: it executes the tests against stand-ins that call the candidate in its own process.

What comes back is decoded to built-in types, so no object of the candidate can pretend to equal the expected value.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NoReturn

from fusion_eval.sandbox.jail.candidate import batch, failure, find, leave
from fusion_eval.sandbox.jail.codec import OpaqueError, TooLargeError, decode, encode
from fusion_eval.sandbox.jail.wire import FrameError, Reader, send

_ALIASES = {"np": "numpy", "pd": "pandas"}
_FIRST_BATCH, _LAST_BATCH = 8, 256
_RELATIVE, _ABSOLUTE = 1e-7, 1e-6


@dataclass(frozen=True, slots=True)
class Test:
    """The trusted side of a program, prepared once and inherited by every process that runs it.

    Args:
        code: compiled tests; None when they do not compile (`fault` says why).
        fault: the tests' own syntax error.
        entries: names the candidate must define.
        names: every global name the tests mention.
        helpers: compiled text that is executed before the tests, such as the prompt.
        inputs: encoded argument lists to call the first entry with.
        expected: decoded results, None to collect them.
    """

    code: CodeType | None
    fault: str
    entries: tuple[str, ...]
    names: frozenset[str]
    helpers: CodeType | None
    inputs: list[Any] | None
    expected: list[Any] | None


class _ObjectsNeededError(BaseException):
    """Raised past the tests' own handlers when a value is not plain data."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where = where
        self.what = what


class _HungUpError(BaseException):
    """Raised past the tests' own handlers when the candidate's process is gone."""


class RemoteError(Exception):
    """An exception of the candidate that is not a built-in one."""


def prepare(job: dict[str, Any]) -> Test:
    """Compiles a job's tests and helpers."""
    code, fault = None, ""
    try:
        code = compile(job["test"], "<test>", "exec")
    except (SyntaxError, ValueError) as error:
        fault = f"the tests do not compile: {error}"
    try:
        helpers = compile(job["helpers"], "<helpers>", "exec") if job["helpers"] else None
    except (SyntaxError, ValueError):
        helpers = None  # a prompt that ends inside a function is no helper
    expected = job.get("expected")
    return Test(
        code=code,
        fault=fault,
        entries=tuple(job["entries"]),
        names=frozenset(_global_names(code)) if code else frozenset(),
        helpers=helpers,
        inputs=job.get("inputs"),
        expected=None if expected is None else [decode(item) for item in expected],
    )


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def judge(test: Test, fd: int, result_fd: int, cap: int) -> NoReturn:
    """Runs the tests against the candidate at the other end of `fd` and reports the outcome."""
    try:
        outcome = _run(test, _Line(fd, cap))
    except _ObjectsNeededError as need:
        outcome = {"status": "opaque", "where": need.where, "detail": f"{need.where} is not plain data: {need.what}"}
    except _HungUpError:
        outcome = {"status": "failed", "detail": "the candidate's process ended", "ended": True}
    except FrameError as error:
        outcome = {"status": "failed", "detail": f"the candidate sent {error}"}
    except RemoteError as error:
        outcome = {"status": "failed", "detail": str(error)}
    except BaseException as error:  # noqa: BLE001 - whatever the tests raise is their verdict
        outcome = failure(error)
    leave(result_fd, outcome)


def _run(test: Test, line: _Line) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    if test.helpers is not None:
        exec(test.helpers, scope)
    known = {*scope, *dir(builtins)} - set(test.entries)
    have = line.open([*test.entries, *sorted(test.names - known - set(test.entries))])
    if "dead" in have:
        return dict(have["dead"])
    for name, offer in have["have"].items():
        _bind(scope, name, offer, line, name in test.entries)
    if test.code is None:
        return {"status": "failed", "detail": test.fault}
    exec(test.code, scope)
    if test.inputs is None:
        return {"status": "passed"}
    return _compare(test, line, scope.get("accept"))


def run_local(test: Test, scope: dict[str, Any]) -> dict[str, Any]:
    """The outcome of the tests in the candidate's own namespace."""
    if test.code is None:
        return {"status": "failed", "detail": test.fault}
    exec(test.code, scope)
    if test.inputs is None:
        return {"status": "passed"}
    return _compare(test, _LocalLine(scope), scope.get("accept"))


def _bind(scope: dict[str, Any], name: str, offer: Any, line: _Line, is_entry: bool) -> None:
    """Puts a stand-in for one of the candidate's names where the tests look for it."""
    head = name.partition(".")[0]
    if type(offer) is not dict:
        if is_entry and head not in scope:
            raise NameError(f"name '{head}' is not defined")
        if is_entry:
            del scope[head]
    elif "call" in offer:
        scope[name] = _Stub(name, line)
    elif "module" in offer and _ALIASES.get(name, name) == offer["module"]:
        if offer["module"] in sys.stdlib_module_names or name in _ALIASES:
            scope[name] = importlib.import_module(offer["module"])
    elif "value" in offer:
        scope[name] = decode(offer["value"])


class _Line:
    """The connection to the candidate's process."""

    def __init__(self, fd: int, cap: int) -> None:
        self.fd = fd
        self.reader = Reader(fd, cap)

    def open(self, wanted: Sequence[str]) -> dict[str, Any]:
        first = self.ask({"want": list(wanted)})
        if type(first) is not dict or not (type(first.get("dead")) is dict or type(first.get("have")) is dict):
            raise FrameError("no list of its names")
        if "have" in first:
            return {"have": {name: first["have"].get(name) for name in wanted}}
        status = "out_of_memory" if first["dead"].get("status") == "out_of_memory" else "failed"
        return {"dead": {"status": status, "detail": str(first["dead"].get("detail"))[:400]}}

    def ask(self, message: dict[str, Any]) -> Any:
        try:
            send(self.fd, message)
            return self.reader.read()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise _HungUpError from None


class _LocalLine(_Line):
    """The same questions answered in this process."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self._scope = scope

    def ask(self, message: dict[str, Any]) -> Any:
        return json.loads(batch(find(self._scope, message["f"]), message["many"])[4:])


class _Stub:
    """Stands for one callable of the candidate; arguments and results cross as plain data."""

    def __init__(self, name: str, line: _Line) -> None:
        self.__name__ = self.__qualname__ = name
        self._line = line

    def __call__(self, *args: Any, **named: Any) -> Any:
        message = {
            "f": self.__name__,
            "a": [_argument(value) for value in args],
            "k": {key: _argument(value) for key, value in named.items()},
        }
        answer = self._line.ask(message)
        value = _value(answer)
        for index, now in dict(answer.get("m") or {}).items():
            _overwrite(args[int(index)], decode(now))
        return value


def _argument(value: Any) -> Any:
    if isinstance(value, _Stub):
        return {"@": value.__name__}
    try:
        return encode(value)
    except TooLargeError as error:
        raise RemoteError(f"an argument is {error}") from None  # no test's own: it was made of a result
    except OpaqueError as error:
        raise _ObjectsNeededError("an argument", str(error)) from None


def _value(answer: Any) -> Any:
    """The decoded result; raises what the candidate raised."""
    if type(answer) is not dict:
        raise FrameError("no answer to a call")
    if "v" in answer:
        return decode(answer["v"])
    if "opaque" in answer:
        raise _ObjectsNeededError("a result", str(answer["opaque"])[:300])
    detail = str(answer.get("detail"))[:400]
    for name in answer.get("raised") or []:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
            raise _rebuilt(kind, detail)
    raise RemoteError(detail)


def _rebuilt(kind: type[Exception], detail: str) -> Exception:
    text = detail.partition(": ")[2]
    for make in (kind, functools.partial(kind.__new__, kind)):  # UnicodeDecodeError and others want more than a text
        with contextlib.suppress(TypeError):
            return make(text)
    return RemoteError(detail)


def _overwrite(target: Any, now: Any) -> None:
    """Repeats an in-place change on the tests' own object."""
    if type(target) is not type(now):
        return
    if isinstance(target, (list, bytearray)):
        target[:] = now
    elif isinstance(target, (dict, set)):
        target.clear()
        target.update(now)


def _compare(test: Test, line: _Line, accept: Callable[[Any, Any, Any], bool] | None) -> dict[str, Any]:
    """Calls the first entry with every input; compares the results, or collects them."""
    inputs = test.inputs or []
    collected: list[Any] = []
    done, batch = 0, _FIRST_BATCH
    while done < len(inputs):
        answers = line.ask({"f": test.entries[0], "many": inputs[done : done + batch]})
        if type(answers) is not list or not 0 < len(answers) <= batch:
            raise FrameError("no answers to a batch of calls")
        for index, answer in enumerate(answers, done):
            if test.expected is None:
                _value(answer)
                collected.append(answer["v"])
            elif not _accepted(test, index, _value(answer), accept):
                return {"status": "failed", "detail": f"wrong result for input {index} of {len(inputs)}"}
        done += len(answers)
        batch = min(2 * batch, _LAST_BATCH)
    return {"status": "passed", "results": collected} if test.expected is None else {"status": "passed"}


def _accepted(test: Test, index: int, found: Any, accept: Callable[[Any, Any, Any], bool] | None) -> bool:
    assert test.inputs is not None
    assert test.expected is not None
    if accept is not None:
        return bool(accept(decode(test.inputs[index]), test.expected[index], found))
    return same(found, test.expected[index])


def same(found: Any, expected: Any) -> bool:
    """Equality; floats, and flat sequences of floats, within 1e-6 + 1e-7 |expected| (EvalPlus' rule)."""
    if found == expected:
        return True
    if type(expected) is float:
        return _is_number(found) and _near(found, expected)
    if type(expected) not in (list, tuple) or type(found) is not type(expected) or len(found) != len(expected):
        return False
    if not all(type(item) is float for item in expected):
        return False
    return all(_is_number(got) and _near(got, want) for got, want in zip(found, expected, strict=True))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _near(found: float, expected: float) -> bool:
    if not (math.isfinite(expected) and math.isfinite(found)):
        return found == expected
    return abs(found - expected) <= _ABSOLUTE + _RELATIVE * abs(expected)
