"""Replay: how much, in which order, how old, how often; complete after a restart.

Golden values: the design's page on algorithms, section 6.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.schemas.messages import ScoredTrajectory, Task
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.tables import ReplayRule, Staleness
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.replay import Replay, adopted, task_of
from rollcall.trainer.rules.samples import Sample, ScoredPlace
from tests.support.scored_trajectories import CURATION, sample, scored
from tests.support.tiers import examples

CURATED = replace(CURATION, staleness=Staleness(bound=100))


def member(
    group: str, number: int, reward: float, *, size: int = 2, version: int = 0, task: int = 0
) -> ScoredTrajectory:
    record = scored(f"{group}-{number}", reward, group=group, group_size=size, version=version)
    request = record.trajectory.request
    assert request is not None
    asked = replace(request, task=Task(task_id=f"seed-{task}", seed=task))
    return replace(record, trajectory=replace(record.trajectory, request=asked))


def offer(buffer: Buffer, group: str, rewards: Sequence[float], at: int, **how: int) -> None:
    for number, reward in enumerate(rewards):
        record = member(group, number, reward, size=len(rewards), **how)
        buffer.offer(record, 0, at + number)


def buffer(**rule: float) -> Buffer:
    return Buffer(CURATED, replay=ReplayRule(**rule))  # type: ignore[arg-type]


def names(samples: Sequence[Sample] | None) -> list[str]:
    return [sample.scored.trajectory.rollout_id for sample in samples or ()]


def test_a_quarter_of_256_samples_is_replayed() -> None:
    config = LearnerConfig(groups_per_step=32, group_size=8, replay_ratio=0.25)
    held = Buffer(CURATED, replay=config.replay)
    for number in range(48):
        offer(held, f"g{number}", [0.0, 1.0] * 4, 8 * number)

    first, second = held.take(32, v_now=0), held.take(32, v_now=0)

    assert config.fresh_groups * config.groups.size == 192
    assert first is not None
    assert second is not None
    assert [len(first), len(second)] == [192, 256]
    assert sum(sample.uses > 0 for sample in second) == 64
    assert held.used == 384


def test_replay_prefers_the_latest_used_groups_up_to_a_limit() -> None:
    held = buffer(ratio=0.5, max_uses=3)
    for number in range(6):
        offer(held, f"g{number}", [0.0, 1.0], 2 * number)

    batches = [held.take(2, v_now=0) for _ in range(4)]

    again = [sorted({s.group for s in batch or () if s.uses}) for batch in batches]
    assert again == [[], ["g0"], ["g1"], ["g2"]]
    uses = {sample.uses for batch in batches for sample in batch or ()}
    held_again = [held.take(2, v_now=0), held.take(2, v_now=0)]
    assert uses == {0, 1}
    assert all(sample.uses <= 2 for batch in held_again for sample in batch or ())


def test_groups_that_are_too_old_or_too_many_are_forgotten() -> None:
    aged, small = buffer(ratio=0.5, max_age=2), buffer(ratio=0.5, capacity=1)
    for held in (aged, small):
        for number in range(3):
            offer(held, f"g{number}", [0.0, 1.0], 2 * number, version=number)
        held.take(1, v_now=0)
        held.take(1, v_now=0)
        offer(held, "g9", [0.0, 1.0], 20, version=9)
    late = aged.take(2, v_now=4)

    assert names([s for s in late or () if s.uses]) == []
    assert len(small.replay.book().groups) == 1


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 1.0]), st.booleans()), max_size=30),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 2),
)
def test_with_replay_every_record_is_one_of_held_used_or_dropped(
    acts: list[tuple[bool, float, bool]], ratio: float, pool: int
) -> None:
    held = Buffer(
        replace(CURATED, filters=("zero_variance",), staleness=Staleness(bound=3)),
        replay=ReplayRule(ratio=ratio, pool=pool),
    )
    offered, fresh = 0, list[ScoredPlace]()
    for number, (spread, reward, spoils) in enumerate(acts):
        offer(held, f"g{number}", [reward, 1.0 if spread else reward], offered, version=number // 4)
        offered += 2
        batch = held.take(2, v_now=number // 3) or ()
        assert len({(s.partition, s.offset) for s in batch}) == len(batch)
        if spoils:
            held.spoil(batch, "step_failed")
        else:
            fresh += [(s.partition, s.offset) for s in batch if not s.uses]

    assert len(fresh) == len(set(fresh)) == held.used
    assert held.used + held.held() + sum(t.count for t in held.drops().values()) == offered


def test_a_failed_group_is_lent_the_latest_success_of_its_task() -> None:
    held = Buffer(replace(CURATED, filters=("zero_variance",)), replay=ReplayRule(pool=4))
    offer(held, "g0", [0.0, 1.0], 0, task=5)
    offer(held, "g1", [0.0, 0.0], 2, task=5)  # no success is known yet
    held.take(1, v_now=0)
    offer(held, "g2", [0.0, 0.0], 4, task=5)
    offer(held, "g3", [0.0, 0.0], 6, task=6)

    batch = held.take(1, v_now=0)
    lent = [sample for sample in batch or () if sample.uses]
    joined = adopted(batch or ())

    assert names(lent) == ["g0-1"]
    assert [sample.group for sample in joined] == ["g2"] * 3
    assert held.used == 4
    assert {reason: tally.count for reason, tally in held.drops().items()} == {"zero_variance": 4}


def test_adopted_groups_depend_on_the_samples_alone() -> None:
    def one(group: str, number: int, reward: float, task: int, size: int = 2) -> Sample:
        return sample(member(group, number, reward, task=task, size=size), hash((group, number)))

    lone, other = one("a", 0, 1.0, task=1), one("b", 0, 1.0, task=1)
    failed = [one("f", n, 0.0, task=1) for n in range(2)]
    whole = [one("w", 0, 0.0, task=2), one("w", 1, 1.0, task=2)]
    single = one("s", 0, 1.0, task=1, size=1)

    joined = adopted([lone, other, *failed, *whole, single])

    assert [each.group for each in joined] == ["f", "b", "f", "f", "w", "w", "s"]


def test_seeds_of_one_task_folder_share_a_task() -> None:
    named = sample(member("g", 0, 1.0, task=7))
    request = named.scored.trajectory.request
    assert request is not None
    asked = replace(request, task=Task(task_id="sums-7", seed=7))
    trajectory = replace(named.scored.trajectory, request=asked)
    folder = replace(named, scored=replace(named.scored, trajectory=trajectory))

    assert task_of(named) == "seed-7"
    assert task_of(folder) == "sums"


def test_a_restart_keeps_the_replay_pool_except_records_removed_by_retention() -> None:
    held = buffer(ratio=0.5, pool=3)
    for number in range(3):
        offer(held, f"g{number}", [0.0, 1.0], 2 * number, task=number)
    held.take(1, v_now=0)
    held.take(2, v_now=0)
    known = {(0, n): sample(member(f"g{n // 2}", n % 2, n % 2, task=n // 2), n) for n in range(6)}
    book, again, cut = held.replay.book(), Replay(held.replay.rule), Replay(held.replay.rule)

    gone = [again.restore(book, known.get), cut.restore(book, {(0, 3): known[0, 3]}.get)]

    assert (gone[0], again.book()) == ([], book)
    assert [uses for uses, _ in book.groups] == [1, 0]
    assert book.places() == {(0, n) for n in range(4)}
    assert set(gone[1]) == {(0, 0), (0, 1), (0, 2)}
    assert cut.book().groups == ()


@pytest.mark.parametrize(
    "change", [{"replay_ratio": 1.0}, {"replay_max_uses": 0}, {"success_pool": -1}]
)
def test_an_invalid_replay_setting_is_refused_by_its_key(change: dict[str, float]) -> None:
    with pytest.raises(Exception, match=next(iter(change))):
        LearnerConfig(**change)  # type: ignore[arg-type]
