"""The order of recorded groups, with duplicates and after retention."""

from dataclasses import replace
from typing import Any

import pytest

from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.training.recorded_groups import EarlierRun
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import Refused
from rollcall.schemas.topics import Topics, wanted
from rollcall.trainer.config.tables import Recorded
from rollcall.trainer.curation.borrowed_groups import Mark
from rollcall.trainer.rules.samples import RECORDED, Sample
from tests.support.scored_trajectories import CURATION, scored

RULE = Recorded(run="earlier", policy="policy")


def changed_rule(**values: Any) -> Recorded:
    return Recorded(**RULE.model_dump() | values)


class Recording:
    """A stretch of one partition."""

    def __init__(self) -> None:
        self.topics = Topics("m.")
        self.log = MemoryLog(wanted("m.", ["policy"], partitions=1))
        self.codec = Codec(LocalRegistry())

    def member(self, group: str, number: int, run: str = "earlier", **how: str) -> None:
        name = f"{run}/{group}"
        made = scored(f"{name}-{number}", number, group=name, group_size=2, run_id=run)
        made = replace(made, scoring_id=how.get("scoring_id", "scoring"))
        value = self.codec.encode(self.topics.scored, made)
        self.log.append(self.topics.scored, name.encode(), value)

    def groups(self, *names: str) -> None:
        for name in names:
            for number in range(2):
                self.member(name, number)

    def reader(self, rule: Recorded = RULE, mark: Mark = ()) -> EarlierRun:
        curation = replace(CURATION, run_id="later", policy_id="ours", recorded=rule)
        return EarlierRun(
            self.log, self.codec, self.topics.scored, "scoring", rule, curation, {}, mark=mark
        )


def names(samples: list[Sample]) -> list[str]:
    assert {sample.borrowed for sample in samples} <= {RECORDED}
    return [sample.scored.trajectory.rollout_id.removeprefix("earlier/") for sample in samples]


def test_groups_are_drawn_once_in_the_order_of_their_last_members() -> None:
    log = Recording()
    log.member("late", 0)
    log.groups("a")
    log.groups("a")  # written again
    log.member("late", 1)
    log.member("half", 0)
    log.member("a", 0, scoring_id="another")
    log.log.append(log.topics.scored, b"earlier/torn", b"torn")
    log.member("b", 0, run="earlier2")
    reader = log.reader()

    assert reader.ready(9) == 2
    assert names(reader.draw(1)) == ["a-0", "a-1"]
    assert names(log.reader(mark=reader.mark).draw(2)) == ["late-0", "late-1"]


@pytest.mark.parametrize("drawn", [0, 1, 2])
def test_retention_does_not_change_the_remaining_groups(drawn: int) -> None:
    log = Recording()
    log.groups("a", "b", "c", "d")
    reader = log.reader()
    reader.draw(drawn)
    log.log.delete_before(log.topics.scored, 0, 3)

    after = log.reader(mark=reader.mark)

    assert names(after.draw(9)) == ["c-0", "c-1", "d-0", "d-1"]
    assert names(reader.draw(9)) == ["c-0", "c-1", "d-0", "d-1"]


def test_a_stretch_is_drawn_as_often_as_its_passes() -> None:
    log = Recording()
    log.groups("a", "b")
    reader = log.reader(changed_rule(passes=2))

    drawn = [(names([each])[0], each.uses) for each in reader.draw(9)]

    assert drawn == [("a-0", 0), ("a-1", 0), ("b-0", 0), ("b-1", 0),
                     ("a-0", 1), ("a-1", 1), ("b-0", 1), ("b-1", 1)]  # fmt: skip
    assert reader.ready(1) == 0
    assert log.reader(changed_rule(passes=0), reader.mark).ready(7) == 7
    assert names(log.reader(changed_rule(offsets=("0:2-4",))).draw(9)) == ["b-0", "b-1"]


def test_a_stretch_without_a_whole_group_is_refused_unless_drawn_before() -> None:
    log = Recording()
    log.member("half", 0)

    with pytest.raises(Refused, match="no whole group of run 'earlier' scored under 'scoring'"):
        log.reader()
    assert log.reader(mark=(0, 5, 0)).ready(3) == 0
