"""Whole rollouts on the in-memory log under a seeded scheduler that harms everybody.

Members join, leave, die at any yield point, are taken for dead and come back as zombies. Sent
records reach the log late, out of order between partitions, or never when their process dies; acks
come later still. Everything random comes from one seed.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rollcall.consumers.agents.outbox import Outbox
from rollcall.consumers.agents.worker import AgentsRole, Capacity
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.audit.report import Breach, Report
from rollcall.consumers.log.memory_log import MemoryLog, MemoryPublisher
from rollcall.consumers.log.memory_source import MemorySource
from rollcall.consumers.log.protocols import Commit, Held, Listener, Record, TopicPartition
from rollcall.consumers.loop.loop import Loop
from rollcall.inference.scripted import ScriptedEngine
from rollcall.producers.publisher import Cause, Outgoing
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import (
    CallFailed,
    EnvironmentStepped,
    Limits,
    ModelAnswered,
    ModelCall,
    Quota,
    RolloutRequest,
    ScoredTrajectory,
    Task,
)
from tests.support.hosted_rollout import AGENTS_OF_OTHERS, CoroutineHost
from tests.support.lake import LAKE
from tests.support.rig import Rig, role_of

USERS = ("ann", "bob")
KINDS = ("agents", "models", "environments", "rewards")
AGENTS = (
    "react",
    "react",
    "tests.journals.programs:side_by_side",
    "tests.support.chaos_schedule:patient",
)


def patient(task: Any) -> Any:
    """A program that forgives: whatever fails, it asks again, and ends well."""
    from rollcall.consumers.agents.effects import CallModel, Finish, Reset, Step, WishFailed, user

    said, failures = [], 0
    for wish in [Reset(), CallModel([user("a")]), Step("R"), CallModel([user("b")]), Step("D")]:
        try:
            said.append(getattr((yield wish), "text", ""))
        except WishFailed:
            failures += 1
    yield Finish(f"{failures} failed, {task.rng.randrange(100)}: {said}")


class Killed(BaseException):
    """The process is gone; nothing on its way out runs."""


class NoPeace(AssertionError):
    """Rollouts wait for something that never comes."""


@dataclass
class Life:
    """One process: how many yield points it has left, and what dies with it."""

    random: Random
    small_batches: bool
    left: int | None = None
    calm: bool = False
    publishers: list["LazyPublisher"] = field(default_factory=list)

    def point(self) -> None:
        """A place where the process may die."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


class LazyPublisher(MemoryPublisher):
    """Sent records lie in a buffer for a while; only within a partition their order is kept."""

    def __init__(self, log: "HarmedLog", life: Life) -> None:
        super().__init__(log)
        self.life = life
        self._buffer: list[tuple[str, int, Any, Any, Any, Cause | None]] = []
        life.publishers.append(self)

    def _put(self, outgoing: Outgoing) -> None:
        self.life.point()
        topic, key = outgoing.topic, outgoing.key
        count = self.log.partitions(topic)
        raw = key.encode() if isinstance(key, str) else key
        number = sum(raw or b"") % count if outgoing.partition is None else outgoing.partition
        self._buffer.append((topic, number, raw, outgoing.value, outgoing.headers, outgoing.cause))
        self.life.point()

    def poll(self) -> None:
        self.life.point()
        self._deliver(0.0 if self.life.calm else 0.3)
        keep = 0 if self.life.calm else self.life.random.randint(0, len(self._unacked))
        acked, self._unacked = (
            self._unacked[: len(self._unacked) - keep],
            self._unacked[len(self._unacked) - keep :],
        )
        for cause in acked:
            if cause is not None:
                cause.acked += 1

    def flush(self, timeout_s: float) -> int:
        self.life.point()
        self._deliver(0.0)
        self.life.point()
        return super().flush(timeout_s)

    def waiting(self) -> int:
        return len(self._buffer) + len(self._unacked)

    def die(self) -> None:
        """What is on the wire may still arrive."""
        self._deliver(self.life.random.random())
        self._buffer.clear()

    def _deliver(self, stays: float) -> None:
        held: set[tuple[str, int]] = set()
        buffer, self._buffer = self._buffer, []
        for item in buffer:
            topic, number, key, value, headers, cause = item
            if (topic, number) in held or self.life.random.random() < stays:
                held.add((topic, number))
                self._buffer.append(item)
                continue
            self.log.append(topic, key, value, number, headers)
            self._unacked.append(cause)
            if self.life.random.random() < 0.02:
                self.log.hole(topic, number)


