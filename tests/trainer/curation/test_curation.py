"""No sample is lost or taken twice, and the earliest deadline comes first."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import group_id, request_id
from rollcall.schemas.messages import Claim, Sampling, ScoredTrajectory
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.tables import Groups, Staleness
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.drops import Tally
from rollcall.trainer.curation.group_gate import FORCE_AFTER
from rollcall.trainer.curation.group_ledger import GroupLedger
from rollcall.trainer.curation.judge import judge
from tests.support.scored_trajectories import CURATION, sample, scored, sequence

ALONE = replace(CURATION, needs_group=False)


def filled(curation: Curation, versions: list[int]) -> Buffer:
    buffer = Buffer(curation)
    for offset, version in enumerate(versions):
        buffer.offer(scored(f"r{offset}", version=version), 0, offset)
    return buffer


def reasons(buffer: Buffer) -> dict[str, int]:
    return {reason: tally.count for reason, tally in buffer.drops().items()}


def test_staleness_is_that_of_the_oldest_sampled_token() -> None:
    mask = [0, 0, 1, 1, 0, 1, 1, 1]
    versions = [-1, -1, 3, 3, -1, 4, 4, 5]
    first = sample(scored("a", sequences=(sequence(range(8), mask, versions=versions),)))
    versions[2] = versions[3] = 0
    second = sample(scored("b", sequences=(sequence(range(8), mask, versions=versions),)))

    assert 6 - first.min_version == 3
    assert 6 - second.min_version == 6
    assert first.length == 5


def test_only_tokens_of_our_policy_count() -> None:
    mixed = sequence([1, 2, 3, 4], [0, 1, 1, 1], versions=[-1, 9, 2, 1], policies=[255, 1, 1, 0])
    ours = sample(scored("a", sequences=(mixed,), policies=("other", "policy")))

    assert (ours.policy_index, ours.min_version, ours.length) == (1, 2, 2)


def test_the_earliest_deadline_goes_first_and_stale_samples_are_dropped() -> None:
    buffer = filled(replace(ALONE, staleness=Staleness(bound=5)), [5, 1, 3, 0, 3])

    taken = buffer.take(3, v_now=8)

    assert taken is not None
    assert sorted(sample.min_version for sample in taken) == [3, 3, 5]
    assert reasons(buffer) == {"stale": 2}


def test_a_later_arrival_with_an_earlier_deadline_is_not_lost() -> None:
    buffer = filled(replace(ALONE, staleness=Staleness(bound=1)), [2, 1])

    used = [buffer.take(1, v_now=2), buffer.take(1, v_now=3)]

    assert [taken and taken[0].min_version for taken in used] == [1, 2]
    assert buffer.drops() == {}


def test_samples_of_a_batch_come_in_log_order() -> None:
    buffer = filled(ALONE, [2, 0, 1])

    taken = buffer.take(3, v_now=2)

    assert taken is not None
    assert [sample.offset for sample in taken] == [0, 1, 2]


OFFERS = st.lists(
    st.tuples(
        st.integers(0, 4),  # group
        st.integers(0, 3),  # member
        st.integers(0, 5),  # version
        st.sampled_from([None, 0.0, 1.0]),
        st.sampled_from(["finished", "failed"]),
        st.sampled_from(["run", "other"]),
        st.booleans(),  # take afterwards
    ),
    max_size=40,
)


@given(
    OFFERS, st.sampled_from(["drop", "train_partial"]), st.sampled_from([(), ("zero_variance",)])
)
def test_every_offer_is_exactly_one_of_held_used_or_dropped(
    offers: list[tuple[int, int, int, float | None, str, str, bool]],
    missing: str,
    filters: tuple[str, ...],
) -> None:
    buffer = Buffer(
        replace(
            CURATION, groups=Groups(missing=missing), filters=filters, staleness=Staleness(bound=1)
        )
    )
    places: list[int] = []
    for offset, (group, member, version, reward, status, run_id, take) in enumerate(offers):
        record = scored(
            f"r{group}-{member}",
            reward,
            version=version,
            group=f"g{group}",
            group_size=3,
            status=status,
            run_id=run_id,
        )
        buffer.offer(record, 0, offset)
        taken = (buffer.take(1, v_now=offset // 8) or ()) if take else ()
        places += [sample.offset for sample in taken]
        places += [dropped.offset for dropped in buffer.released()]

    assert len(places) == len(set(places))
    assert len(places) + buffer.held() == len(offers)
    assert sum(reasons(buffer).values()) + buffer.used == len(places)


def test_a_member_beyond_the_group_size_is_late_and_not_trained_on() -> None:
    buffer = Buffer(CURATION)
    for member in range(4):
        buffer.offer(scored(f"r{member}", group="g", group_size=3), 0, member)

    assert [sample.offset for sample in buffer.take(1, 0) or ()] == [0, 1, 2]
    assert reasons(buffer) == {"late": 1}
    assert buffer.take(1, 0) is None
    assert buffer.held() == 0


def test_a_group_waits_until_all_its_members_have_arrived() -> None:
    buffer = Buffer(CURATION)
    for offset in range(3):
        buffer.offer(scored(f"r{offset}", group="g", group_size=4), 0, offset)
    early = buffer.take(1, v_now=0)
    buffer.offer(scored("r3", group="g", group_size=4), 0, 3)
    taken = buffer.take(1, v_now=0)

    assert early is None
    assert taken is not None
    assert len(taken) == 4


def offer_group(buffer: Buffer, rewards: list[float | None], name: str = "g") -> None:
    for member, reward in enumerate(rewards):
        record = scored(f"{name}-{member}", reward, group=name, group_size=len(rewards))
        buffer.offer(record, 0, member)


def test_a_missing_member_drops_its_group() -> None:
    buffer = Buffer(CURATION)

    offer_group(buffer, [1.0, None, 0.0])

    assert reasons(buffer) == {"incomplete": 2, "unscored": 1}
    assert [dropped.offset for dropped in buffer.released()] == [0, 1, 2]
    assert buffer.released() == ()


def test_a_partial_group_and_its_missing_members_leave_together() -> None:
    buffer = Buffer(replace(CURATION, groups=Groups(missing="train_partial")))
    offer_group(buffer, [1.0, None, 0.0])
    before = buffer.released()

    taken = buffer.take(1, v_now=0)

    assert before == ()
    assert taken is not None
    assert [sample.offset for sample in taken] == [0, 2]
    assert [dropped.reason for dropped in buffer.released()] == ["unscored"]


def test_a_group_reduced_to_one_member_is_dropped_without_a_baseline() -> None:
    strict = Buffer(replace(CURATION, groups=Groups(missing="train_partial")))
    lenient = Buffer(replace(CURATION, groups=Groups(missing="train_partial"), needs_group=False))
    for buffer in (strict, lenient):
        offer_group(buffer, [1.0, None])

    assert reasons(strict) == {"singleton": 1, "unscored": 1}
    assert lenient.ready_groups() == 1


@pytest.mark.parametrize("status", ["failed", "timed_out", "cancelled", "refused", "other"])
def test_an_unfinished_rollout_is_missing_under_its_status(status: str) -> None:
    buffer = Buffer(ALONE)
    buffer.offer(scored("r", status=status), 0, 0)

    assert status in reasons(buffer)


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(top_k=5), Sampling(0.7)])
def test_samples_of_another_sampling_setting_are_refused(sampling: Sampling) -> None:
    buffer = Buffer(ALONE)
    buffer.offer(scored("r", sampling=sampling), 0, 0)

    assert reasons(buffer) == {"sampling_not_followed": 1}


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        ((Sampling(), Sampling(0.05)), "sampling_not_followed"),
        ((Sampling(top_k=2),), "sampling_not_followed"),
        ((Sampling(max_tokens=3, stop=("x",)),), ""),
    ],
)
def test_actual_sampling_counts_and_requested_sampling_does_not(
    used: tuple[Sampling, ...], reason: str
) -> None:
    one = replace(sequence([1, 2], [0, 1]), samplings=used)
    asked = Sampling(0.3) if not reason else None

    assert judge(scored("r", sequences=(one,), sampling=asked), 0, 0, ALONE).reason == reason


def test_sampling_of_another_policy_does_not_matter() -> None:
    theirs = sequence([1, 2], [0, 1], policies=[255, 0])
    ours = sequence([1, 2], [0, 1], policies=[255, 1])
    both = (replace(theirs, samplings=(Sampling(0.0),)), ours)

    record = scored("r", sequences=both, policies=("other", "policy"))
    assert judge(record, 0, 0, ALONE).sample is not None


def test_samples_at_the_trainers_temperature_are_accepted() -> None:
    buffer = Buffer(replace(ALONE, temperature=0.7))
    buffer.offer(scored("r", sampling=Sampling(0.7)), 0, 0)

    assert buffer.ready_groups() == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"run_id": "x"}, "other_run"), ({"purpose": "evaluate"}, "other_purpose")],
)
def test_records_of_other_runs_or_purposes_are_never_admitted(
    change: dict[str, str], reason: str
) -> None:
    buffer = Buffer(ALONE)
    buffer.offer(scored("r", **change), 0, 0)  # type: ignore[arg-type]

    assert reasons(buffer) == {reason: 1}
    assert buffer.held() == 0


def test_a_record_without_a_request_counts_as_another_run() -> None:
    record = scored("r")
    buffer = Buffer(ALONE)
    buffer.offer(replace(record, trajectory=replace(record.trajectory, request=None)), 0, 0)

    assert reasons(buffer) == {"other_run": 1}


@pytest.mark.parametrize(
    "broken",
    [
        sequence([1, 2], [0, 1], versions=[-1, -1]),
        sequence([1, 2], [0, 1], logprobs=[0.0, float("nan")]),
        sequence([1, 2], [0, 1], logprobs=[0.0, 0.5]),
        sequence([1, 2], [0, 1], logprobs=[0.0, -1e30]),
        sequence([1, 2], [1, 1]),
    ],
)
def test_impossible_tokens_are_malformed(broken: object) -> None:
    buffer = Buffer(ALONE)
    buffer.offer(scored("r", sequences=(broken,)), 0, 0)  # type: ignore[arg-type]

    assert "malformed" in reasons(buffer)


def test_tokens_of_an_abandoned_branch_are_dropped() -> None:
    buffer = filled(replace(ALONE, abandoned=((6, 7),)), [5, 6, 7, 8])

    assert reasons(buffer) == {"abandoned": 2}


def test_a_duplicate_record_counts_once_even_after_a_restart() -> None:
    buffer = Buffer(ALONE)
    for offset in range(2):
        buffer.offer(scored("r"), 0, offset)
    buffer.take(1, v_now=0)
    restarted = Buffer(ALONE)
    restarted.restore(buffer.recent(), buffer.drops())
    restarted.offer(scored("r"), 0, 2)

    assert restarted.drops() == {"duplicate": Tally(2, 2)}
    assert restarted.held() == 0


def test_held_samples_are_not_remembered_as_ended() -> None:
    buffer = Buffer(ALONE)
    buffer.offer(scored("r"), 0, 0)

    assert buffer.recent() == ()


def test_a_member_that_arrives_after_its_group_left_is_late() -> None:
    buffer = Buffer(CURATION)
    offer_group(buffer, [0.0, 1.0])
    buffer.take(1, v_now=0)
    buffer.offer(scored("g-9", group="g", group_size=2), 0, 9)

    assert reasons(buffer) == {"late": 1}


def drawn(draw: int, member: int, size: int, *, version: int = 0, **other: Any) -> ScoredTrajectory:
    """A rollout that admission drew."""
    return scored(
        request_id("run", draw, member),
        float(member % 2),
        version=version,
        group=group_id("run", draw),
        group_size=size,
        **other,
    )


def drawn_buffer(draws: int, size: int, curation: Curation) -> Buffer:
    ledger = GroupLedger("run", size)
    ledger.published(draws - 1)
    return Buffer(curation, ledger)


def test_a_drawn_rollout_is_never_taken_twice_after_10000_others() -> None:
    buffer = drawn_buffer(10_000, 1, replace(ALONE, groups=Groups(per_step=1, capacity=10_000)))
    for offset in range(10_000):
        buffer.offer(drawn(offset, 0, 1), 0, offset)
    assert len(buffer.take(10_000, v_now=0) or ()) == 10_000

    for offset in range(10_000):
        buffer.offer(drawn(offset, 0, 1), 0, 10_000 + offset)

    assert reasons(buffer) == {"duplicate": 10_000}
    assert (buffer.held(), buffer.ready_groups()) == (0, 0)


def test_a_straggler_without_tokens_is_not_held_after_9000_groups() -> None:
    buffer = drawn_buffer(9_001, 2, replace(CURATION, groups=Groups(per_step=1, capacity=10_000)))
    buffer.offer(drawn(0, 0, 2), 0, 0)
    buffer.take(1, v_now=3)
    for draw in range(1, 9_001):
        for member in range(2):
            buffer.offer(drawn(draw, member, 2, version=3), 0, 2 * draw + member)
    buffer.take(9_000, v_now=3)

    buffer.offer(drawn(0, 1, 2, status="timed_out", sequences=()), 0, 20_000)

    assert reasons(buffer) == {"stale": 1, "late": 1}
    assert (buffer.held(), buffer.ledger.running()) == (0, 0)


def test_a_record_with_a_wrong_group_size_does_not_delay_its_group() -> None:
    buffer = drawn_buffer(1, 2, CURATION)
    for member in range(2):
        buffer.offer(drawn(0, member, 100), 0, member)

    assert len(buffer.take(1, v_now=0) or ()) == 2


def test_giving_up_drops_incomplete_groups_and_keeps_ready_ones() -> None:
    buffer = drawn_buffer(3, 2, CURATION)
    for draw, member in [(0, 0), (0, 1), (1, 0)]:
        buffer.offer(drawn(draw, member, 2), 0, 2 * draw + member)

    assert buffer.give_up() == 3

    assert reasons(buffer) == {"incomplete": 1, "lost": 3}
    assert (buffer.held(), buffer.ledger.running()) == (2, 0)
    assert buffer.take(1, v_now=0) is not None


def test_an_incomplete_group_goes_stale_too() -> None:
    buffer = Buffer(CURATION)
    buffer.offer(scored("r", group="g", group_size=2), 0, 0)

    assert buffer.take(1, v_now=3) is None
    assert reasons(buffer) == {"stale": 1}


def test_groups_with_equal_rewards_are_filtered() -> None:
    buffer = Buffer(replace(CURATION, filters=("zero_variance",)))
    offer_group(buffer, [1.0, 1.0], "equal")
    offer_group(buffer, [1.0, 0.0], "different")

    assert reasons(buffer) == {"zero_variance": 2}
    assert buffer.ready_groups() == 1


def test_a_filter_that_rejects_everything_lets_one_group_through() -> None:
    buffer = Buffer(replace(CURATION, filters=("zero_variance",)))
    for number in range(FORCE_AFTER + 2):
        offer_group(buffer, [0.0, 0.0], f"g{number}")

    assert buffer.ready_groups() == 1
    assert buffer.gate.forced() == "the last 256 groups were filtered"
    assert buffer.gate.forced() == ""


def test_a_full_buffer_reports_it_and_evicts_nothing() -> None:
    buffer = filled(replace(ALONE, groups=Groups(per_step=1, capacity=2)), [0, 1, 2])

    assert buffer.full()
    assert buffer.held() == 3
    assert buffer.take(2, v_now=2) is not None
    assert not buffer.full()


def test_incomplete_groups_do_not_fill_a_buffer() -> None:
    buffer = Buffer(replace(CURATION, groups=Groups(per_step=1, capacity=1)))
    for number in range(5):
        buffer.offer(scored(f"r{number}", group=f"g{number}", group_size=2), 0, number)

    assert not buffer.full()


def test_a_batch_larger_than_the_buffer_is_refused() -> None:
    with pytest.raises(Refused, match=r"capacity_groups .* 3$"):
        Buffer(replace(ALONE, groups=Groups(per_step=1, capacity=2))).take(3, v_now=0)


def lies_in_its_claim(record: ScoredTrajectory) -> ScoredTrajectory:
    heavy = replace(record.trajectory, sequences=None, claim=Claim("file:///x", "00", 1))
    return replace(record, trajectory=heavy)


def test_an_unread_claim_is_a_missing_member() -> None:
    buffer = Buffer(ALONE)
    buffer.offer(lies_in_its_claim(scored("r")), 0, 0)

    assert "claim_not_read" in reasons(buffer)


def test_a_claim_of_another_run_counts_as_another_run() -> None:
    buffer = Buffer(ALONE)
    buffer.offer(lies_in_its_claim(scored("r", run_id="x")), 0, 0)

    assert reasons(buffer) == {"other_run": 1}


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([1, 32], "vocabulary"),
        ([1, -1], "vocabulary"),
        ([99, 1], "vocabulary"),
        ([1] * 17, "too_long"),
        ([31] * 16, ""),
    ],
)
def test_tokens_outside_the_vocabulary_or_context_are_refused(ids: list[int], reason: str) -> None:
    mask = [0] * (len(ids) - 1) + [1]
    record = scored("r", sequences=(sequence(ids, mask),))

    member = judge(record, 0, 0, replace(ALONE, vocabulary=32, context=16))

    assert member.reason == reason
    assert (member.sample is None) == bool(reason)


def test_a_sequence_of_another_policy_is_not_checked() -> None:
    theirs = sequence([1, 99], [0, 1], policies=[255, 0])
    ours = sequence([1, 2], [0, 1], policies=[255, 1])
    record = scored("r", sequences=(theirs, ours), policies=("other", "policy"))

    assert judge(record, 0, 0, replace(ALONE, vocabulary=32)).sample is not None


@pytest.mark.parametrize("reward", [1e160, -1e160, 1.1e9])
def test_an_absurdly_large_reward_is_refused(reward: float) -> None:
    assert judge(scored("r", reward), 0, 0, ALONE).reason == "unscored"


@given(
    reward=st.floats() | st.none(),
    ids=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=4),
    logprob=st.floats(width=32),
    version=st.integers(-(2**31), 2**31 - 1),
    data=st.data(),
)
def test_admitted_samples_are_finite_and_known_and_judging_never_raises(
    reward: float | None, ids: list[int], logprob: float, version: int, data: st.DataObject
) -> None:
    mask = data.draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))
    one = sequence(ids, mask, [logprob] * len(ids), [version] * len(ids))

    sample = judge(
        scored("r", reward, sequences=(one,)), 0, 0, replace(ALONE, vocabulary=8, context=3)
    ).sample

    if sample is not None:
        assert abs(sample.reward) <= 1e9
        assert set(ids) <= set(range(8))
        assert len(ids) <= 3
        assert not mask[0]
        assert -1000 <= logprob <= 1e-3
        assert version >= 0


def test_samples_of_a_failed_step_are_dropped() -> None:
    buffer = filled(ALONE, [0, 0])
    taken = buffer.take(2, v_now=0)
    assert taken is not None

    buffer.spoil(taken, "step_failed")

    assert reasons(buffer) == {"step_failed": 2}
    assert [dropped.offset for dropped in buffer.released()] == [0, 1]
    assert (buffer.used, buffer.held()) == (0, 0)


@pytest.mark.parametrize(
    "change",
    [{"missing": "wait"}, {"on_stale": "weigh"}, {"order": "lifo"}, {"max_staleness": -1}],
)
def test_an_unknown_curation_policy_is_refused_by_name(change: dict[str, str]) -> None:
    with pytest.raises(Refused, match=next(iter(change))):
        LearnerConfig.of(change)


def test_an_unknown_filter_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(Refused, match="did you mean 'zero_variance'"):
        Buffer(replace(CURATION, filters=("zero_varience",)))
