"""The role of the environments group: steps in, observations out."""

import threading
from collections.abc import Iterable
from typing import Any

from consumers.answers import Answers, expired
from consumers.clock import Clock, steady_wall
from consumers.environments.session_thread import Body, Work
from consumers.environments.watched_threads import CLOSE_S, SLOW_S, WatchedThreads
from consumers.log.protocols import Log, Record
from consumers.loop.dead_letters import DeadLetters
from consumers.loop.partition_progress import PartitionProgress
from consumers.loop.role import WorkRole
from producers.publisher import Publisher
from sandbox.at_once import at_once
from sandbox.environment import make_plain
from sandbox.sessions import Make
from schemas.answer_cache import AnswerCache
from schemas.codec import Codec
from schemas.errors import KilledWorkers, NoSuchPartition
from schemas.messages import CallFailed, EnvironmentStep, EnvironmentStepped
from schemas.topics import Topics

LEASE_S = 3600.0
"""As long as a rollout may take unless it says otherwise: after that nobody can ask any more."""


class Environments(WorkRole):
    """Steps environments; `threads=0` does it on the loop's own thread, unwatched."""

    poll_s = 0.02

    def __init__(
        self,
        name: str,
        log_: Log,
        codec: Codec,
        topics: Topics,
        publisher: Publisher,
        letters: DeadLetters,
        *,
        threads: int = 2,
        make: Make = make_plain,
        lease_s: float = LEASE_S,
        slow_s: float = SLOW_S,
        close_s: float = CLOSE_S,
        wall: Clock | None = None,
    ) -> None:
        self.name = name
        self.topics = [topics.steps]
        self.letters = letters
        self.answers = Answers(name, log_, codec, topics, publisher, wall or steady_wall())
        self.kept: AnswerCache[EnvironmentStepped] = AnswerCache()
        self._lock = threading.Lock()
        self.threads = WatchedThreads(
            self._give,
            self._late,
            publisher.push,
            count=threads,
            make=make,
            lease_s=lease_s,
            slow_s=slow_s,
            close_s=close_s,
        )
        self.counts = self.threads.counts

    def _late(self, step: EnvironmentStep) -> CallFailed | None:
        return expired(step, self.answers.now_ms()) if step.kind != "close" else None

    def expects(self, topic: str) -> type:
        del topic
        return EnvironmentStep

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        self.answers.now_ms(batch := list(batch))  # for the clock to know what was read
        works = []
        for record, step in batch:
            try:
                self.answers.check(step)
            except NoSuchPartition as error:
                self.letters.bury(record, error)
                continue
            kept = self.kept.get(step.command_id) if step.kind != "close" else None
            body = kept or self._late(step)
            if body is not None:
                self.counts["answered_again" if kept else "expired"] += 1
                self.answers.give(step, body, record)
            else:
                works.append(Work(record, step, self._lock))
        self.threads.hand_out(works)

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> bool:
        if message.kind != "close":
            self.answers.give(message, CallFailed("killed_worker", str(error), False), record)
            return True
        return super().fatal(record, message, error)

    def _give(self, step: EnvironmentStep, body: Body, record: Record) -> None:
        """Answer a step; runs on its session's thread. A close is a courtesy without an answer."""
        if step.kind == "close":
            record.closed = True
            return
        if isinstance(body, EnvironmentStepped):
            self.kept.keep(step.command_id, body)
        self.answers.give(step, body, record)
        self.counts["answered"] += 1

    def dropped(self, progress: PartitionProgress) -> None:
        self.threads.everywhere(lambda sessions: at_once(sessions.drop(progress.number)))

    def tick(self) -> None:
        self.answers.tick()
        self.threads.watch()

    def in_flight(self) -> int:
        return self.threads.unfinished()
