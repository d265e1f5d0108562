"""Detection of alarms that asynchronous scorers set: they are refused, and the scorer fails.

An asynchronous scorer shares its event loop with others, and mostly runs off the main thread.
Python delivers alarms on the main thread alone: on others `signal.signal` raises, and libraries of
answer checkers catch that and report a wrong answer. So an alarm that is set while such a scorer
runs is recorded, and the scorer's result is replaced by an error.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

import structlog

from rollcall.schemas.errors import FailureCode, WorkFailed

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

SETTERS = ("alarm", "setitimer")
_noted: ContextVar[list[str] | None] = ContextVar("alarms", default=None)
_warned: set[str] = set()
_real: dict[str, Callable[..., Any]] = {}


class CarryingExecutor(ThreadPoolExecutor):
    """A thread pool that runs work in its caller's context, so that its alarms are recorded."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        return super().submit(partial(copy_context().run, fn, *args, **kwargs))


@contextmanager
def without_alarms(name: str) -> Iterator[None]:
    """Refuse alarms of an asynchronous scorer. Raises WorkFailed(`uses_alarm`) if it tried one."""
    _watch()
    noted: list[str] = []
    token = _noted.set(noted)
    try:
        yield
    except Exception:
        _say(name, noted)
        raise
    finally:
        _noted.reset(token)
    _say(name, noted)


def _say(name: str, noted: list[str]) -> None:
    if noted:
        msg = (
            f"{name} sets an alarm ({noted[0]}), which works in no scorer that waits: make it a "
            "plain `def`, which a time limit ends, or use asyncio.timeout"
        )
        raise WorkFailed(FailureCode.USES_ALARM, msg, retriable=False)


def _watch() -> None:
    """Wrap the functions that set alarms, once in a process."""
    if _real:
        return
    for name in SETTERS:
        _real[name] = getattr(signal, name)
        setattr(signal, name, _refusing(f"signal.{name}", _real[name]))
    _real["signal"] = signal.signal
    signal.signal = _handling  # type: ignore[assignment]


def _refusing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        _refuse(name)
        return real(*args, **options)

    return call


def _handling(number: Any, handler: Any) -> Any:
    if number == signal.SIGALRM:
        _refuse("signal.signal of SIGALRM")
    return _real["signal"](number, handler)


def _refuse(name: str) -> None:
    """Record an alarm and raise ValueError, as Python does off the main thread."""
    noted = _noted.get()
    if noted is None:
        if threading.current_thread() is not threading.main_thread():
            _warn(name)
        return
    noted.append(name)
    msg = "signal only works in main thread of the main interpreter"
    raise ValueError(msg)


def _warn(name: str) -> None:
    """Log an alarm on a thread outside of a scorer's context, once per line of code."""
    caller = sys._getframe(3)
    place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    if place not in _warned:
        _warned.add(place)
        remedy = "alarms work on the main thread alone: use a timeout of another kind"
        log.warning("alarm_off_main_thread", call=name, place=place, remedy=remedy)
