"""Figures of the workload's hosted rollouts, from the log.

The workload's agents never ask the same twice in a process
(`rollcall.compose.chaos.hosted_agents`), and the last message of a call is that of its ask. So if
two positions of one attempt have the same message, a restarted process asked again and a second
model call was made: if the first was answered, that answer was lost. A call that is sent again
under its own position does not count here; `verify` counts those.
"""

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from rollcall.compose.chaos.workload import AGENT_OF_OTHERS
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.log.reading import read_all
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.messages import (
    CallFailed,
    Event,
    ModelAnswered,
    ModelCall,
    RolloutStarted,
)

DIVERGED = "has diverged from its history"
RESTARTED = "agent_restarted"
DIFFERENCES = 5
"""The most differences that are kept as text."""

Attempt = tuple[str, int]


@dataclass(frozen=True, slots=True)
class HostedFigures:
    """The figures of all hosted rollouts of a log."""

    rollouts: int = 0
    restarts: int = 0
    """Processes that were restarted after a signal ended them."""
    moved: int = 0
    """The number of times that a worker without a session got its history."""
    diverged: int = 0
    """Attempts that ended because a restarted process asked something else; another attempt begins
    if the limits allow it."""
    asked_again: int = 0
    """Model calls for asks that were already answered; there must be none."""
    differences: tuple[str, ...] = ()
    """The first differences of the attempts that diverged."""


@dataclass
class HostedTally:
    """A tally over the whole journal, then over the model calls."""

    rollouts: set[str] = field(default_factory=set)
    moved: set[tuple[Attempt, int, int]] = field(default_factory=set)
    differences: dict[Attempt, str] = field(default_factory=dict)
    _answered: set[tuple[Attempt, int]] = field(default_factory=set)
    _asked: dict[tuple[Attempt, bytes], set[int]] = field(default_factory=dict)

    def event(self, event: Event) -> None:
        """Add an entry of the journal, in order within its partition."""
        body, attempt = event.body, (event.rollout_id, event.attempt)
        if isinstance(body, RolloutStarted) and body.request.agent == AGENT_OF_OTHERS:
            self.rollouts.add(event.rollout_id)
        if event.rollout_id not in self.rollouts:
            return
        if isinstance(body, ModelAnswered):
            self._answered.add((attempt, event.position))
        elif isinstance(body, CallFailed) and body.code == FailureCode.HISTORY_NEEDED:
            self.moved.add((attempt, event.position, event.tries))
        elif isinstance(body, CallFailed) and DIVERGED in body.message:
            self.differences.setdefault(attempt, body.message)

    def call(self, call: ModelCall) -> None:
        """Add a call; calls of other kinds and of other rollouts do not count."""
        if call.kind != "sample" or call.rollout_id not in self.rollouts:
            return
        attempt = call.rollout_id, call.attempt
        said = "".join(message.content for message in call.messages[-1:])
        name = blake2b(f"{call.policy_id}\0{said}".encode(), digest_size=16).digest()
        self._asked.setdefault((attempt, name), set()).add(call.position)

    def asked_again(self) -> int:
        """Return the number of calls after an answered one for the same ask."""
        found = 0
        for (attempt, _), positions in self._asked.items():
            first = [at for at in positions if (attempt, at) in self._answered]
            found += sum(at > min(first) for at in positions) if first else 0
        return found

    def figures(self, restarts: int = 0) -> HostedFigures:
        first = tuple(self.differences.values())[:DIFFERENCES]
        return HostedFigures(
            len(self.rollouts),
            restarts,
            len(self.moved),
            len(self.differences),
            self.asked_again(),
            first,
        )


def figures_of(history: History, policy_id: str, logs: Path) -> HostedFigures:
    """Read a log that is no longer written to, and its workers' logs. Raises Unavailable."""
    tally, topics, codec = HostedTally(), history.topics, history.codec
    for record in read_all(history.log, [topics.events]):
        tally.event(codec.decode(record.value, Event))
    for record in read_all(history.log, [topics.calls(policy_id)]):
        tally.call(codec.decode(record.value, ModelCall))
    return tally.figures(sum(map(restarts_in, sorted(logs.glob("environments-*.log")))))


def restarts_in(log: Path) -> int:
    """Count the processes that a worker restarted, by its log; incomplete lines do not count."""
    with log.open("rb") as lines:
        return sum(_event_of(line) == RESTARTED for line in lines if RESTARTED.encode() in line)


def _event_of(line: bytes) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        return ""
    return str(found.get("event", "")) if isinstance(found, dict) else ""
