"""The models group of one policy: answers calls, and adopts weights in between.

The loop's thread drives the engine, one decode step per turn, so calls join and leave its batch
between steps, and every token has one version. Nothing is served before the newest announced
version: a restarted server reads `policy.versions` to its end first. A call that wants one
version is answered by an engine that is pinned to it (`rollcall.consumers.models.pinned_engines`).
"""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Any

import structlog

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.answers import AnswerWriter, expired, too_late
from rollcall.consumers.loop.control_reader import ControlReader
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.consumers.loop.inline_executor import InlineExecutor
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.role import WorkRole
from rollcall.consumers.models.adoption_turns import LEASE_S, AdoptionTurn, AdoptionTurns
from rollcall.consumers.models.early_calls import EarlyCalls, HeldPrefixes, too_far
from rollcall.consumers.models.load import Load
from rollcall.consumers.models.pinned_engines import PinnedEngines
from rollcall.consumers.models.versions import Versions
from rollcall.inference.engine import Engine
from rollcall.producers.control import write_control
from rollcall.schemas.answer_cache import AnswerCache
from rollcall.schemas.errors import (
    FailureCode,
    KilledWorkers,
    NoSuchPartition,
    WireError,
    WorkFailed,
)
from rollcall.schemas.ids import command_key, rollout_of
from rollcall.schemas.messages import CallFailed, Control, ModelAnswered, ModelCall

VERSIONS_EVERY_S = 0.05
WAIT_SAID_S = 15.0
CAPACITY = 256
"""The default number of calls that an engine takes at once."""
HELD_POLL_S = 0.02
"""The poll time while calls in hand wait for weights, and no engine has work."""

log = structlog.get_logger()


HELD = 4
"""The most delayed refusals, as a multiple of the calls in hand; each lasts for seconds."""


