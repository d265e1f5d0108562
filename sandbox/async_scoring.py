"""Asynchronous scorers: `async def` functions, each with its own deadline and retries.

A fault of a box or of another resource (a retriable WorkFailed) says nothing about the trajectory:
the scorer is tried `TRIES` times, then the reward is null with the reason. If a service is
unreachable (Unavailable) the scorer waits for it. All other errors are as with plain scorers.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from rollcall.sandbox.alarms import without_alarms
from rollcall.sandbox.host import ScoringHost
from rollcall.sandbox.scorers import ScorerResult, ScorerSpec, call_of, read_result, result_of
from rollcall.sandbox.token_scores import PerToken
from rollcall.schemas.errors import (
    FailureCode,
    ProgramFailed,
    RollcallError,
    Unavailable,
    WorkFailed,
)
from rollcall.schemas.interrupts import is_from_outside
from rollcall.schemas.messages import Reward, Trajectory
from rollcall.schemas.untrusted_text import REASON_CHARS, clean_text, describe_exception

TRIES = 3
AWAY_S = 1.0
"""Seconds between two attempts while a service is unreachable."""

log = structlog.get_logger()


async def score_async(
    spec: ScorerSpec,
    trajectory: Trajectory,
    host: ScoringHost,
    *,
    timeout_s: float,
    grace_s: float,
    away_s: float,
) -> ScorerResult:
    """Score a trajectory with an asynchronous scorer; every try has `timeout_s`.

    It is cancelled at its deadline, and abandoned if it has not ended `grace_s` later.
    """
    tries = 0
    waits = False
    while True:
        try:
            task = _called(spec, trajectory, host)
            found = await _within(task, f"{spec.name} {trajectory.rollout_id}", timeout_s, grace_s)
        except Unavailable as error:
            if not waits:
                log.warning("scoring_waits", scorer=spec.name, error=str(error))
            waits = True
            await asyncio.sleep(away_s)
        except RollcallError as error:
            tries += 1
            again = isinstance(error, WorkFailed) and error.retriable
            if not again or tries == TRIES:
                text = f"{error} ({tries} times)" if again else str(error)
                return ScorerResult(
                    Reward(spec.name, None, clean_text(text, REASON_CHARS), spec.weight)
                )
            log.warning("scoring_retried", scorer=spec.name, tries=tries, error=str(error))
        else:
            return result_of(spec, trajectory, found)


async def _called(spec: ScorerSpec, trajectory: Trajectory, host: ScoringHost) -> PerToken:
    """Call a scorer, and convert its exceptions into our errors, except for cancellation."""
    try:
        with without_alarms(spec.name):
            return read_result(await call_of(spec.name, trajectory, host))
    except (RollcallError, asyncio.CancelledError):
        raise
    except BaseException as error:
        if is_from_outside(error):
            raise
        raise WorkFailed(
            FailureCode.RAISED, f"it raised: {describe_exception(error)}", retriable=False
        ) from error


async def _within(
    work: Coroutine[Any, Any, PerToken], name: str, timeout_s: float, grace_s: float
) -> PerToken:
    """Await a coroutine in a task of its own, which can be abandoned if it ignores cancellation."""
    task = asyncio.create_task(work, name=name)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if not task.done():
            await _cancelled(task, grace_s)
    if not done:
        msg = f"the scorer did not come back within {timeout_s:g} s"
        raise ProgramFailed(FailureCode.STUCK, msg)
    if task.cancelled():
        raise WorkFailed(FailureCode.RAISED, "it raised: CancelledError", retriable=False)
    return task.result()


async def _cancelled(task: "asyncio.Task[PerToken]", grace_s: float) -> None:
    task.cancel()
    task.add_done_callback(_heard)
    await asyncio.wait({task}, timeout=grace_s)
    if not task.done():
        log.error("scorer_not_ended", scorer=task.get_name(), grace_s=grace_s)
        task.cancel()


def _heard(task: "asyncio.Task[PerToken]") -> None:
    """Retrieve the exception of an abandoned task, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
