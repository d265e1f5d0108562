"""A step names all its trajectories, however many, and old readers read small steps."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.producers.publisher import VALUE_LIMIT_BYTES
from rollcall.schemas.errors import LengthsDisagree
from rollcall.schemas.ids import request_id
from rollcall.schemas.messages import TrainStep, TrajectoryRef, TrajectoryRefs
from rollcall.schemas.trajectory_refs import PLAIN, fitted, pack_refs, refs_of
from tests.support.avro_messages import codec_for, encoded

STEP = TrainStep("policy", "run", 1, 1, 0, (), {})
IDS = st.text("0123456789abcdef", min_size=32, max_size=32) | st.text(max_size=40)
REFS = st.builds(
    TrajectoryRef,
    st.just("t"),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    IDS,
    st.integers(0, 2**31 - 1),
)


def many(count: int) -> list[TrajectoryRef]:
    return [
        TrajectoryRef("rl.trajectories.scored", n % 24, 10**9 + n, request_id("run", n, 0), 1)
        for n in range(count)
    ]


@given(st.lists(REFS, min_size=1, max_size=5))
def test_packed_references_are_read_back_unchanged(refs: list[TrajectoryRef]) -> None:
    step = replace(STEP, packed=pack_refs(refs))

    read = codec_for(TrainStep).decode(encoded(step), TrainStep)

    assert refs_of(read) == tuple(refs)


def test_a_step_of_16384_trajectories_fits_its_record() -> None:
    plain, packed = fitted(many(16_384))
    step = replace(STEP, trajectories=plain, packed=packed)

    assert plain == ()
    assert len(encoded(step)) < 0.6 * VALUE_LIMIT_BYTES
    assert refs_of(step) == tuple(many(16_384))


@pytest.mark.parametrize("count", [0, 1, PLAIN])
def test_a_small_step_is_written_unpacked_for_old_readers(count: int) -> None:
    plain, packed = fitted(many(count))

    assert (plain, packed) == (tuple(many(count)), None)
    assert len(encoded(replace(STEP, trajectories=plain))) < VALUE_LIMIT_BYTES


def test_trajectories_of_several_topics_are_written_unpacked() -> None:
    refs = [*many(PLAIN), TrajectoryRef("other", 0, 0, "r", 1)]

    assert fitted(refs) == (tuple(refs), None)


@pytest.mark.parametrize(
    "change",
    [{"partitions": bytes(4)}, {"offsets": bytes(12)}, {"attempts": b""}, {"rollout_ids": b"x"}],
)
def test_references_with_disagreeing_lengths_cannot_be_made(change: dict[str, bytes]) -> None:
    good = pack_refs(many(2))

    with pytest.raises(LengthsDisagree):
        replace(good, **change)
    with pytest.raises(LengthsDisagree):
        TrajectoryRefs("t", bytes(8), bytes(16), bytes(8), b"", ("one",))