class ModelsRole(WorkRole):
    """Serves one policy with one engine."""

    def __init__(
        self,
        answers: AnswerWriter,
        dead_letters: DeadLetters,
        engine: Engine,
        *,
        most_in_hand: int = 512,
        thread: Executor | None = None,
        adopt_at_once: int = 0,
        capacity: int = CAPACITY,
    ) -> None:
        self._thread = thread or InlineExecutor()
        topics = answers.topics
        self.name = answers.name
        self.topics = [topics.calls(engine.policy_id)]
        self.dead_letters = dead_letters
        self.engine = engine
        self.kept: AnswerCache[ModelAnswered | CallFailed] = AnswerCache()
        self.most_in_hand = most_in_hand
        self.wall = answers.wall
        self.answers = answers
        self.counts: Counter[str] = Counter()
        self.prefixes = HeldPrefixes()
        self.load = Load(self.wall, capacity)
        self._in_hand: dict[bytes, tuple[ModelCall, list[Record]]] = {}
        self._beside: dict[bytes, list[tuple[Record, ModelCall]]] = {}
        """Calls of other rollouts with the id of a call in hand; they wait for its answer."""
        self._early = EarlyCalls()
        self.turn = _turn(answers, engine.policy_id, adopt_at_once) if adopt_at_once else None
        self.versions = Versions(
            engine,
            answers.codec,
            answers.log.reader([topics.versions]),
            self.wall,
            lambda record, error: dead_letters.bury_once([(record, error)]),
            self._thread,
            self.turn,
            dead_letters.skipped,
        )
        self._versions_due = 0.0
        self.pinned = PinnedEngines(engine.replica, self.wall, thread=self._thread)
        self._said = False
        self._say_at = self.wall() + WAIT_SAID_S

    def expects(self, topic: str) -> type:
        del topic
        return ModelCall

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        now_ms = self.answers.now_ms(batch := list(batch))
        for record, call in batch:
            if call.kind == "sample":
                try:
                    self.answers.check(call)
                except NoSuchPartition as error:
                    self.dead_letters.bury(record, error)
                else:
                    self._take_call(record, call, now_ms)
            else:
                if call.kind == "abort":
                    self._abort(call)
                record.closed = True

    def unreadable(self, record: Record, error: WireError) -> None:
        self.answers.lost(record, error)

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> bool:
        if message.kind == "sample":
            self.answers.give(
                message, CallFailed(FailureCode.KILLED_WORKER, str(error), False), record
            )
            return True
        return super().fatal(record, message, error)

    def _take_call(self, record: Record, call: ModelCall, now_ms: int) -> None:
        if self.load.join(call, record):
            return
        kept = self.kept.get(command_key(call))
        body = kept or self._refusal(call, now_ms)
        if isinstance(body, CallFailed) and body.code == FailureCode.BUSY:
            self._turn_away(call, body, [record])
        elif body is not None:
            self.counts["answered_again" if kept else "refused"] += 1
            self.answers.give(call, body, record)
        elif (held := self._in_hand.get(call.command_id)) is None:
            self._begin(record, call)
        elif command_key(held[0]) == command_key(call):
            held[1].append(record)
        else:
            self._beside.setdefault(call.command_id, []).append((record, call))

    def _take_beside(self, call: ModelCall) -> None:
        """Take up the calls of other rollouts with the same id, which engines cannot tell apart."""
        for record, other in self._beside.pop(call.command_id, ()):
            self._take_call(record, other, self.answers.now_ms())

    def _turn_away(self, call: ModelCall, body: CallFailed, records: list[Record]) -> None:
        self.counts["busy"] += 1
        self.load.hold(call, body, records, self.answers.now_ms())

    def _begin(self, record: Record, call: ModelCall) -> None:
        """Pass a call to the engine for it, or queue it until there is one."""
        try:
            engine = self._engine_of(call)
        except WorkFailed as error:
            self.counts["refused"] += 1
            body = CallFailed(error.code, str(error), error.retriable)
            self.answers.give(call, body, record)
            return
        if engine is None:
            self._wait_for_version(record, call)
        else:
            self._add_to_engine(record, call, engine)

    def _wait_for_version(self, record: Record, call: ModelCall) -> None:
        newest = max(self.versions.newest(), self.engine.version)
        body = too_far(call, newest) if self.versions.current else None
        leaving = (record, call, body) if body else self._early.add(record, call, newest)
        if leaving is not None:
            self.counts["refused"] += 1
            self.answers.give(leaving[1], leaving[2], leaving[0])

    def _add_to_engine(self, record: Record, call: ModelCall, engine: Engine) -> None:
        """Give a call to an engine with the tokens that it names, if they are held here."""
        filled = self.prefixes.filled(call)
        if isinstance(filled, CallFailed):
            self.counts["prefix_needed"] += 1
            self.answers.give(call, filled, record)
            return
        self._in_hand[call.command_id] = filled, [record]
        engine.add(filled)

    def _engine_of(self, call: ModelCall) -> Engine | None:
        """Return the engine for a call; None if its weights may still come. Raises WorkFailed."""
        wanted = call.policy_version
        if wanted < 0:
            return self.engine if self._current(call) else None
        announced = self.versions.known.get(wanted)
        if announced is not None:
            return self.pinned.serving(announced, self.versions.staging.version)
        newest = max(self.versions.newest(), self.engine.version)
        if not self.versions.current or wanted > newest:
            return None
        if wanted == self.engine.version:  # it was never announced, so no later one was either
            return self.engine
        msg = (
            f"version {wanted} of {call.policy_id!r} is not announced any more; the newest is "
            f"{newest}, and records of those before it go in time"
        )
        raise WorkFailed(FailureCode.VERSION_GONE, msg, retriable=False)

    def _refusal(self, call: ModelCall, now_ms: int) -> CallFailed | None:
        if call.policy_id != self.engine.policy_id:
            msg = f"this server serves {self.engine.policy_id!r}, not {call.policy_id!r}"
            return CallFailed(FailureCode.UNKNOWN_POLICY, msg, False)
        if call.command_id in self._in_hand:
            return expired(call, now_ms)
        return self.load.refusal(call, now_ms, len(self._in_hand)) or expired(call, now_ms)

    def _current(self, call: ModelCall) -> bool:
        """Return True if the call may be served with the present weights."""
        return self.versions.current and self.engine.version >= max(0, call.min_policy_version)

    def _say_if_waiting(self) -> None:
        """Warn once if the start waits long for the newest version; later ones may take a while."""
        if self._said or self.wall() <= self._say_at:
            return
        self._said = True
        newest = self.versions.newest()
        log.warning(
            "waiting_for_weights",
            policy_id=self.engine.policy_id,
            announced=None if newest < 0 else newest,
            refused=self.versions.refused,
            remedy="start its trainer, or announce a directory with `rollcall publish-policy`",
        )

    def _abort(self, call: ModelCall) -> None:
        """Drop a rollout's calls: their records are closed without an answer.

        Engines know rollouts by id: calls of another rollout with the same id begin again.
        """
        self.engine.abort(call.rollout_id, call.attempt)
        self.pinned.abort(call.rollout_id, call.attempt)

        def gone(other: ModelCall) -> bool:
            return rollout_of(other) == rollout_of(call) and other.attempt <= call.attempt

        self.load.abort(gone)
        self._early.abort(gone)
        named = [
            (record, held)
            for held, records in self._in_hand.values()
            if held.rollout_id == call.rollout_id and held.attempt <= call.attempt
            for record in records
        ]
        for _, held in named:
            self._in_hand.pop(held.command_id, None)
        for _, held in list(named):
            named += self._beside.pop(held.command_id, [])
        for record, held in named:
            record.closed = gone(held)
            if not record.closed:
                self._take_call(record, held, self.answers.now_ms())

    def dropped(self, progress: PartitionProgress) -> None:
        """Keep calls of a lost partition running: their answers are as good as the new owner's."""

    def tick(self) -> None:
        now = self.wall()
        self.answers.tick()
        if now >= self._versions_due:
            self._versions_due = now + VERSIONS_EVERY_S
            self.versions.follow()
            self.pinned.tidy()
            if not self.versions.current or self.engine.version < 0:
                self._say_if_waiting()
            for record, call in self._early.drain():
                self._take_call(record, call, self.answers.now_ms())
        if self._in_hand:
            self._expire(self.answers.now_ms())
        if self.engine.busy():
            for answer in self.engine.step():
                self._answer(answer.call, answer.body)
        for answer in self.pinned.step():
            self._answer(answer.call, answer.body)
        self.load.speed.look(len(self._in_hand))
        for call, body, record in self.load.due():
            self.answers.give(call, body, record)
        self.poll_s = self._wait_s()

    def _wait_s(self) -> float:
        """Return the poll time: short for an engine that computes, longer if it awaits others."""
        waits_s = self.pinned.waits_s()
        if self.engine.busy():
            waits_s.append(self.engine.wait_s)
        return min(waits_s, default=HELD_POLL_S)

    def _expire(self, now_ms: int) -> None:
        """Answer calls past their deadline without work: a full server would do no other."""
        for call in (*self.engine.expire(now_ms), *self.pinned.expire(now_ms)):
            busy = self.load.refusal(call, now_ms, len(self._in_hand))
            self.counts["expired"] += busy is None
            self._answer(call, busy or too_late(call, now_ms))

    def _answer(self, call: ModelCall, body: ModelAnswered | CallFailed) -> None:
        _, records = self._in_hand.pop(call.command_id, (call, []))
        if isinstance(body, CallFailed) and body.code == FailureCode.BUSY:
            self._turn_away(call, body, records)
            self._take_beside(call)
            return
        self.load.speed.note_answer()
        if isinstance(body, ModelAnswered):
            self.kept.keep(
                command_key(call), body, (*rollout_of(call), call.attempt, call.sequence)
            )
            self.prefixes.keep(call, body)
        for record in records:
            self.answers.give(call, body, record)
        self.counts["answered"] += 1
        if self._beside:
            self._take_beside(call)

    def full(self, progress: PartitionProgress) -> bool:
        """Return True to pause the partition; early and refused calls are counted separately."""
        most = self.most_in_hand // 2 if progress.paused else self.most_in_hand
        begun = len(self._in_hand) if self.versions.current else len(self._early)
        over = begun > most or len(self.load) > HELD * most or self._early.full()
        return over or super().full(progress)

    def cannot_begin(self, partition: int) -> int:
        return self._early.of(partition) + self.load.of(partition)

    def in_flight(self) -> int:
        return len(self._in_hand) + len(self.load)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.turn is not None:
            self.turn.control.close()


def _turn(answers: AnswerWriter, policy_id: str, at_once: int) -> AdoptionTurn:
    def say(order: Control) -> None:
        write_control(answers.publisher, answers.codec, answers.topics, order, answers.name)

    control = ControlReader(answers.log, answers.codec, answers.topics)
    turns = AdoptionTurns(at_once, int(1000 * LEASE_S))
    return AdoptionTurn(policy_id, answers.name, turns, control, say, answers.clock)
