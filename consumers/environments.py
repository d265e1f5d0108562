"""The environments group: sessions live in threads, so that one which is slow or hangs is alone.

Every rollout belongs to one thread, which answers its steps in order and writes the answers itself.
The loop's thread watches. Behind a step that takes long nobody waits: its thread is left alone
with its rollout, and all other sessions and steps of that thread move to a new one. A step past its
time is answered as failed and its thread abandoned with that session; so is one whose thread died.
"""

import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import structlog

from consumers.answers import Answers, expired
from consumers.clock import Clock, steady_wall
from consumers.log.protocols import Log, Record
from consumers.loop.loop import Progress, WorkRole
from producers.publisher import Publisher
from sandbox.environment import make_environment
from sandbox.sessions import Make, Sessions
from schemas.answer_cache import Kept
from schemas.codec import Codec
from schemas.errors import KilledWorkers, NoSuchPartition, RollcallError, WorkFailed
from schemas.messages import CallFailed, EnvironmentStep, EnvironmentStepped
from schemas.topics import Topics

LEASE_S = 3600.0
"""As long as a rollout may take unless it says otherwise: after that nobody can ask any more."""
REAP_EVERY_S = 30.0
SLOW_S = 1.0
"""After this nobody waits behind a step any more."""
MOST_APART = 128
"""Threads with a single rollout in them; where there are more slow ones, others wait for them."""
CLOSE_S = 60.0
"""What closing the sessions of a partition, or those that lapsed, may take."""

log = structlog.get_logger()
Answered = EnvironmentStepped | CallFailed
Give = Callable[[EnvironmentStep, Answered, Record], None]
Late = Callable[[EnvironmentStep], CallFailed | None]
"""The answer to a step that may not begin any more."""


class Work:
    """One step in hand; whoever claims it first, its thread or the watch, answers it."""

    __slots__ = ("_claimed", "_lock", "record", "rollout_id", "step", "timeout_s")

    def __init__(self, record: Record, step: EnvironmentStep, lock: threading.Lock) -> None:
        self.record = record
        self.step = step
        self.rollout_id = step.rollout_id
        self.timeout_s = step.timeout_s
        self._lock = lock
        self._claimed = False

    def claim(self) -> bool:
        with self._lock:
            claimed, self._claimed = self._claimed, True
        return not claimed


class Chore:
    """Something to be done with the sessions of a thread, for nobody in particular."""

    __slots__ = ("run", "timeout_s")
    rollout_id = ""

    def __init__(self, run: Callable[[Sessions], object], timeout_s: float) -> None:
        self.run = run
        self.timeout_s = timeout_s


