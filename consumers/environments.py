"""The environments group: sessions live in threads, so one that hangs fails its step only.

Every rollout belongs to one thread, which answers its steps in order and writes the answers itself.
The loop's thread watches: a step past its time is answered as failed, its thread is abandoned with
all its sessions, and what waited behind it moves to a new one, which rebuilds from history.
"""

import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import structlog

from consumers.answers import Answers, Kept, expired
from consumers.clock import Clock, steady_wall
from consumers.log import Publisher, Record
from consumers.loop import Progress, WorkRole
from sandbox.sessions import Sessions
from schemas.codec import Codec
from schemas.errors import RollcallError, WorkFailed
from schemas.messages import CallFailed, EnvironmentStep, EnvironmentStepped
from schemas.topics import Topics

LEASE_S = 3600.0
"""As long as a rollout may take unless it says otherwise: after that nobody can ask any more."""
REAP_EVERY_S = 30.0

log = structlog.get_logger()
Answered = EnvironmentStepped | CallFailed
Give = Callable[[EnvironmentStep, Answered, Record], None]


class Work:
    """One step in hand; whoever claims it first, its thread or the watch, answers it."""

    __slots__ = ("_claimed", "_lock", "record", "step")

    def __init__(self, record: Record, step: EnvironmentStep, lock: threading.Lock) -> None:
        self.record = record
        self.step = step
        self._lock = lock
        self._claimed = False

    def claim(self) -> bool:
        with self._lock:
            claimed, self._claimed = self._claimed, True
        return not claimed


class Shard:
    """The sessions of some rollouts, and the thread they live in; without one, the caller's."""

    def __init__(
        self,
        give: Give,
        push: Callable[[], None],
        make: Callable[[], Sessions],
        *,
        threaded: bool,
    ) -> None:
        self.sessions = make()
        self.give = give
        self.push = push
        self.given = 0
        self.done = 0
        self.began: float | None = None
        self.current: Work | None = None
        self.abandoned = False
        self.inbox: deque[Work | Callable[[], object]] = deque()
        self._rung: SimpleQueue[None] = SimpleQueue()
        """Once for all that was put together: to wake a thread costs more than a quick step."""
        self._threaded = threaded
        if threaded:
            threading.Thread(target=self._live, name="environments", daemon=True).start()

    def put(self, works: list[Work]) -> None:
        self.given += len(works)
        self.ask(*works)

    def ask(self, *requests: Work | Callable[[], object]) -> None:
        """Have something done in turn, where the sessions live."""
        self.inbox.extend(requests)
        if self._threaded:
            self._rung.put(None)
        else:
            self._serve_all()

    def _live(self) -> None:
        while not self.abandoned:
            self._rung.get()
            self._serve_all()
            self.push()

    def _serve_all(self) -> None:
        while not self.abandoned:
            try:
                request = self.inbox.popleft()
            except IndexError:
                return
            self._serve(request)

    def _serve(self, request: Work | Callable[[], object]) -> None:
        if not isinstance(request, Work):
            request()
            return
        self.current, self.began = request, time.monotonic()
        body = self._do(request)
        self.began = None
        if request.claim():
            self.give(request.step, body, request.record)
        self.done += 1

    def _do(self, work: Work) -> Answered:
        step = work.step
        try:
            answer = self.sessions.handle(
                step, partition=work.record.partition, now=time.monotonic()
            )
        except WorkFailed as error:
            return CallFailed(error.code, str(error), error.retriable)
        except RollcallError as error:
            return CallFailed("raised", str(error), False)
        if answer.terminated or answer.truncated:
            self.sessions.handle(replace(step, kind="close"))
        return answer

    def overdue(self, now: float) -> Work | None:
        """The step that has taken longer than it may, if there is one."""
        began, work = self.began, self.current
        if began is None or work is None or now - began <= work.step.timeout_s:
            return None
        return work


