"""Waiting for a condition, with a deadline."""

import asyncio
import time
from collections.abc import Callable


def until(condition: Callable[[], bool], deadline_s: float, describe: Callable[[], str]) -> None:
    """Return as soon as the condition holds; fail with the last state after the deadline."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"after {deadline_s:g} s: {describe()}"
        time.sleep(0.02)  # the one pause of all tests that wait for other processes


async def holds(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    """The same without stopping the loop; raises TimeoutError."""
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.002)  # and the one of those that wait for tasks


def give_way() -> None:
    """Between two turns of a loop whose room has a thread: who spins keeps the interpreter's lock,
    and where others want the cores as well the room gets it every few seconds."""
    time.sleep(0.0005)