class HarmedSource(MemorySource):
    """A member that may die before and after whatever it does."""

    life: Life

    def _held(self, tp: TopicPartition) -> Held:
        held = super()._held(tp)
        if held.committed is None and isinstance(self.log, HarmedLog):
            self.log.resets[tp] = held.log_end
        return held

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        self.life.point()
        if self.life.small_batches:
            most = self.life.random.choice((1, 3, 10, 500))
        records = super().poll(timeout_s, most)
        self.life.point()
        return records

    def commit(self, commits: Sequence[Commit]) -> None:
        self.life.point()
        super().commit(commits)
        self.life.point()


class HarmedLog(MemoryLog):
    """Gives every client to the process that is being made."""

    life: Life

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.resets: dict[TopicPartition, int] = {}
        """Up to where an owner that found no commit had to fold silently."""

    def source(self, group: str, topics: Sequence[str], listener: Listener) -> HarmedSource:
        source = HarmedSource(self, self.group(group), topics, listener)
        source.life = self.life
        return source

    def publisher(self, *, bulk: bool = False) -> LazyPublisher:
        del bulk
        return LazyPublisher(self, self.life)


@dataclass
class Member:
    kind: str
    name: str
    life: Life
    loop: Loop
    zombie: bool = False

    @property
    def source(self) -> HarmedSource:
        assert isinstance(self.loop.source, HarmedSource)
        return self.loop.source


