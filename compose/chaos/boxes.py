"""Kills of boxes, and of the engine that runs containers; the figures of the shells in them.

A box ends with its first process, as when the host runs out of memory or a user kills by pid; its
worker is not notified. Boxes are found by their leases, including warm ones without a borrower.

A shell's output shows every command that was ever run in it. So a box that died, and was rebuilt
from the commands so far, shows if each was run in it once and in order.
"""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rollcall.compose.chaos.faults import BOXES, ENGINE, KILL, Fault
from rollcall.compose.chaos.own_engine import LOOK_EVERY_S, OwnEngine
from rollcall.compose.chaos.victims import BriefVictim
from rollcall.compose.chaos.workload import SHELL, shown_by_shell
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.log.reading import read_all
from rollcall.sandbox.boxes.box import driver
from rollcall.sandbox.boxes.bubblewrap import MARK
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.process_tree import children
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.messages import CallFailed, Event, RolloutStarted, Trajectory

GROUP = "environments"
"""The group whose progress shows that lost boxes are replaced."""


@dataclass
class BoxVictim(BriefVictim):
    """A random box of the workers, drawn by the fault's time."""

    leases: Leases
    engine: OwnEngine | None = None
    name: str = BOXES
    group: str = GROUP
    killed: int = 0
    _looked: float = 0.0
    _seen: list[int] = field(default_factory=list)

    def fit(self) -> bool:
        """Return True if there is a box; checked at intervals."""
        if time.monotonic() > self._looked + LOOK_EVERY_S:
            self._seen, self._looked = self._first_processes(), time.monotonic()
        return bool(self._seen)

    def begin(self, fault: Fault) -> None:
        """Send SIGKILL to the first process of a box; do nothing if all have just ended."""
        first = self._first_processes()
        if first and _killed(Random(f"box/{fault.at_s}").choice(first)):
            self.killed += 1

    def _first_processes(self) -> list[int]:
        """Return the first processes of all boxes that workers hold, ordered by name."""
        there = first_processes() | (self.engine.first_processes() if self.engine else {})
        held = [lease.ident for lease in self.leases.all() if self.leases.is_live(lease)]
        return [there[ident] for ident in held if there.get(ident)]


@dataclass
class EngineVictim(BriefVictim):
    """The engine of this run; its containers end when it is restarted."""

    engine: OwnEngine
    name: str = ENGINE
    group: str = GROUP

    def fit(self) -> bool:
        return self.engine.answers()

    def back(self) -> bool:
        return self.fit()

    def begin(self, fault: Fault) -> None:
        if fault.kind == KILL:
            self.engine.kill()
        else:
            self.engine.send(signal.SIGSTOP)

    def end(self, fault: Fault) -> None:
        if fault.kind == KILL:
            self.engine.begin()
        else:
            self.engine.send(signal.SIGCONT)

    def look(self) -> None:
        """Raise ServicesError if it has ended by itself."""
        self.engine.look()


@dataclass(frozen=True, slots=True)
class BoxesLeft:
    """The boxes and leases that remain after every worker has ended."""

    boxes: Sequence[str] = ()
    leases: Sequence[str] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.boxes or self.leases)


def boxes_left(leases: Leases, engine: OwnEngine | None) -> BoxesLeft:
    """Return boxes of these leases on this host, and leases without a box."""
    found = set(first_processes()) | set(asyncio.run(driver("bubblewrap").found()))
    found |= set(asyncio.run(driver("local").found()))
    found |= set(engine.first_processes()) if engine else set()
    ours = sorted(ident for ident in found if leases.is_of_here(ident))
    return BoxesLeft(ours, sorted(lease.ident for lease in leases.all()))


def first_processes() -> dict[str, int]:
    """Return the host's pids of the first processes of all namespace boxes."""
    found: dict[str, int] = {}
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            name = cmdline.read_bytes().partition(b"\0")[0].decode(errors="replace")
            if name.startswith(MARK):
                below = children(int(cmdline.parent.name))
                found |= {name.removeprefix(MARK): pid for pid in below[:1]}
    return found


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


Place = tuple[str, int, int]
"""A rollout, its attempt, and the position of an effect (an effect that a program asks for)."""


@dataclass(frozen=True, slots=True)
class BoxFigures:
    """The figures of all rollouts of a log that act in a shell."""

    rollouts: int = 0
    killed: int = 0
    """Boxes whose first process was killed, including idle ones."""
    died: int = 0
    """Commands that failed by the death of their box."""
    again: int = 0
    """The number of these that were tried again."""
    given_up: int = 0
    """Rollouts that failed because the box died at every try."""
    wrong: int = 0
    """Rollouts in whose shells other commands ran than they requested."""
    boxes_left: int = 0
    leases_left: int = 0

    @property
    def ok(self) -> bool:
        return not (self.wrong or self.boxes_left or self.leases_left)


@dataclass
class BoxTally:
    """A tally over the whole journal, then over the trajectories."""

    rollouts: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    _died: set[tuple[Place, int]] = field(default_factory=set)
    _tries: dict[Place, int] = field(default_factory=dict)
    _attempts: dict[str, int] = field(default_factory=dict)

    def event(self, event: Event) -> None:
        """Add an entry of the journal, in order within its partition."""
        body, rollout_id = event.body, event.rollout_id
        if isinstance(body, RolloutStarted) and body.request.task.environment == SHELL:
            self.rollouts.add(rollout_id)
        if rollout_id not in self.rollouts:
            return
        place = rollout_id, event.attempt, event.position
        self._tries[place] = max(event.tries, self._tries.get(place, 0))
        self._attempts[rollout_id] = max(event.attempt, self._attempts.get(rollout_id, 0))
        if isinstance(body, CallFailed) and body.code == FailureCode.BOX_DIED:
            self._died.add((place, event.tries))

    def trajectory(self, trajectory: Trajectory) -> None:
        """Add a trajectory; repetitions change nothing."""
        rollout_id = trajectory.rollout_id
        if rollout_id not in self.rollouts:
            return
        if trajectory.status == "failed" and trajectory.code == FailureCode.BOX_DIED:
            self.given_up.add(rollout_id)
        commands: list[str] = []
        for step in trajectory.steps or ():
            if step.action is None:
                continue
            commands.append(step.action)
            if step.text != shown_by_shell(commands):
                self.wrong.add(rollout_id)

    def figures(self, killed: int = 0, left: BoxesLeft | None = None) -> BoxFigures:
        left = left or BoxesLeft()
        return BoxFigures(
            len(self.rollouts),
            killed,
            len(self._died),
            sum(self._again(*died) for died in self._died),
            len(self.given_up),
            len(self.wrong),
            len(left.boxes),
            len(left.leases),
        )

    def _again(self, place: Place, tries: int) -> bool:
        """Return True if there was another try of an effect, or of the whole rollout."""
        return self._tries[place] > tries or self._attempts[place[0]] > place[1]


def box_figures(history: History, killed: int, left: BoxesLeft) -> BoxFigures:
    """Read a log that is no longer written to. Raises Unavailable."""
    tally, topics, codec = BoxTally(), history.topics, history.codec
    for record in read_all(history.log, [topics.events]):
        tally.event(codec.decode(record.value, Event))
    for record in read_all(history.log, [topics.trajectories]):
        tally.trajectory(codec.decode(record.value, Trajectory))
    return tally.figures(killed, left)
