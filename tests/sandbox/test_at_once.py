"""A coroutine that waits for nothing runs synchronously."""

import asyncio

import pytest

from rollcall.sandbox.environment import Observation
from rollcall.sandbox.run_inline import run_inline
from rollcall.sandbox.sessions import Sessions
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import EnvironmentStep

RESET = EnvironmentStep("r", 1, 0, 0, b"0", b"", 0, 0, "reset", "e")
STEP = EnvironmentStep("r", 1, 1, 0, b"1", b"", 0, 0, "step", "e", action="a")


async def double(number: int) -> int:
    await asyncio.sleep(0) if number < 0 else None
    return number * 2


def test_coroutine_result_and_error_are_passed_on() -> None:
    async def fails() -> None:
        raise KeyError(await double(2))

    assert run_inline(double(4)) == 8
    with pytest.raises(KeyError, match="4"):
        run_inline(fails())


def test_coroutine_that_waits_fails_with_bad_config() -> None:
    with pytest.raises(WorkFailed, match="`async def` or none of them") as failed:
        run_inline(double(-1))

    assert failed.value.code == "bad_config"


def test_coroutine_that_ignores_the_failure_is_abandoned() -> None:
    async def clings() -> None:
        while True:
            try:
                await asyncio.sleep(0)
            except WorkFailed:
                continue

    with pytest.raises(WorkFailed, match="it waits"):
        run_inline(clings())


def test_coroutine_that_handles_the_failure_returns_its_result() -> None:
    async def mends() -> int:
        try:
            return await double(-1)
        except WorkFailed:
            return 7

    assert run_inline(mends()) == 7


class Half:
    """An environment that sometimes waits, although its methods are not `async def`."""

    replayable = True
    closed = 0

    def open(self, seed: int) -> Observation:
        return Observation("open")

    def step(self, action: str) -> Observation:
        return self._step(action)  # type: ignore[return-value]

    async def _step(self, action: str) -> Observation:
        await asyncio.sleep(0)
        return Observation(action)

    def close(self) -> None:
        self.closed += 1


def test_environment_with_undeclared_wait_fails_its_step_and_is_closed() -> None:
    half = Half()
    sessions = Sessions(lambda name, config: half)
    run_inline(sessions.handle(RESET))

    with pytest.raises(WorkFailed, match="it waits") as failed:
        run_inline(sessions.handle(STEP))

    assert (failed.value.code, len(sessions), half.closed) == ("bad_config", 0, 1)
