"""An async scorer that sets an alarm gives no score, and the reason names it."""

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.async_scoring import score_async
from rollcall.sandbox.scorers import ScorerSpec, async_scorer_indices
from rollcall.schemas.messages import Trajectory
from tests.support.scored_trajectories import ended

HERE = __name__


def checks(answer: str = "right") -> float:
    """A typical answer checker: any error in it counts as a wrong answer."""
    try:
        was = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.alarm(5)
        try:
            return float(answer == "right")
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, was)
    except Exception:
        return 0.0


async def at_once(trajectory: Trajectory) -> float:
    return checks()


async def in_a_thread(trajectory: Trajectory) -> float:
    return await asyncio.to_thread(checks)


async def in_an_executor(trajectory: Trajectory) -> float:
    return await asyncio.get_running_loop().run_in_executor(None, checks)


async def by_a_timer(trajectory: Trajectory) -> float:
    with suppress(ValueError):
        signal.setitimer(signal.ITIMER_REAL, 5.0)
    return 0.0


async def raises_then(trajectory: Trajectory) -> float:
    checks()
    raise ZeroDivisionError


async def needs_none(trajectory: Trajectory) -> float:
    await asyncio.sleep(0)
    signal.signal(signal.SIGWINCH, signal.SIG_DFL) if on_main() else None
    return 1.0


def on_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def score(name: str) -> Any:
    spec = ScorerSpec(f"{HERE}:{name}", 1.0)
    trajectory = ended()
    loop_thread = EventLoopThread(threaded=False)
    told: list[Any] = []

    async def judge() -> None:
        host: Any = None
        told.append(await score_async(spec, trajectory, host, timeout_s=5, grace_s=1, away_s=1))

    loop_thread.call(lambda: None)
    loop_thread.run(judge, 10.0)
    loop_thread.close(5.0)
    return told[0]


def off_main(call: Callable[[], Any]) -> Any:
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(call()))
    thread.start()
    thread.join()
    return told[0]


@pytest.mark.parametrize(
    "name", ["at_once", "in_a_thread", "in_an_executor", "by_a_timer", "raises_then"]
)
@pytest.mark.parametrize("where", [off_main, lambda call: call()])
def test_async_scorer_that_sets_an_alarm_is_refused_by_name(
    name: str, where: Callable[[Callable[[], Any]], Any]
) -> None:
    reward = where(lambda: score(name)).reward

    assert reward.value is None
    assert reward.reason.startswith(f"{HERE}:{name} sets an alarm (signal.")
    assert "make it a plain `def`" in reward.reason
    assert not 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 5, "none was set"


@pytest.mark.parametrize("where", [off_main, lambda call: call()])
def test_async_scorer_without_alarms_gives_its_score(
    where: Callable[[Callable[[], Any]], Any],
) -> None:
    assert where(lambda: score("needs_none")).reward.value == 1.0


def test_plain_scorer_may_set_alarms_on_the_main_thread() -> None:
    score("needs_none")  # from here on alarms are watched
    of_the_tests = signal.getitimer(signal.ITIMER_REAL)

    assert checks() == 1.0
    signal.setitimer(signal.ITIMER_REAL, *of_the_tests)
    assert async_scorer_indices([ScorerSpec(f"{HERE}:checks", 1.0)]) == ()


def test_alarm_off_main_thread_is_logged_once_with_its_location(
    capsys: pytest.CaptureFixture[str],
) -> None:
    score("needs_none")

    for _ in range(2):
        assert off_main(checks) == 0.0

    said = capsys.readouterr().out
    assert said.count("alarm_off_main_thread") == 1
    assert "test_alarms.py" in said
