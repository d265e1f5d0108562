"""One world in one process: a log in memory, workers on it, words written and read by hand.

Its clock is one that only the test moves, unless another is given.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from rollcall.consumers.agents.outbox import Outbox
from rollcall.consumers.agents.worker import AgentsRole
from rollcall.consumers.environments.environments import EnvironmentsRole
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.answers import AnswerWriter
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.loop.role import Role, WorkRole
from rollcall.consumers.models.server import ModelsRole
from rollcall.consumers.rewards.async_scorers import AsyncScorers
from rollcall.consumers.rewards.rewards import RewardsRole
from rollcall.consumers.rewards.scoring_host import ScoringHosts
from rollcall.inference.engine import Engine
from rollcall.producers.control import write_control
from rollcall.sandbox.environment import AnyEnvironment
from rollcall.sandbox.host import ScoringHost
from rollcall.sandbox.scorers import ScorerSpec, score
from rollcall.schemas.claims import Objects
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.messages import (
    Control,
    Event,
    RolloutRequest,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)
from rollcall.schemas.topics import Topics, wanted
from tests.support.waiting import give_way

M = TypeVar("M")
PREFIX = "t."


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class Fickle(LocalRegistry):
    """A registry that may be away; it knows every schema, and the levels are as they should be."""

    away = False

    def id_of(self, topic: str, schema: str) -> int | None:
        return self.writer_id(topic, schema)

    def compatibility(self, topic: str) -> str | None:
        del topic
        return None

    def writer_id(self, topic: str, schema: str) -> int:
        self._answer()
        return super().writer_id(topic, schema)

    def schema_of(self, schema_id: int) -> str:
        self._answer()
        return super().schema_of(schema_id)

    def _answer(self) -> None:
        if self.away:
            msg = "the registry does not answer"
            raise Unavailable(msg)


class BesideARoom(Loop):
    """Turned by a test that waits for what happens on another thread."""

    def turn(self, timeout_s: float = 0.0) -> int:
        moved = super().turn(timeout_s)
        give_way()
        return moved


class Rig:
    """One log, and workers on it; `log` may be given to make members that can be harmed."""

    def __init__(
        self,
        *,
        partitions: int = 1,
        policies: Sequence[str] = ("p",),
        make_log: Callable[..., MemoryLog] = MemoryLog,
        objects: Objects | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.clock: Any = clock or Clock()
        self.wall: Callable[[], float] = self.clock
        """What the next worker takes for the time; the log keeps its own."""
        self.topics = Topics(PREFIX)
        self.registry = Fickle()
        self.objects = objects
        self.codec = Codec(self.registry, objects=objects, clock=self.clock)
        self.log = make_log(wanted(PREFIX, policies, partitions=partitions), wall=self.clock)
        self.pen = MemoryLog.publisher(self.log)
        self._roles: list[EnvironmentsRole | RewardsRole] = []

    # Workers

    def loop(
        self, role: Any, publisher: Any, group: str, *, make: type[Loop] = Loop, **options: Any
    ) -> Loop:
        dead_letters = getattr(role, "dead_letters", None) or self.dead_letters(publisher, group)
        publishers = [
            publisher,
            *([role.outbox.trajectories] if isinstance(role, AgentsRole) else []),
        ]
        return make(
            self.log, role, self.codec, publishers, dead_letters, clock=self.clock, **options
        )

    def dead_letters(self, publisher: Any, group: str) -> DeadLetters:
        return DeadLetters(publisher, self.topics, group, self.clock, self.log)

    def agents(
        self,
        name: str = "a1",
        *,
        accept: bool = False,
        make: type[AgentsRole] = AgentsRole,
        make_outbox: type[Outbox] = Outbox,
        **options: Any,
    ) -> Loop:
        publisher, trajectories = self.log.publisher(), self.log.publisher(bulk=True)
        role = make(
            self.log,
            self.codec,
            self.topics,
            make_outbox(name, self.codec, self.topics, publisher, trajectories),
            self.dead_letters(publisher, "t.agents"),
            clock=self.clock,
            wall=self.wall,
            accept=accept,
            **options,
        )
        return self.loop(role, publisher, "t.agents", accept_truncation=accept)

    def models(
        self,
        engine: Engine,
        name: str = "m1",
        *,
        make: type[ModelsRole] = ModelsRole,
        **options: Any,
    ) -> Loop:
        publisher, group = self.log.publisher(), f"t.models.{engine.policy_id}"
        answers = AnswerWriter(name, self.log, self.codec, self.topics, publisher, self.wall)
        role = make(answers, self.dead_letters(publisher, group), engine, **options)
        return self.loop(role, publisher, group)

    def environments(
        self,
        name: str = "e1",
        make: Callable[[str, str], AnyEnvironment] | None = None,
        *,
        threads: int = 0,
        **options: Any,
    ) -> Loop:
        publisher = self.log.publisher()
        answers = AnswerWriter(name, self.log, self.codec, self.topics, publisher, self.wall)
        dead_letters = self.dead_letters(publisher, "t.environments")
        role = EnvironmentsRole(answers, dead_letters, threads=threads, make=make, **options)
        self._roles.append(role)
        make_loop = BesideARoom if threads else Loop
        return self.loop(role, publisher, "t.environments", make=make_loop)

    def close(self) -> None:
        """End what its workers left running."""
        for role in self._roles:
            role.close()

    def rewards(
        self,
        name: str = "r1",
        scorers: Sequence[str] = ("environment_return",),
        *,
        threaded: bool = False,
        hosts: Callable[[], ScoringHost] | None = None,
        at_once: int = 2,
        timeout_s: float = 20.0,
        grace_s: float = 0.2,
        **options: Any,
    ) -> Loop:
        publisher = self.log.publisher(bulk=True)
        specs = [ScorerSpec(scorer) for scorer in scorers]

        def judge(
            trajectory: Trajectory, topic: str, partition: int, offset: int
        ) -> ScoredTrajectory:
            return score(
                trajectory,
                specs,
                scoring_id="s",
                source_topic=topic,
                source_partition=partition,
                source_offset=offset,
            )

        waiting = AsyncScorers(
            specs,
            EventLoopThread(threaded=threaded),
            hosts or ScoringHosts(box="local", objects=self.objects),
            at_once=at_once,
            timeout_s=timeout_s,
            grace_s=grace_s,
        )
        options = {"scoring_id": "s", **options}
        role = RewardsRole(
            name, self.codec, self.topics, publisher, judge, waiting=waiting, **options
        )
        self._roles.append(role)
        make_loop = BesideARoom if threaded else Loop
        return self.loop(role, publisher, "t.rewards.s", make=make_loop)

    # Words

    def write(self, topic: str, key: str, message: Any, partition: int | None = None) -> None:
        self.pen.send(topic, key, self.codec.encode(topic, message), partition=partition)

    def ask(self, request: RolloutRequest, partition: int | None = None) -> None:
        self.write(self.topics.requests, request.rollout_id, request, partition)

    def enter(self, event: Event, partition: int = 0) -> int:
        """Append an entry to a journal partition by hand; return its offset."""
        self.write(self.topics.events, event.rollout_id, event, partition)
        return self.log.bounds(self.topics.events)[partition][1] - 1

    def start(
        self, request: RolloutRequest, request_offset: int = 0, writer: str = "agents-1"
    ) -> None:
        body = RolloutStarted(request, request_offset, request_offset)
        self.enter(Event.decision(request.rollout_id, 1, writer, body))

    def order(self, kind: str, **fields: str) -> None:
        write_control(self.pen, self.codec, self.topics, Control(kind, **fields))

    # What is there

    def read(self, topic: str, expected: type[M]) -> list[M]:
        return [self.codec.decode(record.value, expected) for record in self.log.all(topic)]

    def events(self, body: type) -> list[Event]:
        return [e for e in self.read(self.topics.events, Event) if isinstance(e.body, body)]

    def trajectories(self) -> list[Trajectory]:
        return self.read(self.topics.trajectories, Trajectory)

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        return self.log.group(group).committed.get((topic, partition), (None, ""))[0]

    def settle(self, *loops: Loop, turns: int = 200) -> None:
        """Turn until nobody has anything to do."""
        quiet = 0
        for _ in range(turns):
            moved = sum(loop.turn(0.0) + loop.role.in_flight() for loop in loops)
            quiet = 0 if moved else quiet + 1
            if quiet == 3:
                return

    def commit(self, *loops: Loop) -> None:
        """Let the time of the next commit come."""
        self.clock.pass_by(1.1)
        for loop in loops:
            loop.turn(0.0)


class InHand(WorkRole):
    """A role that keeps what it takes until the test closes it; it answers into dead ends."""

    def __init__(self, topic: str, publisher: Any = None, answers: str = "") -> None:
        self.name = "in-hand"
        self.topics = [topic]
        self.publisher = publisher
        self.to = answers
        self.hand: list[Record] = []
        self.seen: list[tuple[int, int]] = []

    def expects(self, topic: str) -> type:
        del topic
        return Control

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        for record, _ in batch:
            self.hand.append(record)
            self.seen.append((record.partition, record.offset))

    def close(self, *offsets: int) -> None:
        """Close these records, or all; each gets an answer first where there is a way out."""
        for record in list(self.hand):
            if not offsets or record.offset in offsets:
                self.hand.remove(record)
                if self.publisher is not None:
                    self.publisher.send(self.to, record.key, record.value, cause=record)
                record.closed = True

    def in_flight(self) -> int:
        return len(self.hand)


def role_of(loop: Loop) -> Any:
    role: Role = loop.role
    return role


def source_of(loop: Loop) -> Any:
    return loop.source
