"""Trajectories that wait for a score: a limited number on the event loop, the others in a queue.

The loop's thread hands out and collects; methods with an underscore run on the event-loop thread.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.async_scoring import AWAY_S, score_async
from rollcall.sandbox.host import ScoringHost
from rollcall.sandbox.scorers import ScorerResult, ScorerSpec, async_scorer_indices, with_rewards
from rollcall.schemas.messages import ScoredTrajectory

GRACE_S = 10.0
LEAVE_S = 15.0
"""Time limit for ending all scoring when a worker leaves."""
IN_LINE = 2
"""The most trajectories in hand, as a multiple of those that are scored at once."""


class AsyncScorers:
    """Awaits the scores that `score` left open, the scorers of one trajectory one after another."""

    def __init__(
        self,
        specs: Sequence[ScorerSpec],
        loop_thread: EventLoopThread,
        hosts: Callable[[], ScoringHost],
        *,
        at_once: int,
        timeout_s: float,
        grace_s: float = GRACE_S,
        away_s: float = AWAY_S,
    ) -> None:
        self.specs = specs
        self.loop_thread = loop_thread
        self.hosts = hosts
        self.at_once = at_once
        self.timeout_s = timeout_s
        self.grace_s = grace_s
        self.away_s = away_s
        self.in_progress = 0
        """The number of trajectories that were handed out and not collected."""
        self._begun = False
        self._open: tuple[int, ...] | None = None
        self._ended: SimpleQueue[tuple[ScoredTrajectory | None, Record]] = SimpleQueue()
        """The result of each; None if it was cancelled."""
        self._tasks: dict[asyncio.Task[ScoredTrajectory], Record] = {}
        self._places: asyncio.Semaphore | None = None

    def wanted(self, scored: ScoredTrajectory) -> bool:
        """Return True if some of its rewards are open."""
        if self._open is None:
            self._open = async_scorer_indices(self.specs)
        return bool(self._open and scored.rewards)

    def dispatch(self, scored: ScoredTrajectory, record: Record) -> None:
        """Start the waiting scorers for the open rewards."""
        self.in_progress += 1
        self._begun = True
        self.loop_thread.call(partial(self._begin, scored, record))

    def collect(self, wait_s: float = 0.0) -> list[tuple[ScoredTrajectory, Record]]:
        """Return the finished results; wait up to `wait_s` for the first. Raises EventLoopBlocked.

        Without a thread of its own the event loop runs here.
        """
        self.loop_thread.turn(busy=self.in_progress > 0)
        self.loop_thread.watch()
        collected = []
        blocks = self.loop_thread.threaded and wait_s > 0
        try:
            scored, record = self._ended.get(blocks, wait_s)
            while True:
                self.in_progress -= 1
                if scored is not None:
                    collected.append((scored, record))
                scored, record = self._ended.get_nowait()
        except Empty:
            return collected

    def full(self) -> bool:
        """Return True if the queue is full."""
        return self.in_progress >= IN_LINE * self.at_once

    def drop(self, partition: int) -> None:
        """Cancel the scoring of a partition that was reassigned to another worker."""

        def cancel() -> None:
            for task, record in self._tasks.items():
                if record.partition == partition:
                    task.cancel()

        if self._begun:
            self.loop_thread.call(cancel)

    def close(self, timeout_s: float = LEAVE_S) -> None:
        """Cancel everything, give all boxes back, and end the event loop."""
        self.loop_thread.close(timeout_s)

    def _begin(self, scored: ScoredTrajectory, record: Record) -> None:
        if self._places is None:
            self._places = asyncio.Semaphore(self.at_once)
        name = f"the scoring of rollout {scored.trajectory.rollout_id!r}"
        task = asyncio.create_task(self._score(self._places, scored), name=name)
        self._tasks[task] = record
        task.add_done_callback(self._end)

    async def _score(self, places: asyncio.Semaphore, scored: ScoredTrajectory) -> ScoredTrajectory:
        async with places:
            host = self.hosts()
            results: dict[int, ScorerResult] = {}
            for number in self._open or ():
                results[number] = await score_async(
                    self.specs[number],
                    scored.trajectory,
                    host,
                    timeout_s=self.timeout_s,
                    grace_s=self.grace_s,
                    away_s=self.away_s,
                )
        return with_rewards(scored, results)

    def _end(self, task: "asyncio.Task[ScoredTrajectory]") -> None:
        record = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.loop_thread.fail(error)
        let_go = task.cancelled() or error is not None
        self._ended.put((None if let_go else task.result(), record))
