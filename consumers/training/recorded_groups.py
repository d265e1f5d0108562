"""Groups that an earlier run has recorded: their offsets, and which of them come next.

They are read in place. The range ends where the topic ended when this run was made, so it is the
same for every trainer of the run; the position of drawing is an offset in it, so what retention
deletes later does not change the rest. Groups are ordered by the offset of their last member.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import structlog

from rollcall.consumers.log.protocols import Log, Record, TopicPartition
from rollcall.consumers.log.reading import read_between, spans
from rollcall.consumers.loop.decode_in_order import decoded
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.tables import Recorded
from rollcall.trainer.curation.borrowed_groups import Mark
from rollcall.trainer.curation.borrowed_samples import judge_recorded
from rollcall.trainer.rules.samples import Sample, ScoredPlace, group_of, group_size_of

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Group:
    """A whole group in the log."""

    at: ScoredPlace
    """Offset and partition of its last member, which define the order of groups."""
    members: tuple[ScoredPlace, ...]
    """Partition and offset."""


@dataclass(eq=False)
class EarlierRun:
    """Draws the recorded groups of a run, once each or in several passes."""

    log: Log
    codec: Codec
    topic: str
    scoring_id: str
    rule: Recorded
    curation: Curation
    ends: Mapping[TopicPartition, int]
    """The end of every partition when this run was made."""
    keeps: Callable[[Sequence[Sample]], bool] = lambda samples: True
    """Returns True if the filters of groups keep a group."""
    mark: Mark = ()
    _groups: list[_Group] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Index the groups. Raises Refused if there are none, and Unavailable."""
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
        """Return how many groups can be drawn, at most `groups`."""
        return len(list(islice(self._next(), groups)))

    def draw(self, groups: int) -> list[Sample]:
        """Return the samples of the next groups. Raises Unavailable, with nothing drawn."""
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
        """Yield how often each group was drawn before, and the group."""
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
                continue  # a record that was written twice is the same group
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
        """Return the first and the end offset of each partition to read."""
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
        """Decode a record of the earlier run; return None for others, most of them undecoded."""
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