class Chaos:
    """One schedule, drawn from one seed."""

    slots: Mapping[str, int] = {"hosted": 2}
    """Of each environments worker: enough for all sessions that live at once, since who holds one
    and waits for another is let go by deadlines only."""

    def __init__(
        self,
        seed: int,
        *,
        rollouts: int = 4,
        small_batches: bool = True,
        quotas: Sequence[int] = (0,),
        most_live: Sequence[int] = (4000,),
        skews_s: Sequence[float] = (0.0,),
        again: float = 0.0,
        programs: Sequence[str] = AGENTS,
        hosted: float = 0.0,
        limited: float = 0.0,
        make_log: "type[HarmedLog] | None" = None,
        agents: type[AgentsRole] = AgentsRole,
        outbox: type[Outbox] = Outbox,
    ) -> None:
        """`make_log`, `agents` and `outbox` may be ones that make a mistake."""
        self.random = Random(seed)
        self.small_batches = small_batches
        self.quotas = quotas
        self.most_live = most_live
        self.skews_s = skews_s
        self.again = again
        """How often a producer asks again for what it has asked for, in the same partition."""
        self.programs = programs
        self.hosted = hosted
        """How many of the rollouts are agents of somebody else's, in a room."""
        self.limited = limited
        """How often somebody says what a user may take, or takes that back."""
        self.homes: dict[str, int] = {}
        self.rig = Rig(partitions=2, make_log=make_log or HarmedLog)
        self.agents = agents
        self.outbox = outbox
        self.members: list[Member] = []
        self.requests = [self._request(n) for n in range(rollouts)]
        self.asked = 0
        self.faults: Counter[str] = Counter()
        self.births = 0

    def _request(self, number: int) -> RolloutRequest:
        dice = self.random
        lake = {**LAKE, "replayable": dice.random() < 0.7}
        limits = Limits(
            max_turns=4,
            max_tries=dice.choice((1, 3)),
            max_attempts=dice.choice((1, 3)),
            call_timeout_s=20.0,
            step_timeout_s=20.0,
            rollout_timeout_s=300.0,
        )
        task = Task("gymnasium", json.dumps(lake), seed=number, prompt="Cross the lake.")
        rollout_id, group = f"r{number}", f"g{number // 2}"
        agent, config = dice.choice(self.programs), ""
        if self.hosted and dice.random() < self.hosted:
            agent, argv = "hosted", [dice.choice(list(AGENTS_OF_OTHERS))]
            config = json.dumps({"agent": "command", "argv": argv, "catch_up_s": 0.02})
        return RolloutRequest(
            rollout_id,
            task,
            agent,
            config,
            policy_id="p",
            group_id=group,
            limits=limits,
            user=USERS[number % len(USERS)],
        )

    # Members

    def join(self, kind: str) -> Member:
        self.births += 1
        name = f"{kind}-{self.births}"
        life = Life(self.random, self.small_batches)
        log = self.rig.log
        assert isinstance(log, HarmedLog)
        log.life = life
        skew_s = self.random.choice(self.skews_s)
        self.rig.wall = lambda: self.rig.clock() + skew_s
        if kind == "models":
            loop = self.rig.models(ScriptedEngine("p", self._say), name)
        elif kind == "agents":
            most = Capacity(
                self.random.choice(self.most_live), Quota("", self.random.choice(self.quotas))
            )
            loop = self.rig.agents(name, make=self.agents, make_outbox=self.outbox, capacity=most)
        elif kind == "environments":
            hosts = CoroutineHost(AGENTS_OF_OTHERS).at
            loop = self.rig.environments(name, hosts=hosts, slots=self.slots)
        else:
            loop = getattr(self.rig, kind)(name)
        self.members.append(Member(kind, name, life, loop))
        return self.members[-1]

    def _say(self, call: ModelCall) -> str:
        """Every server says something else, so that it matters whose answer counts."""
        if self.random.random() < 0.08:
            code = "overloaded"
            raise WorkFailed(code, "too much to do", retriable=True)
        return self.random.choice("LDRU")

    def bury(self, member: Member) -> None:
        """The process is gone; the group learns it at once."""
        self.members.remove(member)
        for publisher in member.life.publishers:
            publisher.die()
        member.source.kill()
        if member.kind == "environments":  # what lives in its room dies with it
            member.life.left = None
            role_of(member.loop).close()

    def end(self) -> "Chaos":
        """Nobody is left."""
        for member in list(self.members):
            self.bury(member)
        return self

    def restarts(self) -> int:
        """How often something lived its history again."""
        failures = self.rig.events(CallFailed)
        return sum(event.body.code == "history_needed" for event in failures)

    def turn(self, member: Member) -> int:
        try:
            return member.loop.turn(0.0)
        except Killed:
            self.faults["killed in a turn"] += 1
            self.bury(member)
            return 1

    # What may happen

    def act(self) -> None:
        happen = self.random.choices(*zip(*self._events(), strict=True))[0]
        happen()

    def _events(self) -> Iterable[tuple[Callable[[], None], float]]:
        return (
            (self._turn, 60),
            (self._doom, 3),
            (self._kill, 0.7),
            (self._join, 2.5),
            (self._leave, 0.7),
            (self._expel, 1),
            (self._rejoin, 1.5),
            (self._pass_time, 5),
            (self._ask, 4),
            (self._cancel, 0.15),
            (self._ask_again, self.again),
            (self._limit, self.limited),
        )

    def _turn(self) -> None:
        if self.members:
            self.turn(self.random.choice(self.members))

    def _doom(self) -> None:
        """Let somebody die at some later point, whatever it is doing there."""
        if self.members:
            self.random.choice(self.members).life.left = self.random.randint(0, 40)

    def _kill(self) -> None:
        if self.members:
            self.faults["killed between turns"] += 1
            self.bury(self.random.choice(self.members))

    def _join(self) -> None:
        lacking = [k for k in KINDS if all(m.kind != k for m in self.members)]
        kind = self.random.choice(lacking or KINDS)
        if sum(m.kind == kind for m in self.members) < 3:
            self.join(kind)

    def _leave(self) -> None:
        if not self.members:
            return
        member = self.random.choice(self.members)
        if member.zombie:
            return
        self.faults["left"] += 1
        try:
            member.loop.stop(0.0)
            for publisher in member.life.publishers:
                publisher.die()
            self.members.remove(member)
        except Killed:
            self.faults["killed while leaving"] += 1
            self.bury(member)

    def _expel(self) -> None:
        alive = [m for m in self.members if not m.zombie and m.source.positions]
        if alive:
            self.faults["expelled"] += 1
            member = self.random.choice(alive)
            member.zombie = True
            member.source.expel()

    def _rejoin(self) -> None:
        zombies = [m for m in self.members if m.zombie]
        if zombies:
            member = self.random.choice(zombies)
            member.zombie = False
            member.source.rejoin()

    def _pass_time(self) -> None:
        self.rig.clock.pass_by(self.random.choice((0.1, 0.6, 1.1, 1.1, 25.0)))

    def _ask(self) -> None:
        if self.asked < len(self.requests):
            request, home = self.requests[self.asked], self.random.randrange(2)
            self.homes[request.rollout_id] = home
            self.rig.ask(request, home)
            self.asked += 1

    def _ask_again(self) -> None:
        if self.asked:
            self.faults["asked again"] += 1
            request = self.random.choice(self.requests[: self.asked])
            self.rig.ask(request, self.homes[request.rollout_id])

    def _cancel(self) -> None:
        self.faults["cancelled"] += 1
        self.rig.order("cancel", rollout_id=self.random.choice(self.requests).rollout_id)

    def _limit(self) -> None:
        self.faults["limited"] += 1
        user, dice = self.random.choice(USERS), self.random
        quota = Quota(
            user, running=dice.choice((0, 1, 2)), calls_per_s=dice.choice((0.0, 0.3, 2.0))
        )
        topic, unset = self.rig.topics.quotas, dice.random() < 0.2
        self.rig.pen.send(topic, user, None if unset else self.rig.codec.encode(topic, quota))

    # One schedule

    def run(self, steps: int = 250) -> "Chaos":
        for kind in KINDS:
            self.join(kind)
        for _ in range(steps):
            self.act()
        self.settle()
        return self

    def settle(self, rounds: int = 400) -> None:
        """Ask for the rest, replace everybody, and let them work in peace."""
        while self.asked < len(self.requests):
            self._ask()
        for member in list(self.members):
            member.life.left = None
            if member.zombie or self.random.random() < 0.5:
                self.bury(member)
        for kind in KINDS:
            self.join(kind)
        for member in self.members:
            member.life.calm = True
        quiet = 0
        for _ in range(rounds):
            self.rig.clock.pass_by(0.3)
            moved = sum(self.turn(member) for member in list(self.members))
            quiet = quiet + 1 if not moved and self._all_scored() else 0
            if quiet > 5:
                return
        missing = {r.rollout_id for r in self.requests} - self._scored_ids()
        msg = f"no peace after {rounds} rounds; not scored: {sorted(missing)}"
        raise NoPeace(msg)

    def _scored_ids(self) -> set[str]:
        scored = self.rig.read(self.rig.topics.scored, ScoredTrajectory)
        return {s.trajectory.rollout_id for s in scored}

    def _all_scored(self) -> bool:
        return self._scored_ids() >= {r.rollout_id for r in self.requests}

    # What must hold

    def check(self) -> None:
        """Let the audit that users run judge the log, drained."""
        report = self.report()
        assert self.unexplained(report) == []
        assert report.ended == report.accepted == len(self.requests)
        assert report.repeated == self.repeats()
        assert (report.open, report.pending, report.dead_letters) == (0, 0, 0)
        assert report.unreadable == {}

    def report(self) -> Report:
        return audit(self.rig, drained=True)

    def unexplained(self, report: Report) -> list[Breach]:
        return [breach for breach in report.breaches if not self._given_up(breach)]

    def _given_up(self, breach: Breach) -> bool:
        """An owner that finds no commit folds silently and sends only what is still waited for.

        A command that its dead predecessor had given up by its deadline, before it was sent, is
        never sent then. Nothing waits for it.
        """
        log = self.rig.log
        assert isinstance(log, HarmedLog)
        place = breach.topic, breach.partition
        lost = breach.invariant == "I3" and breach.kind == "lost"
        return lost and breach.offset < log.resets.get(place, 0)

    def repeats(self) -> int:
        """Answers that no history needed."""
        answers = self.rig.events(ModelAnswered) + self.rig.events(EnvironmentStepped)
        return len(answers) - len({a.command_id for a in answers})