class Environments(WorkRole):
    """Steps environments; `threads=0` does it on the loop's own thread, unwatched."""

    poll_s = 0.02

    def __init__(
        self,
        name: str,
        codec: Codec,
        topics: Topics,
        publisher: Publisher,
        *,
        threads: int = 2,
        make: Callable[[], Sessions] = Sessions,
        lease_s: float = LEASE_S,
        wall: Clock | None = None,
    ) -> None:
        self.name = name
        self.topics = [topics.steps]
        self.answers = Answers(name, codec, topics, publisher)
        self.kept: Kept[EnvironmentStepped] = Kept()
        self.make = make
        self.lease_s = lease_s
        self.wall = wall or steady_wall()
        self.counts: Counter[str] = Counter()
        self._threaded = threads > 0
        self._lock = threading.Lock()
        self.shards = [self._shard() for _ in range(max(1, threads))]
        self._reap_due = 0.0

    def _shard(self) -> Shard:
        return Shard(self._give, self.answers.publisher.push, self.make, threaded=self._threaded)

    def expects(self, topic: str) -> type:
        del topic
        return EnvironmentStep

    def take(self, batch: Sequence[tuple[Record, Any]]) -> None:
        now_ms = int(self.wall() * 1000)
        shares: list[list[Work]] = [[] for _ in self.shards]
        for record, step in batch:
            kept = self.kept.get(step.command_id) if step.kind != "close" else None
            body = kept or (expired(step, now_ms) if step.kind != "close" else None)
            if body is not None:
                self.counts["answered_again" if kept else "expired"] += 1
                self.answers.give(step, body, record)
            else:
                number = zlib.crc32(step.rollout_id.encode()) % len(self.shards)
                shares[number].append(Work(record, step, self._lock))
        for shard, works in zip(self.shards, shares, strict=True):
            if works:
                shard.put(works)

    def _give(self, step: EnvironmentStep, body: Answered, record: Record) -> None:
        """Answer a step; runs on its shard's thread. A close is a courtesy without an answer."""
        if step.kind == "close":
            record.closed = True
            return
        if isinstance(body, EnvironmentStepped):
            self.kept.keep(step.command_id, body)
        self.answers.give(step, body, record)
        self.counts["answered"] += 1

    def dropped(self, progress: Progress) -> None:
        for shard in self.shards:
            shard.ask(lambda shard=shard: shard.sessions.drop(progress.number))  # type: ignore[misc]

    def tick(self) -> None:
        now = time.monotonic()
        for number, shard in enumerate(self.shards):
            work = shard.overdue(now)
            if work is not None and work.claim():
                self._replace(number, work)
        if now >= self._reap_due:
            self._reap_due = now + min(REAP_EVERY_S, self.lease_s)
            for shard in self.shards:
                shard.ask(lambda shard=shard: self._reap(shard, now))  # type: ignore[misc]

    def _reap(self, shard: Shard, now: float) -> None:
        """End the sessions whose rollouts have not been heard of for a lease; runs on its thread.

        A rollout that ended while its agents worker died sends no close.
        """
        lapsed = shard.sessions.reap(now, self.lease_s)
        if lapsed:
            self.counts["lapsed"] += lapsed
            log.info("sessions_lapsed", count=lapsed, lease_s=self.lease_s)

    def _replace(self, number: int, work: Work) -> None:
        """Abandon a thread that hangs; what waited behind its step goes to a new one."""
        old, new = self.shards[number], self._shard()
        old.abandoned = True
        self.shards[number] = new
        waiting = []
        with suppress(IndexError):  # one by one: its thread may be taking the next just now
            while True:
                waiting.append(old.inbox.popleft())
        new.given += sum(isinstance(request, Work) for request in waiting)
        new.ask(*waiting)
        msg = f"no answer within {work.step.timeout_s:g} s; its environment was abandoned"
        self._give(work.step, CallFailed("deadline", msg, True), work.record)
        self.counts["abandoned"] += 1
        log.warning(
            "environment_hung", rollout_id=work.step.rollout_id, position=work.step.position
        )

    def in_flight(self) -> int:
        return sum(shard.given - shard.done for shard in self.shards)
