"""Figures of the workload's shells, from the log, and the remains of their boxes.

A shell's output shows every command that was ever run in it. So a box that died, and was rebuilt
from the commands so far, shows if each was run in it once and in order.
"""

from dataclasses import dataclass, field

from rollcall.compose.chaos.box_victims import BoxesLeft
from rollcall.compose.chaos.workload import SHELL, shown_by_shell
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.log.reading import read_all
from rollcall.sandbox.boxes.box import BOX_DIED
from rollcall.schemas.messages import CallFailed, Event, RolloutStarted, Trajectory

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
        if isinstance(body, CallFailed) and body.code == BOX_DIED:
            self._died.add((place, event.tries))

    def trajectory(self, trajectory: Trajectory) -> None:
        """Add a trajectory; repetitions change nothing."""
        rollout_id = trajectory.rollout_id
        if rollout_id not in self.rollouts:
            return
        if trajectory.status == "failed" and trajectory.code == BOX_DIED:
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
