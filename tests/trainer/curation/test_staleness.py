"""The order of samples, the waiting for running groups, and the weight of stale ones.

Golden values: the design's page on algorithms, section 6.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.ids import group_id, request_id
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.trainer.batch.weighing import aged
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.tables import Groups, Staleness
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.group_ledger import GroupLedger
from rollcall.trainer.rules.staleness import HALVINGS, StaleWait, stale_weight
from tests.support.scored_trajectories import CURATION, make_batch, scored, some_samples

ALONE = replace(CURATION, needs_group=False)
EDF, FIFO = ALONE, replace(ALONE, groups=Groups(order="fifo"))


def arriving(buffer: Buffer, *versions: int, first: int = 0) -> None:
    for offset, version in enumerate(versions, first):
        buffer.offer(scored(f"r{offset}", version=version), 0, offset)


def used(buffer: Buffer, v_now: int) -> list[int]:
    """Versions in the order in which one batch of one after the other takes them."""
    taken = []
    while batch := buffer.take(1, v_now):
        taken += [sample.min_version for sample in batch]
    return taken


def test_edf_takes_the_earliest_deadline_and_fifo_the_first_arrival() -> None:
    edf, fifo = (Buffer(replace(each, staleness=Staleness(bound=5))) for each in (EDF, FIFO))
    for buffer in (edf, fifo):
        arriving(buffer, 5, 1, 3, 0, 3)

    assert (used(edf, 8), used(fifo, 8)) == ([3, 3, 5], [5, 3, 3])
    assert edf.drops()["stale"].count == fifo.drops()["stale"].count == 2


def test_fifo_loses_a_sample_that_edf_uses() -> None:
    lost = []
    for curation in (EDF, FIFO):
        buffer = Buffer(replace(curation, staleness=Staleness(bound=1)))
        arriving(buffer, 2, 1)
        for v_now in (2, 3):
            buffer.take(1, v_now)
        lost.append(2 - buffer.used)

    assert lost == [0, 1]


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=12), st.integers(0, 4)
)
def test_edf_never_uses_fewer_samples_than_fifo(trace: list[list[int]], bound: int) -> None:
    staleness = Staleness(bound=bound)
    edf, fifo = (Buffer(replace(each, staleness=staleness)) for each in (EDF, FIFO))
    offset = 0
    for v_now, ages in enumerate(trace):
        for buffer in (edf, fifo):
            arriving(buffer, *(max(v_now - age, 0) for age in ages), first=offset)
            buffer.take(1, v_now)
        offset += len(ages)

    assert edf.used >= fifo.used
    for buffer in (edf, fifo):
        assert buffer.used + buffer.held() + sum(t.count for t in buffer.drops().values()) == offset


def drawn(draw: int, member: int, version: int, ended_ms: int = 0) -> ScoredTrajectory:
    group = group_id("run", draw)
    record = scored(
        request_id("run", draw, member), 1.0, version=version, group=group, group_size=2
    )
    return replace(record, trajectory=replace(record.trajectory, ended_ms=ended_ms))


def waiting(**changes: Any) -> Buffer:
    """Two draws of two members: the first was begun under version 1 and runs, one is whole."""
    curation = replace(CURATION, staleness=Staleness(bound=1, on_stale="wait", **changes))
    ledger = GroupLedger("run", 2)
    ledger.published(0, 2, 1)
    ledger.published(1, 2, 2)
    buffer = Buffer(curation, ledger)
    for member in range(2):
        buffer.offer(drawn(1, member, 2), 0, member)
    return buffer


def test_a_step_waits_for_a_running_group_it_would_make_stale() -> None:
    buffer = waiting()

    early, held = buffer.take(1, v_now=2), buffer.held()
    for member in range(2):
        buffer.offer(drawn(0, member, 1), 0, 2 + member)
    taken = buffer.take(1, v_now=2)

    assert (early, held) == (None, 2)
    assert [sample.min_version for sample in taken or ()] == [1, 1]


def test_a_step_that_leaves_running_groups_fresh_does_not_wait() -> None:
    assert waiting().take(1, v_now=1) is not None


def test_the_wait_ends_after_the_configured_seconds_of_log_time() -> None:
    buffer = waiting(wait_s=10)
    buffer.take(1, v_now=2)
    buffer.offer(drawn(7, 0, 2, ended_ms=9_999), 0, 7)
    early = buffer.take(1, v_now=2)
    buffer.offer(drawn(8, 0, 2, ended_ms=10_000), 0, 8)

    assert early is None
    assert buffer.take(1, v_now=2) is not None


def test_the_wait_ends_once_enough_batches_have_accumulated() -> None:
    buffer = waiting(wait_steps=1)
    early = buffer.take(1, v_now=2)
    buffer.ledger.published(2, 2, 2)
    for member in range(2):
        buffer.offer(drawn(2, member, 2), 0, 10 + member)

    assert early is None
    assert buffer.take(1, v_now=2) is not None


def test_a_resumed_trainer_waits_for_the_same_groups() -> None:
    ledger = waiting().ledger
    again = GroupLedger("run", 2, ledger.book())

    assert again.drawn.begun() == ledger.drawn.begun() == {"run/0": 1, "run/1": 2}


def test_a_wait_lasts_from_the_time_its_batch_is_ready() -> None:
    wait = StaleWait(1, 10.0)

    assert wait.holds_back(3, 2, 1, now_ms=18_999, since_ms=9_000)
    assert not wait.holds_back(3, 2, 1, now_ms=19_000, since_ms=9_000)
    assert not wait.holds_back(3, 3, 1, now_ms=9_000, since_ms=9_000)
    assert not wait.holds_back(3, None, 1, now_ms=9_000, since_ms=9_000)


def test_stale_samples_lose_weight_and_are_dropped_eventually() -> None:
    bound = 2
    weights = [stale_weight(age, bound) for age in range(6)]
    buffer = Buffer(replace(ALONE, staleness=Staleness(bound=bound, on_stale="weight")))
    arriving(buffer, 0, 1)

    taken = buffer.take(1, v_now=bound + HALVINGS + 1)

    assert weights == [1, 1, 1, 0.5, 0.25, 0.125]
    assert taken is not None
    assert buffer.drops()["stale"].count == 1


def test_an_old_samples_advantages_shrink_without_changing_denominators() -> None:
    config = LearnerConfig(on_stale="weight", max_staleness=1)
    samples = [replace(each, min_version=number % 3) for number, each in enumerate(some_samples(3))]
    batch = make_batch(samples, config)

    older = aged(batch, 3, config.staleness.bound)

    expected = [0.25 if s.min_version == 0 else 0.5 if s.min_version == 1 else 1 for s in samples]
    assert np.array_equal(older.advantages_N, batch.advantages_N * np.array(expected))
    for row, before in zip(older.rows, batch.rows, strict=True):
        assert np.array_equal(row.advantages, before.advantages * expected[row.trajectory])
        assert row.weight == before.weight


@pytest.mark.parametrize(
    "change", [{"stale_wait_s": -1.0}, {"stale_wait_steps": -1}, {"on_stale": "hope"}]
)
def test_an_invalid_staleness_setting_is_refused_by_its_key(change: dict[str, object]) -> None:
    with pytest.raises(Exception, match=next(iter(change))):
        LearnerConfig(**change)  # type: ignore[arg-type]


def test_filters_may_have_options_and_old_digests_stay() -> None:
    plain = LearnerConfig.of({"filters": ["zero_variance"]})
    table = LearnerConfig.of({"filters": [{"name": "zero_variance"}]})

    assert plain.digest() == LearnerConfig(filters=("zero_variance",)).digest()
    assert table.digest() == plain.digest()
    assert isinstance(LearnerConfig().curation("", ""), Curation)
