"""The role of the environments group: read steps, publish observations."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rollcall.consumers.environments.sessions.async_sessions import AsyncSessions
from rollcall.consumers.environments.sessions.session_router import EnvironmentKinds, SessionRouter
from rollcall.consumers.environments.sessions.session_step import Body, SessionStep, SessionTimes
from rollcall.consumers.environments.sessions.watched_threads import WatchedThreads
from rollcall.consumers.environments.worker_boxes import WorkerBoxes
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.answers import AnswerWriter, expired
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.role import WorkRole
from rollcall.consumers.loop.time_guard import TimeGuard
from rollcall.sandbox.boxes.box_removal import Tell
from rollcall.sandbox.environment import (
    AnyEnvironment,
    EnvironmentKind,
    kind_of,
    make_environment,
    make_plain,
)
from rollcall.sandbox.host import Host
from rollcall.schemas.answer_cache import AnswerCache
from rollcall.schemas.errors import FailureCode, KilledWorkers, NoSuchPartition, WireError
from rollcall.schemas.ids import command_key, rollout_of
from rollcall.schemas.messages import CallFailed, EnvironmentStep, EnvironmentStepped

Make = Callable[[str, str], AnyEnvironment]
"""Makes an environment from its name and its config as JSON."""
TIMES = SessionTimes()


class EnvironmentsRole(WorkRole):
    """Steps environments; with `threads=0` on the loop's own thread, unwatched."""

    poll_s = 0.02

    def __init__(
        self,
        answers: AnswerWriter,
        dead_letters: DeadLetters,
        *,
        threads: int = 2,
        make: Make | None = None,
        kind: EnvironmentKind | None = None,
        hosts: Callable[[str], Host] | None = None,
        slots: Mapping[str, int] | None = None,
        loop_thread: EventLoopThread | None = None,
        times: SessionTimes = TIMES,
        boxes: WorkerBoxes | None = None,
        note: Tell = lambda instance: None,
        guard: TimeGuard | None = None,
    ) -> None:
        self.name = answers.name
        self.topics = [answers.topics.steps]
        self.dead_letters = dead_letters
        self.answers = answers
        self.kept: AnswerCache[EnvironmentStepped] = AnswerCache()
        self._lock = threading.Lock()
        given = self._give, self._late, answers.publisher.push
        made = make or make_plain
        self.threads = WatchedThreads(*given, count=threads, make=made, times=times, guard=guard)
        self.counts = self.threads.counts
        kinds = EnvironmentKinds((lambda _: kind or EnvironmentKind()) if make else kind_of)
        self.loop_thread = loop_thread or EventLoopThread(threaded=threads > 0)
        self.waiting = AsyncSessions(
            *given,
            loop_thread=self.loop_thread,
            make=_made_in_place(make, hosts),
            kind_of=kinds.of,
            slots=slots or {},
            times=times,
            counts=self.counts,
            note=note,
        )
        self.boxes = boxes
        apart = threads > 0 and make is None
        self.router = SessionRouter(self._give, self.threads, self.waiting, kinds, threaded=apart)

    def _late(self, step: EnvironmentStep) -> CallFailed | None:
        return _expired(step, self.answers.now_ms())

    def expects(self, topic: str) -> type:
        del topic
        return EnvironmentStep

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        now_ms = self.answers.now_ms(batch := list(batch))
        works = []
        for record, step in batch:
            try:
                self.answers.check(step)
            except NoSuchPartition as error:
                self.dead_letters.bury(record, error)
                continue
            kept = self.kept.get(command_key(step)) if step.kind != "close" else None
            body = kept or _expired(step, now_ms)
            if body is not None:
                self.counts["answered_again" if kept else "expired"] += 1
                self.answers.give(step, body, record)
            else:
                works.append(SessionStep(record, step, self._lock))
        self.router.dispatch(works)

    def unreadable(self, record: Record, error: WireError) -> None:
        self.answers.lost(record, error)

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> bool:
        if message.kind != "close":
            self.answers.give(
                message, CallFailed(FailureCode.KILLED_WORKER, str(error), False), record
            )
            return True
        return super().fatal(record, message, error)

    def _give(self, step: EnvironmentStep, body: Body, record: Record) -> None:
        """Answer a step, on its session's thread. A close has no answer."""
        if step.kind == "close":
            record.closed = True
            return
        if isinstance(body, EnvironmentStepped):
            session = *rollout_of(step), step.attempt, step.session
            self.kept.keep(command_key(step), body, session)
        elif body.code == FailureCode.BOX_DIED:
            self.counts["box_died"] += 1
        self.answers.give(step, body, record)
        self.counts["answered"] += 1

    def dropped(self, progress: PartitionProgress) -> None:
        self.router.drop(progress.number)

    def tick(self) -> None:
        self.answers.tick()
        if self.boxes is not None:
            self.boxes.tick()
        self.router.watch()

    def cannot_begin(self, partition: int) -> int:
        """Return the openings that wait for a slot, of all partitions."""
        del partition
        return self.waiting.slots.waiting

    def in_flight(self) -> int:
        return self.router.unfinished()

    def leave(self, *, patient: bool) -> None:
        self.router.leave(patient=patient)

    def close(self) -> None:
        self.router.close()


def _expired(step: EnvironmentStep, now_ms: int) -> CallFailed | None:
    """Return the answer to a step that is past its deadline; a close is never."""
    return expired(step, now_ms) if step.kind != "close" else None


def _made_in_place(
    make: Make | None, hosts: Callable[[str], Host] | None
) -> Callable[[str, str, str], AnyEnvironment]:
    """Return the maker of waiting environments: by name, configuration and the session's place."""
    if make is not None:
        return lambda name, config, place: make(name, config)
    return lambda name, config, place: make_environment(
        name, config, hosts(place) if hosts else None
    )