class Shard:
    """The sessions of some rollouts, and the thread they live in; without one, the caller's."""

    def __init__(
        self,
        give: Give,
        late: Late,
        push: Callable[[], None],
        sessions: Sessions,
        *,
        threaded: bool,
    ) -> None:
        self.sessions = sessions
        self.give = give
        self.late = late
        self.push = push
        self.given = 0
        self.done = 0
        self.began = 0.0
        self.current: Work | Chore | None = None
        self.abandoned = False
        self.died_of: BaseException | None = None
        self.inbox: deque[Work | Chore] = deque()
        self.turn = threading.Lock()
        """Held to begin something here, and to take anything away from here."""
        self._rung: SimpleQueue[None] = SimpleQueue()
        """Once for all that was put together: to wake a thread costs more than a quick step."""
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._live, name="environments", daemon=True)
            self._thread.start()

    def ask(self, requests: Sequence[Work | Chore]) -> None:
        """Have something done in turn, where the sessions live."""
        self.given += len(requests)
        self.inbox.extend(requests)
        if self._thread:
            self._rung.put(None)
        else:
            self._serve_all()

    def abandon(self) -> None:
        """Let the thread end, now or when it comes back; it closes what was left to it."""
        self.abandoned = True
        self._rung.put(None)

    def take_back(self) -> list[Work | Chore]:
        """What waits here."""
        waiting = list(self.inbox)
        self.inbox.clear()
        self.given -= len(waiting)
        return waiting

    def _live(self) -> None:
        try:
            while not self.abandoned:
                self._rung.get()
                self._serve_all()
                self.push()
            self.sessions.close()
        except BaseException as error:  # the watch carries its fate out, on the loop's thread
            self.died_of = error

    def _serve_all(self) -> None:
        while (request := self._next()) is not None:
            if isinstance(request, Chore):
                request.run(self.sessions)
            else:
                body = self.late(request.step) or self._do(request)
                if request.claim():
                    self.give(request.step, body, request.record)
            self.current = None
            self.done += 1

    def _next(self) -> Work | Chore | None:
        with self.turn:
            if self.abandoned or not self.inbox:
                return None
            self.began = time.monotonic()
            self.current = self.inbox.popleft()
            return self.current

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

    def busy_s(self, now: float) -> float:
        """For how long its thread has been at what it does."""
        return now - self.began if self.current is not None else 0.0

    def overdue(self, now: float) -> Work | Chore | None:
        """What has taken longer than it may, if there is something."""
        request = self.current
        return request if request and self.busy_s(now) > request.timeout_s else None

    def dead(self) -> bool:
        """Whether its thread ended though nobody let it."""
        return self._thread is not None and not self.abandoned and not self._thread.is_alive()

    def empty(self) -> bool:
        """Whether there is neither a session nor anything to do."""
        return self.given == self.done and not len(self.sessions)


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
        *,
        threads: int = 2,
        make: Make = make_environment,
        lease_s: float = LEASE_S,
        slow_s: float = SLOW_S,
        close_s: float = CLOSE_S,
        wall: Clock | None = None,
    ) -> None:
        self.name = name
        self.topics = [topics.steps]
        self.answers = Answers(name, log_, codec, topics, publisher, wall or steady_wall())
        self.kept: Kept[EnvironmentStepped] = Kept()
        self.lease_s = lease_s
        self.slow_s = slow_s
        self.close_s = close_s
        self.counts: Counter[str] = Counter()
        self._threaded = threads > 0
        self._lock = threading.Lock()
        last: Kept[EnvironmentStepped] = Kept()
        self.shards = [self._shard(Sessions(make, last)) for _ in range(max(1, threads))]
        self.apart: dict[str, Shard] = {}
        """Of rollouts that a slow step left alone, or that are bound to the thread it is in."""
        self._reap_due = 0.0

    def _shard(self, sessions: Sessions) -> Shard:
        push = self.answers.publisher.push
        return Shard(self._give, self._late, push, sessions, threaded=self._threaded)

    def _late(self, step: EnvironmentStep) -> CallFailed | None:
        return expired(step, self.answers.now_ms()) if step.kind != "close" else None

    def expects(self, topic: str) -> type:
        del topic
        return EnvironmentStep

    def take(self, batch: Iterable[tuple[Record, Any]]) -> None:
        self.answers.now_ms(batch := list(batch))  # for the clock to know what was read
        works = []
        for record, step in batch:
            try:
                self.answers.check(step)
            except NoSuchPartition as error:
                self.loop.bury(record, error)
                continue
            kept = self.kept.get(step.command_id) if step.kind != "close" else None
            body = kept or self._late(step)
            if body is not None:
                self.counts["answered_again" if kept else "expired"] += 1
                self.answers.give(step, body, record)
            else:
                works.append(Work(record, step, self._lock))
        self._hand_out(works)

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> None:
        if message.kind != "close":
            self.answers.give(message, CallFailed("killed_worker", str(error), False), record)
        else:
            super().fatal(record, message, error)

    def _hand_out(self, works: Iterable[Work]) -> None:
        """Give each to the thread that its rollout lives in."""
        shares: dict[Shard, list[Work]] = {}
        for work in works:
            shares.setdefault(self._home(work.rollout_id), []).append(work)
        for shard, share in shares.items():
            shard.ask(share)

    def _home(self, rollout_id: str) -> Shard:
        apart = self.apart.get(rollout_id)
        return apart or self.shards[zlib.crc32(rollout_id.encode()) % len(self.shards)]

    def _all(self) -> list[Shard]:
        return list(dict.fromkeys([*self.shards, *self.apart.values()]))

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
        self._everywhere(lambda sessions: sessions.drop(progress.number))

    def _everywhere(self, run: Callable[[Sessions], object]) -> None:
        for shard in self._all():
            shard.ask([Chore(run, self.close_s)])

    # The watch

    def tick(self) -> None:
        now = time.monotonic()
        self.answers.tick()
        for shard in self._all():
            with shard.turn:  # what it is at, it is at until we are done here
                self._watch(shard, now)
        if now >= self._reap_due:
            self._reap_due = now + min(REAP_EVERY_S, self.lease_s)
            self._everywhere(lambda sessions: self._reap(sessions, now))

    def _watch(self, shard: Shard, now: float) -> None:
        if shard.dead():
            self._bury_thread(shard)
        elif (late := shard.overdue(now)) is not None:
            self._give_up(shard, late)
        elif shard not in self.shards:
            if shard.empty():
                self._end(shard)
        elif shard.busy_s(now) > self.slow_s:
            self._leave_alone(shard)

    def _reap(self, sessions: Sessions, now: float) -> None:
        """End the sessions whose rollouts have not been heard of for a lease; runs on its thread.

        A rollout that ended while its agents worker died sends no close.
        """
        lapsed = sessions.reap(now, self.lease_s)
        if lapsed:
            self.counts["lapsed"] += lapsed
            log.info("sessions_lapsed", count=lapsed, lease_s=self.lease_s)

    def _leave_alone(self, shard: Shard) -> None:
        """Move everybody else out of a thread whose step takes long."""
        request = shard.current
        crowded = len(shard.sessions) > 1 or shard.inbox
        if isinstance(request, Work) and crowded and len(self.apart) < MOST_APART:
            self.counts["left_alone"] += 1
            self._part(shard, request.rollout_id)

    def _part(self, shard: Shard, stays: str) -> Shard:
        """A new thread in place of this one, which keeps one rollout and those bound to it."""
        new = self.shards[self.shards.index(shard)] = self._shard(shard.sessions.part(stays))
        for rollout_id in filter(None, (stays, *shard.sessions.rollouts())):
            self.apart[rollout_id] = shard
        waiting = shard.take_back()
        self._hand_out(request for request in waiting if isinstance(request, Work))
        chores = [request for request in waiting if isinstance(request, Chore)]
        for both in (shard, new) if chores else ():
            both.ask(chores)
        return new

    def _give_up(self, shard: Shard, late: Work | Chore) -> None:
        """Answer for a step that is past its time, and abandon its thread."""
        if isinstance(late, Work) and not late.claim():
            return  # its thread has just come back
        self._abandon(shard, late)
        self.counts["abandoned"] += 1
        if isinstance(late, Work):
            msg = f"no answer within {late.timeout_s:g} s; its environment was abandoned"
            self._give(late.step, CallFailed("deadline", msg, True), late.record)
        log.warning("environment_hung", rollout_id=late.rollout_id, timeout_s=late.timeout_s)

    def _bury_thread(self, shard: Shard) -> None:
        """Answer for the step that its thread died of; what nobody can answer for ends us all."""
        request, error = shard.current, shard.died_of
        work = request if isinstance(request, Work) and request.claim() else None
        if error is not None and work is None:
            raise error
        self._abandon(shard, request)
        self.counts["died"] += 1
        if work is not None:
            msg = f"the environment ended its thread: {type(error).__name__}"
            self._give(work.step, CallFailed("raised", msg, False), work.record)
        self.shards[0].ask([Chore(lambda _: shard.sessions.close(), self.close_s)])
        log.error("environments_thread_died", error=type(error).__name__)

    def _abandon(self, shard: Shard, request: Work | Chore | None) -> None:
        """Give a thread up with what it is at; everybody else goes on in a new one."""
        if shard in self.shards:
            new = self._part(shard, request.rollout_id if request else "")
            if isinstance(request, Chore):
                new.ask([request])  # the sessions that it had not come to are there
        self._end(shard)

    def _end(self, shard: Shard) -> None:
        """Forget a thread that had its rollouts to itself; what waits there goes home."""
        self.apart = {name: other for name, other in self.apart.items() if other is not shard}
        shard.abandon()
        self._hand_out(work for work in shard.take_back() if isinstance(work, Work))

    def in_flight(self) -> int:
        return sum(shard.given - shard.done for shard in self._all())
