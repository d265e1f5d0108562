"""The rules of admission: how many rollouts may be in flight, and which come next.

Everything here is a function of its arguments. Requests published since the checkpoint are found
in the log: request ids are digests of (run, draw, member), so a restart neither forgets nor
repeats one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import digest, draw_of, group_id, request_id, split_continued_id
from rollcall.schemas.messages import RolloutRequest, Task

MOST_MEMBERS = 4096
"""The most members of a group whose size is known only from its requests."""


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """AReaL's staleness manager (§5.1), with all counts in rollouts.

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
    """The multiple of B kept started if above 1, whatever the staleness: rollouts that a batch
    leaves unfinished are cancelled and continued (APRIL)."""
    refills: bool = False
    """True if `max_running` are kept in flight, whatever the size of a batch (C3PO++)."""

    def __post_init__(self) -> None:
        if self.max_running < self.group_size:
            msg = (
                f"max_running is {self.max_running}, fewer than the group_size {self.group_size}; "
                "no group could ever start; raise it"
            )
            raise Refused(msg)

    def grant(self, version: int, accepted: int, running: int) -> int:
        """Return how many whole groups may start now.

        `version` is the number of the run's steps. `accepted` counts their batches, B each,
        and the buffer; `running` counts published rollouts that are in neither.
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
        """Return how many whole batches precede a rollout, with the batch of the next step.

        `started` counts the rollouts before it, as in `grant`.
        """
        return max(0, started // self.batch - version)


@dataclass(frozen=True, slots=True)
class Draws:
    """A run's endless series of groups: a draw's number fixes its group."""

    template: RolloutRequest
    """The common part of all requests of the run; ids, seed and group are filled in."""
    run_seed: int
    group_size: int
    seed_range: tuple[int, int]
    """Task seeds are drawn from [first, end), uniformly."""
    tasks: tuple[Task, ...] = ()
    """The tasks that seeds select, if there are several: `task_of_seed`."""

    def ids(self, draw: int) -> set[str]:
        """Return the ids of the members of one group."""
        run_id = self.template.run_id
        return {request_id(run_id, draw, member) for member in range(self.group_size)}

    def group(self, draw: int) -> list[RolloutRequest]:
        """Return the members of one group: one task, their own ids."""
        return self.members(draw, self.request(draw, self.seed(draw)))

    def seed(self, draw: int, refusals: int = 0) -> int:
        """Return the task seed of a draw, after so many refused seeds."""
        first, end = self.seed_range
        place = ("draw", self.run_seed, draw) + ((refusals,) if refusals else ())
        return first + int.from_bytes(digest(*place, size_bytes=8), "big") % (end - first)

    def request(self, draw: int, seed: int) -> RolloutRequest:
        """Return the common request of a draw's members, with the task of a seed."""
        return replace(
            self.template,
            task=task_of_seed(self.template.task, self.tasks, seed),
            group_id=group_id(self.template.run_id, draw),
            group_size=self.group_size,
        )

    def members(self, draw: int, shared: RolloutRequest) -> list[RolloutRequest]:
        """Return one request for each member of a draw, from the common one."""
        return [
            replace(
                shared,
                rollout_id=request_id(self.template.run_id, draw, member),
                sampling_seed=f"{self.run_seed}/{draw}/{member}",
            )
            for member in range(shared.group_size)
        ]

    def task_number(self, seed: int) -> int:
        """Return the number of a seed's task, which all seeds of that task share."""
        return seed % len(self.tasks) if self.tasks else seed

    def task_count(self) -> int:
        """Return the number of tasks to draw from."""
        first, end = self.seed_range
        return min(len(self.tasks), end - first) if self.tasks else end - first


def task_of_seed(shared: Task, tasks: Sequence[Task], seed: int) -> Task:
    """Return the task of a seed: the common one, or one of several in turn."""
    task = tasks[seed % len(tasks)] if tasks else shared
    return replace(task, seed=seed, task_id=f"{task.task_id or 'seed'}-{seed}")


@dataclass
class PublishedRequests:
    """The fold of a run's own requests from one draw on, which are not published again.

    A request belongs to a draw if its id does, since a group's name can be written in any request.
    """

    run_id: str
    first: int = 0
    group_size: int = 0
    """The most members of a draw; 0 if it is known only from its requests."""
    ids: set[str] = field(default_factory=set)
    highest_draw: int = -1
    drawn: dict[int, RolloutRequest] = field(default_factory=dict)
    """One request of each draw that was found: it defines the draw, from any writer."""
    continued: list[tuple[int, str]] = field(default_factory=list)
    """Draws and ids of requests that continue another one."""
    _met: set[int] = field(default_factory=set)

    def take(self, request: RolloutRequest) -> int:
        """Note one record of `rollout.requests`; return its draw, -1 if it has none."""
        ours = request.run_id == self.run_id and request.purpose == "train"
        draw = draw_of(self.run_id, request.group_id) if ours else -1
        base, generation = split_continued_id(request.rollout_id)
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
        """Count the seats that smaller groups leave empty."""
        sizes = (each.group_size for draw, each in self.drawn.items() if draw >= self.first)
        return sum(self.group_size - size for size in sizes if 1 <= size < self.group_size)

    def keep_below(self, most: int) -> int:
        """Drop the draws from `most` on; return how many of them were found."""
        beyond = {draw for draw in self._met if draw >= most}
        self._met -= beyond
        self.drawn = {draw: each for draw, each in self.drawn.items() if draw < most}
        self.highest_draw = max(self._met, default=-1)
        return len(beyond)

    def unfinished(
        self, group: Callable[[int], Iterable[RolloutRequest]]
    ) -> Iterator[RolloutRequest]:
        """Yield members of begun groups that a crash left unpublished; `group` maps a draw."""
        for draw in range(self.first, self.highest_draw + 1):
            yield from (r for r in group(draw) if r.rollout_id not in self.ids)
