"""What is written as a coroutine and waits for nothing runs on the spot."""

import asyncio

import pytest

from sandbox.at_once import at_once
from sandbox.environment import Observation
from sandbox.sessions import Sessions
from schemas.errors import WorkFailed
from schemas.messages import EnvironmentStep

RESET = EnvironmentStep("r", 1, 0, 0, b"0", b"", 0, 0, "reset", "e")
STEP = EnvironmentStep("r", 1, 1, 0, b"1", b"", 0, 0, "step", "e", action="a")


async def double(number: int) -> int:
    await asyncio.sleep(0) if number < 0 else None
    return number * 2


def test_its_result_and_its_error_come_out() -> None:
    async def fails() -> None:
        raise KeyError(await double(2))

    assert at_once(double(4)) == 8
    with pytest.raises(KeyError, match="4"):
        at_once(fails())


def test_whoever_waits_is_told_that_he_cannot() -> None:
    with pytest.raises(WorkFailed, match="`async def` or none of them") as failed:
        at_once(double(-1))

    assert failed.value.code == "bad_config"


def test_whoever_waits_whatever_he_is_told_is_let_go() -> None:
    async def clings() -> None:
        while True:
            try:
                await asyncio.sleep(0)
            except WorkFailed:
                continue

    with pytest.raises(WorkFailed, match="it waits"):
        at_once(clings())


def test_whoever_lets_go_in_his_own_way_is_heard() -> None:
    async def mends() -> int:
        try:
            return await double(-1)
        except WorkFailed:
            return 7

    assert at_once(mends()) == 7


class Half:
    """Waits now and then, though its methods do not say so."""

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


def test_an_environment_that_waits_unasked_fails_its_step_and_is_closed() -> None:
    half = Half()
    sessions = Sessions(lambda name, config: half)
    at_once(sessions.handle(RESET))

    with pytest.raises(WorkFailed, match="it waits") as failed:
        at_once(sessions.handle(STEP))

    assert (failed.value.code, len(sessions), half.closed) == ("bad_config", 0, 1)
