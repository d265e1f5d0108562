"""The programs that this process can run, to fold recorded rollouts again."""

import threading
from collections.abc import Callable
from functools import cache
from random import Random

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.programs import program_digest, program_of
from rollcall.consumers.loop.time_guard import TimeGuard
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutStarted


def watched_world(timeout_s: float) -> FoldContext:
    """Return a world whose guard, on the main thread, ends programs that do not return in time."""
    guard = TimeGuard("the program", timeout_s)
    if threading.current_thread() is threading.main_thread():
        guard.watch()
    return FoldContext(program_of, Random, guard)


def runs_as_recorded(world: FoldContext) -> Callable[[RolloutStarted], bool]:
    """Return a function that is True if the program of a start is available here, and unchanged."""

    @cache
    def digest_of(agent: str) -> str | None:
        try:
            return program_digest(world.program_of(agent))
        except Refused:
            return None

    def runnable(body: RolloutStarted) -> bool:
        digest = digest_of(body.request.agent)
        return digest is not None and (
            not digest or not body.program_digest or digest == body.program_digest
        )

    return runnable
