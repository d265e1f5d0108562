"""Replay of used samples: recent groups, and single successes for failed groups.

Invariant: replayed samples were used and consumed before, and admission does not count them. They
keep their own versions and log-probabilities, so losses and corrections see their age. A checkpoint
stores only their offsets; the records are read again from the log.

Source: AstraFlow (replay mix), DART, arXiv 2509.23866 (experience pool of successes).
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rollcall.trainer.config.tables import ReplayRule
from rollcall.trainer.rules.samples import Sample, ScoredPlace, group_size_of


@dataclass(frozen=True, slots=True)
class ReplayState:
    """The kept samples in a checkpoint, as places in `trajectories.scored`."""

    groups: tuple[tuple[int, tuple[ScoredPlace, ...]], ...] = ()
    """The number of uses of each group, and its members; the oldest first."""
    successes: tuple[tuple[int, ScoredPlace], ...] = ()
    """The number of uses of each success, and its place."""
    recorded: tuple[int, ...] = ()
    """The position in the groups of an earlier run; empty: none was drawn."""

    def places(self) -> set[ScoredPlace]:
        """Return all places that have to be read again."""
        members = {place for _, places in self.groups for place in places}
        return members | {place for _, place in self.successes}


@dataclass(eq=False)
class Replay:
    """The used samples that may be used again."""

    rule: ReplayRule
    _groups: deque[tuple[Sample, ...]] = field(default_factory=deque)
    _successes: OrderedDict[str, Sample] = field(default_factory=OrderedDict)

    def draw(self, groups: int, v_now: int) -> list[Sample]:
        """Return members of up to `groups` groups, the last used first; count it as a use."""
        self._forget_old(v_now)
        drawn: list[Sample] = []
        kept: deque[tuple[Sample, ...]] = deque()
        while self._groups:
            group = self._groups.pop()
            if groups > 0:
                groups -= 1
                group = _used_again(group)
                drawn += group
            # The group was trained on `uses` + 1 times; appendleft keeps the order of age.
            if group[0].uses < self.rule.max_uses - 1:
                kept.appendleft(group)
        self._groups = kept
        return drawn

    def keep(self, samples: Sequence[Sample]) -> None:
        """Keep a group after its first use."""
        if self.rule.ratio > 0 and self.rule.max_uses > 1 and samples:
            self._groups.append(tuple(samples))
            while len(self._groups) > self.rule.capacity:
                self._groups.popleft()
        for sample in samples:
            if self.rule.pool and sample.reward > 0:
                self._successes[task_of(sample)] = sample
                self._successes.move_to_end(task_of(sample))
                while len(self._successes) > self.rule.pool:
                    self._successes.popitem(last=False)

    def success_for(self, samples: Sequence[Sample]) -> Sample | None:
        """Return the stored success of a failed group's task; None for other groups."""
        if not (self.rule.pool and samples and all_failed(samples)):
            return None
        return self._successes.get(task_of(samples[0]))

    def success_added(self, samples: Sequence[Sample], taken: Iterable[Sample]) -> list[Sample]:
        """Return the stored success for a failed group, unless the batch contains it already."""
        stored = self.success_for(samples)
        if stored is None or any(_place(stored) == _place(sample) for sample in taken):
            return []
        (borrowed,) = _used_again((stored,))
        self._successes[task_of(borrowed)] = borrowed
        return [borrowed]

    def forget(self, samples: Iterable[Sample]) -> None:
        """Remove samples that cannot be trained on."""
        gone = {_place(sample) for sample in samples}
        self._groups = deque(
            group for group in self._groups if not any(_place(s) in gone for s in group)
        )
        for task, sample in list(self._successes.items()):
            if _place(sample) in gone:
                del self._successes[task]

    def book(self) -> ReplayState:
        """Return the state for a checkpoint."""
        return ReplayState(
            tuple((group[0].uses, tuple(map(_place, group))) for group in self._groups),
            tuple((sample.uses, _place(sample)) for sample in self._successes.values()),
        )

    def restore(
        self, book: ReplayState, read: Callable[[ScoredPlace], Sample | None]
    ) -> list[ScoredPlace]:
        """Restore a checkpoint's state; return the places for which `read` has no sample."""
        gone = []
        for uses, places in book.groups:
            found = [read(place) for place in places]
            members = tuple(replace(s, uses=uses) for s in found if s is not None)
            if len(members) == len(places):
                self._groups.append(members)
            else:
                gone += [place for place, s in zip(places, found, strict=True) if s is None]
        for uses, place in book.successes:
            sample = read(place)
            if sample is None:
                gone.append(place)
            else:
                self._successes[task_of(sample)] = replace(sample, uses=uses)
        return gone

    def _forget_old(self, v_now: int) -> None:
        oldest = v_now - self.rule.max_age
        self._groups = deque(
            group for group in self._groups if min(s.min_version for s in group) >= oldest
        )
        for task, sample in list(self._successes.items()):
            if sample.min_version < oldest:
                del self._successes[task]


def adopted(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples with each lone success joined to the failed group of its task.

    It depends on the batch alone, so that reproducing a step forms the same groups.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    failed = [members for members in groups.values() if all_failed(members)]
    joins: dict[ScoredPlace, str] = {}
    for members in groups.values():
        lone = members[0]
        if len(members) > 1 or lone.reward <= 0 or group_size_of(lone.scored) < 2:
            continue
        for other in failed:
            if task_of(other[0]) == task_of(lone):
                joins[_place(lone)] = other[0].group
                failed.remove(other)
                break
    return [replace(s, compared_in=joins[_place(s)]) if _place(s) in joins else s for s in samples]


def all_failed(samples: Sequence[Sample]) -> bool:
    """Return True if no sample of a group has a reward above 0."""
    return all(sample.reward <= 0 for sample in samples)


def task_of(sample: Sample) -> str:
    """Return the task name of a sample; seeds of the same task of a folder share it."""
    request = sample.scored.trajectory.request
    if request is None:
        return ""
    name = request.task.task_id.removesuffix(f"-{request.task.seed}")
    return name if name != "seed" else request.task.task_id


def _used_again(group: tuple[Sample, ...]) -> tuple[Sample, ...]:
    return tuple(replace(sample, uses=sample.uses + 1) for sample in group)


def _place(sample: Sample) -> ScoredPlace:
    return sample.partition, sample.offset
