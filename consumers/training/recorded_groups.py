"""Groups that an earlier run has recorded: where they lie in the log, and which of them come next.

They are read where they are. The stretch ends where the topic did when this run was made, so it is
the same for every trainer of the run, and how far it is drawn is a place in it: what retention has
taken since changes nothing of the rest. A group comes in the order in which its last member lies.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import structlog

from consumers.decode_in_order import decoded
from consumers.log.protocols import Log, Record, TopicPartition
from consumers.log.reading import read_between, spans
from schemas.codec import Codec
from schemas.errors import Refused
from schemas.messages import ScoredTrajectory
from trainer.foreign import Recorded
from trainer.foreign_groups import Mark
from trainer.foreign_samples import judge_recorded
from trainer.samples import Curation, Sample, ScoredPlace, group_of, group_size_of

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Group:
    """A whole group in the log."""

    at: ScoredPlace
    """Offset and partition of its last member: its place in the order."""
    members: tuple[ScoredPlace, ...]
    """Partition and offset."""


@dataclass(eq=False)
class EarlierRun:
    """Draws the recorded groups of a run, once each, or several times over."""

    log: Log
    codec: Codec
    topic: str
    scoring_id: str
    rule: Recorded
    curation: Curation
    ends: Mapping[TopicPartition, int]
    """Where every partition ended when this run was made."""
    keeps: Callable[[Sequence[Sample]], bool] = lambda samples: True
    """What the filters of groups say."""
    mark: Mark = ()
    _groups: list[_Group] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises Refused where there is nothing, Unavailable."""
        self._groups = self._whole_groups()
        where = f"run {self.rule.run!r} scored under {self.scoring_id!r}"
        if self._groups or self.mark:
            log.info("recorded_groups_found", run=self.rule.run, groups=len(self._groups))
            return
        msg = (
            f"[learner.recorded]: {self.topic} has no whole group of {where} in this stretch that "
            "can be trained on; name another run or other offsets, or score it by rollcall rescore"
        )
        raise Refused(msg)

    def ready(self, groups: int) -> int:
        """How many of so many there are."""
        return len(list(islice(self._next(), groups)))

    def draw(self, groups: int) -> list[Sample]:
        """The next of them, in their order. Raises Unavailable, and nothing is drawn then."""
        drawn = list(islice(self._next(), groups))
        found = self._read([group for _, group in drawn])
        if drawn:
            again, group = drawn[-1]
            self.mark = (again, *group.at)
        return [
            replace(found[place], uses=again)
            for again, group in drawn
            if all(place in found for place in group.members)  # retention may have taken some
            for place in group.members
        ]

    def _next(self) -> Iterator[tuple[int, _Group]]:
        """How often each was drawn before, and the group."""
        first, *at = self.mark or (0, -1, -1)
        again = first
        while self._groups and (again < self.rule.passes or not self.rule.passes):
            for group in self._groups:
                if again > first or group.at > (at[0], at[1]):
                    yield again, group
            again += 1

    def _whole_groups(self) -> list[_Group]:
        held: dict[str, dict[str, Sample]] = {}
        whole: set[str] = set()
        groups: list[_Group] = []
        for record in self._records(*self._extent()):
            scored = self._ours(record)
            sample = self._sample(scored, record) if scored is not None else None
            if scored is None or sample is None or group_of(scored) in whole:
                continue  # what is written again is the same group
            members = held.setdefault(group_of(scored), {})
            members.setdefault(scored.trajectory.rollout_id, sample)
            if len(members) == group_size_of(scored):
                samples = list(held.pop(group_of(scored)).values())
                whole.add(group_of(scored))
                if self.keeps(samples):
                    places = tuple((each.partition, each.offset) for each in samples)
                    groups.append(_Group((record.offset, record.partition), places))
        return sorted(groups, key=lambda group: group.at)

    def _extent(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """From where to where each partition is read."""
        given = self.rule.stretches()
        starts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        for number, (low, end) in self.log.bounds(self.topic).items():
            first, last = given.get(number, (0, end)) if given else (0, end)
            tp = self.topic, number
            if not given or number in given:
                starts[tp] = max(low, first)
                ends[tp] = min(last, end, self.ends.get(tp, 0 if self.ends else end))
        return starts, ends

    def _records(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> Iterator[Record]:
        return chain.from_iterable(read_between(self.log, starts, ends))

    def _ours(self, record: Record) -> ScoredTrajectory | None:
        """What a record holds; None for what is of no drawn group, without decoding it."""
        if not (record.key or b"").startswith(self.rule.run.encode()):
            return None
        scored = decoded(self.codec, record, ScoredTrajectory)
        if scored is None or scored.scoring_id != self.scoring_id:
            return None
        request = scored.trajectory.request
        return scored if request is not None and request.run_id == self.rule.run else None

    def _sample(self, scored: ScoredTrajectory, record: Record) -> Sample | None:
        return judge_recorded(scored, record.partition, record.offset, self.curation).sample

    def _read(self, groups: Sequence[_Group]) -> dict[ScoredPlace, Sample]:
        wanted = {place for group in groups for place in group.members}
        stretches = (((self.topic, number), at, at) for number, at in wanted)
        found = {}
        for record in self._records(*spans(self.log, stretches)):
            place = record.partition, record.offset
            scored = self._ours(record) if place in wanted else None
            sample = self._sample(scored, record) if scored is not None else None
            if sample is not None:
                found[place] = sample
        return found
