"""Synchronous execution of a coroutine that never suspends."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from rollcall.schemas.errors import FailureCode, WorkFailed

T = TypeVar("T")
TOLD = 100
"""The number of errors thrown into a coroutine that keeps suspending, before it is abandoned."""


def run_inline(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end without an event loop: one `send`, as quick as a few calls.

    Raises WorkFailed(`bad_config`) at the point where it suspends.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    return _told(coroutine)


def _told(coroutine: Coroutine[Any, Any, T]) -> T:
    msg = "it waits, and was taken for an environment that does not: are all of its methods, open, "
    msg += "step and close, `async def` or none of them?"
    error = WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
    for _ in range(TOLD):
        try:
            coroutine.throw(error)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
    raise error
