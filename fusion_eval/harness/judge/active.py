"""The judge that task code reaches, and what becomes of its silence.

Code of tasks asks judges in the middle of a hook, tries again, sleeps, and then writes 0. So while a hook runs under
`judged`, a judge that gives no answer ends the hook at once, past every `except Exception`; and a hook that goes on all
the same is told apart afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, ParamSpec, TypeVar

from fusion_eval.harness.judge.asked import AskedJudge
from fusion_eval.harness.judge.backends import nobody
from fusion_eval.harness.judge.base import Judge, JudgeError, Messages

P = ParamSpec("P")
T = TypeVar("T")

_NOBODY = AskedJudge("none", nobody)
_judges: list[Judge] = []
_watches: list[Watch] = []
_LOCK = threading.Lock()
_OWN: ContextVar[Watch | None] = ContextVar("fusion_eval_judge_watch", default=None)


class JudgeSilence(BaseException):
    """Ends a hook whose judge gave no answer; no Exception, so that the hook's own retries do not catch it."""

    def __init__(self, error: JudgeError) -> None:
        super().__init__(str(error))
        self.error = error


class Watch:
    """What went wrong while one hook ran."""

    def __init__(self) -> None:
        self.error: JudgeError | None = None


@contextmanager
def judging(judge: Judge | None) -> Iterator[None]:
    """Inside, code of tasks that asks a judge reaches this one; None leaves the one that is there."""
    if judge is None:
        yield
        return
    with _LOCK:
        _judges.append(judge)
    try:
        yield
    finally:
        with _LOCK:
            _judges.remove(judge)


def current_judge() -> Judge:
    """The judge that is reached now; one that never answers where nobody set one."""
    return _judges[-1] if _judges else _NOBODY


def judged(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The value of a hook.

    Raises:
        JudgeError: a judge that the hook asked gave no answer, whatever the hook made of that.
    """
    watch = Watch()
    token = _OWN.set(watch)
    with _LOCK:
        _watches.append(watch)
    try:
        value = function(*args, **kwargs)
    except JudgeSilence as silence:
        raise silence.error from silence
    except Exception as error:
        if watch.error is not None:
            raise watch.error from error
        raise
    finally:
        _OWN.reset(token)
        with _LOCK:
            _watches.remove(watch)
    if watch.error is not None:
        raise watch.error
    return value


def ask_for_task(messages: Messages, **options: Any) -> str:
    """The current judge's answer, for code of tasks.

    Raises:
        JudgeSilence: no answer, while a hook runs under `judged`.
        JudgeError: no answer elsewhere.
    """
    try:
        return current_judge().ask(messages, **options)
    except JudgeError as error:
        silence(error)


def silence(error: JudgeError) -> NoReturn:
    """Tell code of tasks that there is no answer.

    Raises:
        JudgeSilence: while a hook runs under `judged`.
        JudgeError: elsewhere.
    """
    own = _OWN.get()
    watches = [own] if own is not None else list(_watches)  # a thread that the hook started has no context of its own
    for watch in watches:
        watch.error = watch.error or error
    if watches:
        raise JudgeSilence(error) from error
    raise error
