"""The law of counting beside the fold."""

from random import Random

import pytest

from rollcall.consumers.agents.fold.journal import Journal
from rollcall.consumers.history.reading.counting import Counting
from tests.journals.programs import DICED
from tests.support.journals import Dice, world_of
from tests.support.tiers import cases


@pytest.mark.parametrize("seed", cases(range(40), 8))
def test_counting_without_the_program_ignores_the_same_events_as_the_fold(seed: int) -> None:
    # Given journals with answers in any order, twice, late and by zombies, and their fold
    entries = Dice(Random(seed)).live().entries
    folded = Journal(0, world_of(DICED), "owner")
    expected: dict[str, list[bool]] = {}
    broken: set[str] = set()
    for entry in entries:
        taken = folded.apply_event(entry.event, entry.offset, entry.at_ms)
        rollout_id = entry.event.rollout_id
        expected.setdefault(rollout_id, []).append(not taken.counted)
        rollout = folded.open.get(rollout_id)
        broken |= {rollout_id} if rollout and rollout.broken else set()

    # When each rollout is counted by itself
    found: dict[str, list[bool]] = {}
    counting: dict[str, Counting] = {}
    for entry in entries:
        rollout_id = entry.event.rollout_id
        ignored = counting.setdefault(rollout_id, Counting()).take(entry.event)
        found.setdefault(rollout_id, []).append(bool(ignored))

    # Then the same is ignored, but where only the program knows that it asked something else
    for rollout_id in expected.keys() - broken:
        assert found[rollout_id] == expected[rollout_id]
