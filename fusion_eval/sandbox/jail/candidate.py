"""The candidate's process: it executes the generated program and answers calls; it never holds a test."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import types
from typing import Any, NoReturn

from fusion_eval.sandbox.jail.codec import OpaqueError, decode, encode
from fusion_eval.sandbox.jail.wire import Reader, send, write_all

_ENOUGH = 4 << 20  # bytes of answers after which the rest of a batch waits for the next message
_MUTABLE = (list, dict, set, bytearray)
_TEXT = 300
_REFUSED = " (the sandbox lets Python programs start no other program and use no network)"


def describe(error: BaseException) -> str:
    """Type and text of an exception, whatever its class does when asked."""
    try:
        note = _REFUSED if isinstance(error, PermissionError) and error.errno == errno.EPERM else ""
        return f"{type(error).__name__}: {str(error)[:_TEXT]}{note}"
    except BaseException:  # noqa: BLE001 - the class is the candidate's own
        return "an exception that cannot be shown"


def failure(error: BaseException) -> dict[str, Any]:
    """The outcome of a program that raised."""
    status = "out_of_memory" if isinstance(error, MemoryError) else "failed"
    return {"status": status, "detail": describe(error)}


def leave(fd: int, outcome: dict[str, Any]) -> NoReturn:
    """Sends the outcome and ends the process without running anything the program left behind."""
    try:
        send(fd, outcome)
    finally:
        os._exit(0)


def print_anything() -> None:
    """Lets characters that have no bytes be printed where nobody reads them, as into the peers' StringIO."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_output(job: dict[str, Any]) -> NoReturn:
    """Runs a program whose output is its answer; ends as the interpreter would."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    code = 0
    try:
        exec(compile(job["code"], "<program>", "exec"), main.__dict__)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
    except BaseException as error:  # noqa: BLE001
        code = 77 if isinstance(error, MemoryError) else 1
        write_all(2, describe(error).encode(errors="replace"))
    try:
        sys.stdout.flush()
    finally:
        os._exit(code & 0xFF)


def serve(job: dict[str, Any], fd: int, cap: int) -> NoReturn:
    """Executes the program, then answers the tests' calls until they hang up."""
    reader = Reader(fd, cap)
    wanted = reader.read()["want"]
    scope: dict[str, Any] = {}
    try:
        print_anything()
        exec(compile(job["code"], "<program>", "exec"), scope)
    except BaseException as error:  # noqa: BLE001
        leave(fd, {"dead": failure(error)})
    send(fd, {"have": {name: _offer(scope, name) for name in wanted}})
    while True:
        try:
            call = reader.read()
        except EOFError:
            os._exit(0)
        if "many" in call:
            write_all(fd, batch(find(scope, call["f"]), call["many"]))
        else:
            send(fd, _single(scope, call))


def _offer(scope: dict[str, Any], name: str) -> Any:
    """What the program has under a name: a call, a standard module, plain data or nothing."""
    try:
        value = find(scope, name)
    except BaseException:  # noqa: BLE001
        return None
    if isinstance(value, types.ModuleType):
        return {"module": str(getattr(value, "__name__", ""))[:100]}
    if callable(value):
        return {"call": True}
    try:
        return {"value": encode(value)}
    except (OpaqueError, RecursionError, MemoryError):
        return {"opaque": True}


def find(scope: dict[str, Any], path: str) -> Any:
    """A name, or Class.method with a fresh instance made without arguments."""
    head, *rest = path.split(".")
    value = scope[head]
    for part in rest:
        if isinstance(value, type):
            value = value()
        value = getattr(value, part)
    return value


def _single(scope: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    def argument(raw: Any) -> Any:
        return find(scope, raw["@"]) if type(raw) is dict and "@" in raw else decode(raw)

    try:
        args = [argument(raw) for raw in call["a"]]
        named = {key: argument(raw) for key, raw in call["k"].items()}
        answer: dict[str, Any] = {"v": encode(find(scope, call["f"])(*args, **named))}
        changed = _changes(args, call["a"])
        if changed:
            answer["m"] = changed
    except BaseException as error:  # noqa: BLE001
        return _refusal(error)
    return answer


def _changes(args: list[Any], raw: list[Any]) -> dict[str, Any]:
    """The arguments that the call altered in place, by position."""
    changed = {}
    for index, value in enumerate(args):
        if type(value) in _MUTABLE:
            now = encode(value)
            if now != raw[index]:
                changed[str(index)] = now
    return changed


def batch(function: Any, many: list[Any]) -> bytes:
    """One frame with the answers to as many calls as fit."""
    parts: list[str] = []
    size = 0
    for raw in many:
        try:
            text = json.dumps({"v": encode(function(*decode(raw)))}, separators=(",", ":"))
        except BaseException as error:  # noqa: BLE001
            text = json.dumps(_refusal(error))
        parts.append(text)
        size += len(text)
        if size > _ENOUGH:
            break
    body = ("[" + ",".join(parts) + "]").encode()
    return len(body).to_bytes(4, "little") + body


def _refusal(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: the built-in types it is an instance of, nearest first, and its text."""
    if isinstance(error, OpaqueError):
        return {"opaque": str(error)}
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins" and kind is not object]
    return {"raised": kinds, "detail": describe(error)}
