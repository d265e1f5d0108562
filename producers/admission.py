"""The rules of admission: how many rollouts may be in the air, and which come next.

Everything here is a function of its arguments. What was published is known again from the log:
request ids are digests of (run, draw, member), so a restart neither forgets nor doubles one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from schemas.ids import digest, request_id
from schemas.messages import RolloutRequest


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

    def grant(self, version: int, accepted: int, running: int) -> int:
        """How many whole groups may start now.

        `version` counts the run's steps. `accepted` counts trajectories that entered the buffer
        less those dropped from it later; `running` those published and not ended.
        """
        by_age = (self.staleness + version + 1) * self.batch - (accepted + running)
        capacity = min(self.max_running - running, by_age)
        return max(0, capacity) // self.group_size


@dataclass(frozen=True, slots=True)
class Draws:
    """A run's endless series of groups: draw n is the same group for ever."""

    template: RolloutRequest
    """What all requests of the run share; ids, seed and group are filled in."""
    run_seed: int
    group_size: int
    seed_range: tuple[int, int]
    """Task seeds are drawn from [first, end), uniformly."""

    def group(self, draw: int) -> list[RolloutRequest]:
        """The members of one group: one task, their own ids."""
        first, end = self.seed_range
        drawn = int.from_bytes(digest("draw", self.run_seed, draw, size_bytes=8), "big")
        seed = first + drawn % (end - first)
        run_id = self.template.run_id
        task = replace(self.template.task, seed=seed, task_id=f"seed-{seed}")
        return [
            replace(
                self.template,
                rollout_id=request_id(run_id, draw, member),
                task=task,
                group_id=group_id(run_id, draw),
                group_size=self.group_size,
                sampling_seed=f"{self.run_seed}/{draw}/{member}",
            )
            for member in range(self.group_size)
        ]


def group_id(run_id: str, draw: int) -> str:
    return f"{run_id}/{draw}"


def draw_of(request: RolloutRequest) -> int:
    """Which draw of its run a request belongs to; -1 where it is none of admission's."""
    run_id, _, draw = request.group_id.rpartition("/")
    return int(draw) if run_id == request.run_id and draw.isdigit() else -1


@dataclass
class Published:
    """The fold of a run's own requests: what need not be published again."""

    run_id: str
    ids: set[str]
    highest_draw: int = -1

    def take(self, request: RolloutRequest) -> None:
        """Note one record of `rollout.requests`."""
        if request.run_id == self.run_id and request.purpose == "train":
            draw = draw_of(request)
            if draw >= 0:
                self.ids.add(request.rollout_id)
                self.highest_draw = max(self.highest_draw, draw)

    def unfinished(self, draws: Draws) -> Iterator[RolloutRequest]:
        """Members of begun groups that a crash kept from being published."""
        for draw in range(self.highest_draw + 1):
            yield from self.missing(draws.group(draw))

    def missing(self, group: Iterable[RolloutRequest]) -> list[RolloutRequest]:
        return [request for request in group if request.rollout_id not in self.ids]
