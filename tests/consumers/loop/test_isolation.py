"""A record that kills workers is found beside works of any length, and no other is buried."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.loop import Loop
from rollcall.schemas.messages import Control
from tests.support.rig import InHand, Rig, source_of
from tests.support.tiers import examples

MOST_DEATHS = 12
STEP_S = 1.0
WEEK_S = 7 * 86_400.0


class Death(BaseException):
    """The process is gone."""


@dataclass
class Works:
    """The duration of each record of a topic, and the record that kills, after its time in hand."""

    takes_s: list[list[float]]
    killer: tuple[int, int] | None = None
    kills_after_s: float = 0.0
    done: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rig = Rig(partitions=len(self.takes_s))
        self.topic = self.rig.topics.steps
        for partition, takes in enumerate(self.takes_s):
            for number in range(len(takes)):
                self.rig.write(self.topic, "k", Control("pause", reason=str(number)), partition)

    def start(self) -> Loop:
        return self.rig.loop(Worker(self), self.rig.log.publisher(), "g")

    def ended(self) -> bool:
        """If a commit covers every record."""
        committed = [self.rig.committed("g", self.topic, n) for n in range(len(self.takes_s))]
        return committed == [len(takes) or None for takes in self.takes_s]

    def buried(self) -> list[tuple[int, int]]:
        letters = [dict(r.headers or []) for r in self.rig.log.all("t.dead.letters")]
        return [(int(each["dlq_partition"]), int(each["dlq_offset"])) for each in letters]


class Worker(InHand):
    """Works on many records at once, each as long as it takes."""

    def __init__(self, works: Works) -> None:
        super().__init__(works.topic)
        self.works = works
        self.since: dict[tuple[int, int], float] = {}

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        for record, word in batch:
            super().handle([(record, word)])
            self.since[record.partition, record.offset] = self.works.rig.clock.now
            self.look()

    def tick(self) -> None:
        self.look()

    def look(self) -> None:
        works, now = self.works, self.works.rig.clock.now
        for record in list(self.hand):
            place = record.partition, record.offset
            spent_s = now - self.since[place]
            if place == works.killer:
                if spent_s >= works.kills_after_s:
                    raise Death
            elif spent_s >= works.takes_s[record.partition][record.offset]:
                self.hand.remove(record)
                record.closed = True
                works.done.add(place)


def live(works: Works, until_s: float) -> bool:
    """One worker's life up to a time; True once all work is done."""
    loop, clock = works.start(), works.rig.clock
    try:
        while clock.now < until_s:
            loop.turn(0.0)
            if works.ended():
                return True
            clock.pass_by(STEP_S)
    except Death:
        pass
    source_of(loop).kill()
    return False


DURATION = st.sampled_from([0.0, 0.0, 0.0, 2.0, 40.0, 300.0, 900.0])
PARTITION = st.lists(DURATION, min_size=1, max_size=12)


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(PARTITION, min_size=1, max_size=3), st.sampled_from([0.0, 3.0, 90.0]), st.data())
def test_only_the_record_that_kills_workers_is_buried(
    takes_s: list[list[float]], kills_after_s: float, data: st.DataObject
) -> None:
    partition = data.draw(st.integers(0, len(takes_s) - 1))
    killer = partition, data.draw(st.integers(0, len(takes_s[partition]) - 1))
    works = Works(takes_s, killer, kills_after_s)

    deaths = 0
    while not live(works, works.rig.clock.now + WEEK_S):
        deaths += 1
        assert deaths <= MOST_DEATHS

    assert works.buried() == [killer]
    assert len(works.done) == sum(map(len, takes_s)) - 1


@pytest.mark.parametrize("place", [0, 1, 31])
def test_a_killing_record_among_hour_long_ones_is_buried(place: int) -> None:
    works = Works([[3600.0] * 40], killer=(0, place))

    deaths = 0
    while not live(works, works.rig.clock.now + WEEK_S):
        deaths += 1
        assert deaths <= MOST_DEATHS

    assert works.buried() == [(0, place)]


@pytest.mark.parametrize("between_s", [15.0, 60.0, 200.0, 1000.0])
@pytest.mark.parametrize("seed", range(3))
def test_workers_killed_from_outside_condemn_no_record(between_s: float, seed: int) -> None:
    dice = Random(seed)
    takes_s = [[dice.choice([0.0, 1.0, 0.3 * between_s]) for _ in range(30)] for _ in range(2)]
    works = Works(takes_s)

    for _ in range(300):
        if live(works, works.rig.clock.now + dice.expovariate(1 / between_s)):
            break

    assert works.buried() == []


@pytest.mark.parametrize("seed", range(4))
def test_a_record_that_outlasts_its_workers_is_not_condemned(seed: int) -> None:
    """It never finishes, as its workers are always killed from outside."""
    dice = Random(seed)
    works = Works([[500.0] + [0.0] * 20])

    for _ in range(100):
        live(works, works.rig.clock.now + dice.expovariate(1 / 100.0))

    assert works.buried() == []
