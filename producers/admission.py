"""The rules of admission: how many rollouts may be in the air, and which come next.

Everything here is a function of its arguments. What was published since the checkpoint is known
again from the log: request ids are digests of (run, draw, member), so a restart neither forgets nor
doubles one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from schemas.errors import Refused
from schemas.ids import digest, draw_of, group_id, parted_id, request_id
from schemas.messages import RolloutRequest, Task

MOST_MEMBERS = 4096
"""Of a group whose size only its requests tell."""


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """AReaL's staleness manager (§5.1), counting rollouts everywhere.

    capacity = min( max_running − running, (η + v + 1)·B − (accepted + running) ), floored to
    whole groups; negative grants nothing.
    """

    staleness: int
    """η, in versions."""
    batch: int
    """B, rollouts per optimiser step."""
    max_running: int
    group_size: int
    over_provision: float = 1.0
    """Above 1, so many times B are kept started, whatever their age: what a batch leaves unfinished
    is cancelled and gone on with (APRIL)."""
    refills: bool = False
    """Whether as many are kept in flight as may be, whatever a batch is (C3PO++)."""

    def __post_init__(self) -> None:
        if self.max_running < self.group_size:
            msg = (
                f"max_running is {self.max_running}, fewer than the group_size {self.group_size}; "
                "no group could ever start; raise it"
            )
            raise Refused(msg)

    def grant(self, version: int, accepted: int, running: int) -> int:
        """How many whole groups may start now.

        `version` counts the run's steps. `accepted` counts the batches of these steps, B each,
        and what is in the buffer now; `running` those published that are in neither.
        """
        started = accepted + running
        bound = (self.staleness + version + 1) * self.batch - started
        if self.over_provision > 1:
            groups = math.ceil(self.over_provision * self.batch / self.group_size)
            bound = version * self.batch + groups * self.group_size - started
        room = self.max_running - running
        capacity = room if self.refills else min(room, bound)
        return max(0, capacity) // self.group_size

    def batches_ahead(self, version: int, started: int) -> int:
        """How many whole batches, that of the next step among them, are there for those before.

        With `started` as `grant` counts it, of rollouts before the one that is asked about.
        """
        return max(0, started // self.batch - version)


@dataclass(frozen=True, slots=True)
class Draws:
    """A run's endless series of groups: draw n is the same group for ever."""

    template: RolloutRequest
    """What all requests of the run share; ids, seed and group are filled in."""
    run_seed: int
    group_size: int
    seed_range: tuple[int, int]
    """Task seeds are drawn from [first, end), uniformly."""
    tasks: tuple[Task, ...] = ()
    """What a seed stands for where it is the number of a task: `task_of_seed`."""

    def ids(self, draw: int) -> set[str]:
        """Of the members of one group."""
        run_id = self.template.run_id
        return {request_id(run_id, draw, member) for member in range(self.group_size)}

    def group(self, draw: int) -> list[RolloutRequest]:
        """The members of one group: one task, their own ids."""
        return self.members(draw, self.request(draw, self.seed(draw)))

    def seed(self, draw: int, refusals: int = 0) -> int:
        """The task seed of a draw, or the one that follows so many that were refused for it."""
        first, end = self.seed_range
        place = ("draw", self.run_seed, draw) + ((refusals,) if refusals else ())
        return first + int.from_bytes(digest(*place, size_bytes=8), "big") % (end - first)

    def request(self, draw: int, seed: int) -> RolloutRequest:
        """What all members of a draw share where its task is that of a seed."""
        return replace(
            self.template,
            task=task_of_seed(self.template.task, self.tasks, seed),
            group_id=group_id(self.template.run_id, draw),
            group_size=self.group_size,
        )

    def members(self, draw: int, shared: RolloutRequest) -> list[RolloutRequest]:
        """One request for each member of a draw, of what all of them share."""
        return [
            replace(
                shared,
                rollout_id=request_id(self.template.run_id, draw, member),
                sampling_seed=f"{self.run_seed}/{draw}/{member}",
            )
            for member in range(shared.group_size)
        ]

    def task_number(self, seed: int) -> int:
        """Names the task of a seed: seeds that stand for one task share its number."""
        return seed % len(self.tasks) if self.tasks else seed

    def task_count(self) -> int:
        """How many tasks there are to draw from."""
        first, end = self.seed_range
        return min(len(self.tasks), end - first) if self.tasks else end - first


def task_of_seed(shared: Task, tasks: Sequence[Task], seed: int) -> Task:
    """The task of a seed: that which all share, or one of several, in turn."""
    task = tasks[seed % len(tasks)] if tasks else shared
    return replace(task, seed=seed, task_id=f"{task.task_id or 'seed'}-{seed}")


@dataclass
class Published:
    """The fold of a run's own requests from one draw on: what need not be published again.

    A request is one of a draw's if its id is: anybody may write the name of a group.
    """

    run_id: str
    first: int = 0
    group_size: int = 0
    """The most members that a draw can have; 0 where only its requests tell."""
    ids: set[str] = field(default_factory=set)
    highest_draw: int = -1
    drawn: dict[int, RolloutRequest] = field(default_factory=dict)
    """Of each draw that was met a request: it says what the draw is, whoever has drawn it."""
    continued: list[tuple[int, str]] = field(default_factory=list)
    """Draws and ids of requests that go on with another one."""
    _met: set[int] = field(default_factory=set)

    def take(self, request: RolloutRequest) -> int:
        """Note one record of `rollout.requests`; returns its draw, -1 where it has none."""
        ours = request.run_id == self.run_id and request.purpose == "train"
        draw = draw_of(self.run_id, request.group_id) if ours else -1
        base, generation = parted_id(request.rollout_id)
        if draw < 0 or base not in self._members(draw, request.group_size):
            return -1
        goes_on = generation > 0
        if not goes_on:
            self.drawn.setdefault(draw, request)
        if draw >= self.first:
            self.ids.add(request.rollout_id)
            self.highest_draw = max(self.highest_draw, draw)
            self._met.add(draw)
        if goes_on:
            self.continued.append((draw, request.rollout_id))
        return draw

    def _members(self, draw: int, claimed: int) -> set[str]:
        size = self.group_size or min(claimed, MOST_MEMBERS)
        return {request_id(self.run_id, draw, member) for member in range(size)}

    def empty_seats(self) -> int:
        """Seats that draws which were met leave empty, as their groups are smaller."""
        sizes = (each.group_size for draw, each in self.drawn.items() if draw >= self.first)
        return sum(self.group_size - size for size in sizes if 1 <= size < self.group_size)

    def keep_below(self, most: int) -> int:
        """Count no draw from `most` on as published; returns how many that were met are let go."""
        beyond = {draw for draw in self._met if draw >= most}
        self._met -= beyond
        self.drawn = {draw: each for draw, each in self.drawn.items() if draw < most}
        self.highest_draw = max(self._met, default=-1)
        return len(beyond)

    def unfinished(
        self, group: Callable[[int], Iterable[RolloutRequest]]
    ) -> Iterator[RolloutRequest]:
        """Members of begun groups that a crash kept from being published; `group` by draw."""
        for draw in range(self.first, self.highest_draw + 1):
            yield from (r for r in group(draw) if r.rollout_id not in self.ids)
