"""Journals written by hand and by dice, and what folding them gives."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from rollcall.consumers.agents.effects import Program
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.journal import Journal
from rollcall.consumers.agents.fold.rollout import Output
from rollcall.consumers.agents.programs import SHIPPED
from rollcall.consumers.agents.watermark import Watermark
from rollcall.consumers.loop.answers import event_of
from rollcall.inference.stream_text import cut_at
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import (
    AttemptStarted,
    CallFailed,
    DeadlinePassed,
    EnvironmentStep,
    EnvironmentStepped,
    Event,
    Limits,
    ModelAnswered,
    ModelCall,
    RolloutCancelled,
    RolloutFinished,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
    Trajectory,
)
from rollcall.schemas.messages import Task as WireTask
from rollcall.schemas.packed import pack_ids, pack_logprobs
from tests.journals.programs import DICED

CODEC = Codec(LocalRegistry())
Command = ModelCall | EnvironmentStep


@dataclass(frozen=True)
class Entry:
    """One record of a journal."""

    offset: int
    at_ms: int
    event: Event


def programs_of(programs: dict[str, Program]) -> Callable[[str], Program]:
    def program_of(name: str) -> Program:
        if name not in programs:
            msg = f"unknown program {name!r}"
            raise Refused(msg)
        return programs[name]

    return program_of


def world_of(
    programs: dict[str, Program], guard: AbstractContextManager[object] | None = None
) -> FoldContext:
    return FoldContext(programs_of({**SHIPPED, **programs}), Random, guard or nullcontext())


def request(rollout_id: str = "r", agent: str = "react", **fields: object) -> RolloutRequest:
    """A request for a task in an environment that is never really there."""
    task = WireTask("maze", '{"size":3}', seed=5, prompt="Go!", system="Be brief.")
    return RolloutRequest(rollout_id, task, agent, policy_id="p", **fields)


def said(call: ModelCall, text: str, version: int = 7) -> ModelAnswered:
    """One token per character, so that tokens can be told apart by eye; none where it counts."""
    text = text if call.sampling.max_tokens else ""
    text, stopped_by = cut_at(text, call.sampling.stop)
    added = "".join(message.content for message in call.messages)
    return ModelAnswered(
        text,
        pack_ids(map(ord, added)),
        pack_ids(map(ord, text)),
        pack_logprobs([-0.5] * len(text)),
        pack_ids([version] * len(text)),
        "stop",
        call.policy_id,
        call.sequence,
        engine="by hand",
        stopped_by=stopped_by,
    )


def sampled_by(version: int) -> ModelAnswered:
    """An answer of one token, which this version of the policy `policy` has sampled."""
    tokens = pack_ids([1]), pack_logprobs([0.0]), pack_ids([version])
    return ModelAnswered("a", b"", *tokens, "stop", "policy", 0)


def answer_to(command: Command, body: ModelAnswered | EnvironmentStepped | CallFailed) -> Event:
    return event_of(command, body, "somebody")


class Hand:
    """A journal written by hand: what is read goes in, what it gives rise to comes out."""

    def __init__(
        self,
        *programs: Program,
        guard: AbstractContextManager[object] | None = None,
        last: int | None = None,
        rules: int = 0,
    ) -> None:
        self.rules = rules
        named = {program.__name__: program for program in programs}
        self.journal = Journal(3, world_of(named, guard), "owner", Watermark(0, last))
        self.entries: list[Entry] = []
        self.now_ms = 1_000_000
        self._requests = 0

    def read(self, event: Event) -> list[Output]:
        """Read one event, ten milliseconds after the last."""
        self.now_ms += 10
        entry = Entry(len(self.entries), self.now_ms, event)
        self.entries.append(entry)
        return list(self.journal.apply_event(event, entry.offset, entry.at_ms).outputs)

    def start(self, asked: RolloutRequest | str = "react", **fields: object) -> list[Output]:
        if isinstance(asked, str):
            asked = request(agent=asked, **fields)
        body = RolloutStarted(asked, self._requests, self._requests, rules=self.rules)
        self._requests += 1
        return self.read(Event.decision(asked.rollout_id, 1, "owner", body))

    def say(self, command: Output, text: str) -> list[Output]:
        assert isinstance(command, ModelCall)
        return self.read(answer_to(command, said(command, text)))

    def show(self, command: Output, text: str = "a room", **fields: object) -> list[Output]:
        assert isinstance(command, EnvironmentStep)
        return self.read(answer_to(command, EnvironmentStepped(text, **fields)))

    def fail(
        self, command: Output, code: str = "raised", *, retriable: bool = True
    ) -> list[Output]:
        assert isinstance(command, Command)
        return self.read(answer_to(command, CallFailed(code, f"it was {code}", retriable)))

    def end(self, decision: Output) -> Trajectory:
        """Read a decision back; the trajectory it gives rise to."""
        assert isinstance(decision, Event)
        trajectory = self.read(decision)[0]
        assert isinstance(trajectory, Trajectory)
        return trajectory


@dataclass
class Dice:
    """Several rollouts lived through at random: answers in any order, twice, late, by zombies.

    What the owner reads goes through its own fold; commands it sends and decisions it writes wait
    until the dice let them be answered or appended.
    """

    random: Random
    rollouts: int = 3
    noise: float = 0.35
    entries: list[Entry] = field(default_factory=list)
    counted: list[Entry] = field(default_factory=list)
    outputs: list[tuple[int, Output]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = world_of(DICED)
        self.journal = Journal(0, self.world, "owner")
        self._offset = 0
        self._now_ms = 1_000_000
        self._pending: list[Output] = []
        self._answered: list[Event] = []
        self._next_request = 0

    def live(self) -> "Dice":
        while self._next_request < self.rollouts or self.journal.open:
            for event in self._next():
                self._append(event)
        return self

    def _append(self, event: Event) -> None:
        self._offset += self.random.choice((0, 0, 0, 1, 3))
        self._now_ms += self.random.choice((0, 1, 50, 4000))
        entry = Entry(self._offset, self._now_ms, event)
        self._offset += 1
        taken = self.journal.apply_event(event, entry.offset, entry.at_ms)
        outputs = taken.outputs
        self.entries.append(entry)
        if taken.counted or isinstance(event.body, RolloutStarted | RolloutRefused):
            self.counted.append(entry)
        self.outputs += [(entry.offset, output) for output in outputs]
        self._pending += [
            e
            for e in outputs
            if not isinstance(e, Trajectory) and getattr(e, "kind", "") not in ("abort", "close")
        ]

    def _next(self) -> Iterable[Event]:
        dice = self.random
        if self.entries and dice.random() < self.noise:
            return [self._noise()]
        if self._next_request < self.rollouts and (dice.random() < 0.2 or not self._pending):
            return self._start()
        if not self._pending:
            for rollout in self.journal.open.values():
                self._pending += rollout.resend()
            return []
        chosen = self._pending.pop(dice.randrange(len(self._pending)))
        event = chosen if isinstance(chosen, Event) else self._work(chosen)
        self._answered.append(event)
        return [event, event] if dice.random() < 0.2 else [event]

    def _start(self) -> list[Event]:
        dice, number = self.random, self._next_request
        self._next_request += 1
        rollout_id = f"r{number}"
        if number and dice.random() < 0.15:
            rollout_id = f"r{number - 1}"  # one id, asked for twice
        if dice.random() < 0.1:
            body = RolloutRefused("unreadable", "bytes", number, number)
            return [Event.decision(rollout_id, 1, "starter", body)]
        limits = Limits(
            max_turns=dice.choice((2, 4)),
            max_tokens=dice.choice((0, 12)),
            max_tries=dice.choice((1, 2, 3)),
            max_attempts=dice.choice((1, 2, 3)),
        )
        asked = request(rollout_id, dice.choice(("react", *DICED)), limits=limits)
        body = RolloutStarted(asked, dice.randint(0, number), number)
        return [Event.decision(rollout_id, 1, "starter", body)]

    def _work(self, command: Command) -> Event:
        """What some worker answers to a command; now and then it fails."""
        dice = self.random
        if dice.random() < 0.2:
            codes = ("raised", "expired", "deadline", "history_needed", "session_lost")
            code = dice.choice(codes[:3] if isinstance(command, ModelCall) else codes)
            retriable = code != "session_lost" and dice.random() < 0.8
            return answer_to(command, CallFailed(code, f"it was {code}", retriable))
        return answer_to(command, self._done(command))

    def _done(self, command: Command) -> ModelAnswered | EnvironmentStepped:
        dice = self.random
        if isinstance(command, ModelCall):
            return said(command, dice.choice(("yes", "no", "perhaps")), dice.randrange(3))
        done = command.kind == "step" and dice.random() < 0.3
        return EnvironmentStepped(f"room {dice.randrange(9)}", dice.random(), done)

    def _noise(self) -> Event:
        """An event that a history must survive: late, twice, made up, or from a zombie."""
        dice = self.random
        known = dice.choice(self.entries).event
        kind = dice.randrange(7)
        if kind == 0 and self._answered:  # somebody did the work once more, with another outcome
            again = dice.choice(self._answered)
            if isinstance(again.body, ModelAnswered):
                return replace(again, body=replace(again.body, text="zombie"), written_by="z")
            return again
        if kind == 1:  # a zombie opens an attempt
            body = AttemptStarted("zombie")
            return Event.decision(known.rollout_id, dice.randint(1, 4), "z", body)
        if kind == 2 and dice.random() < 0.3:  # an answer to what nobody asked
            return replace(known, position=known.position + dice.randrange(3), body_digest=b"?")
        if kind == 3 and dice.random() < 0.15:
            body = dice.choice((RolloutCancelled("enough"), DeadlinePassed(3600.0)))
            return Event.decision(known.rollout_id, 1, "z", body)
        if kind == 4:  # a zombie that ended an attempt which is no more
            body = RolloutFinished("finished", "", "", "zombie")
            return Event.decision(known.rollout_id, max(1, known.attempt - 1), "z", body)
        return known


def fold(
    entries: Sequence[Entry], world: FoldContext, begin: Watermark | None = None
) -> tuple[Journal, list[tuple[int, Output]]]:
    """Fold as a reader that begins there; the effects by the offset of their cause."""
    journal = Journal(0, world, "owner", begin)
    effects: list[tuple[int, Output]] = []
    for entry in entries:
        needed = journal.needs(entry.offset, entry.event.rollout_id.encode())
        if needed and (begin is None or entry.offset >= begin.low):
            taken = journal.apply_event(entry.event, entry.offset, entry.at_ms)
            effects += [(entry.offset, effect) for effect in taken.outputs]
    return journal, effects


def trajectories(effects: Iterable[tuple[int, Output]]) -> list[bytes]:
    return [CODEC.encode("t", e) for _, e in effects if isinstance(e, Trajectory)]


def entry(body: Any, position: int = -1, attempt: int = 1, tries: int = 0) -> Event:
    """An entry of the rollout `r`, written by somebody; with ids where it has a position."""
    ids = (b"\x01" * 16, b"\xab" * 16) if position >= 0 else (b"", b"")
    return Event("r", attempt, position, tries, *ids, "somebody", body)
