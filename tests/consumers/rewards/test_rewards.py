"""The rewards group on the in-memory log: trajectories in, scored trajectories out."""

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from rollcall.producers.publisher import VALUE_LIMIT_BYTES
from rollcall.sandbox.token_scores import PerToken
from rollcall.schemas.errors import ProgramFailed, Unavailable, WorkFailed
from rollcall.schemas.interrupts import interrupt
from rollcall.schemas.messages import ScoredTrajectory, StepTaken, TokenScores, Trajectory
from rollcall.schemas.packed import pack_logprobs
from tests.support.rig import Rig, role_of, source_of
from tests.support.scored_trajectories import ended, sequence


def length(trajectory: Trajectory) -> float:
    return float(len(trajectory.steps or ()))


def raises(trajectory: Trajectory) -> float:
    msg = "I cannot judge this"
    raise ValueError(msg)


def is_nothing(trajectory: Trajectory) -> float:
    return float("nan")


def each_token(trajectory: Trajectory) -> PerToken:
    tokens = [len(sequence.loss_mask) for sequence in trajectory.sequences or ()]
    return PerToken(1.0, {number: [0.5] * count for number, count in enumerate(tokens)})


class Mute(BaseException):
    def __str__(self) -> str:
        raise self


RAISED: list[Callable[[], BaseException]] = [
    lambda: ValueError("cannot parse \udce9"),
    lambda: ValueError("x" * 1_100_000),
    lambda: WorkFailed("raised", "\udce9" * 600_000, retriable=False),
    lambda: Unavailable("\udce9"),
    lambda: Mute(),
    lambda: KeyboardInterrupt(),
    lambda: GeneratorExit(),
    lambda: StopIteration(),
    lambda: RecursionError("y" * 1_000_000),
]


def raises_as_told(trajectory: Trajectory) -> float:
    """Raises the error that the result names by its number."""
    raise RAISED[int(trajectory.result)]()


def answers_oddly(trajectory: Trajectory) -> float:
    return ODD[int(trajectory.result)]  # type: ignore[return-value]


ODD: list[object] = [10**400, "1e999", None, 1j, [], "\udce9", b"7", 10**5000]
HERE = "tests.consumers.rewards.test_rewards"


def send(rig: Rig, *trajectories: Trajectory) -> None:
    for trajectory in trajectories:
        rig.write(rig.topics.trajectories, trajectory.rollout_id, trajectory, 0)


def scored(rig: Rig) -> list[ScoredTrajectory]:
    return rig.read(rig.topics.scored, ScoredTrajectory)


def test_a_scored_record_carries_the_trajectory_its_reward_and_its_place(rig: Rig) -> None:
    loop = rig.rewards()
    send(rig, ended("a"), ended("b"))

    rig.settle(loop)
    rig.commit(loop)

    first, second = scored(rig)
    assert (first.trajectory, first.total, first.scoring_id) == (ended("a"), 1.25, "s")
    assert (second.source_topic, second.source_partition, second.source_offset) == (
        rig.topics.trajectories, 0, 1,
    )  # fmt: skip
    assert rig.committed("t.rewards.s", rig.topics.trajectories) == 2


def test_token_scores_are_recorded_with_the_trajectory(rig: Rig) -> None:
    send(rig, replace(ended(), sequences=(sequence([1, 2, 3], [0, 1, 1]),)))

    rig.settle(rig.rewards(scorers=["environment_return", f"{HERE}:each_token"]))

    [judged] = scored(rig)
    halves = pack_logprobs([0.5] * 3)
    assert judged.token_scores == (TokenScores(f"{HERE}:each_token", 0, halves),)


def test_an_oversized_scored_trajectory_also_loses_its_token_scores(rig: Rig) -> None:
    steps = (StepTaken(0, "main", None, "x" * 990_000, 1.0, True, False),)
    send(rig, replace(ended(steps=steps), sequences=(sequence([1] * 99, [1] * 99),)))

    rig.settle(rig.rewards(scorers=[f"{HERE}:each_token"] * 20))

    assert (scored(rig)[0].total, scored(rig)[0].token_scores) == (None, ())


def test_a_group_lands_in_one_partition() -> None:
    rig = Rig(partitions=4)
    loop = rig.rewards()
    for n in range(8):
        rig.write(rig.topics.trajectories, f"r{n}", ended(f"r{n}"), n % 4)

    rig.settle(loop)

    records = rig.log.all(rig.topics.scored)
    assert {record.key for record in records} == {b"g"}
    assert len({record.partition for record in records}) == 1


def test_a_scorer_that_raises_gives_a_null_reward_with_the_reason(rig: Rig) -> None:
    loop = rig.rewards(scorers=[f"{HERE}:length", f"{HERE}:raises"])
    send(rig, ended())

    rig.settle(loop)
    rig.commit(loop)

    judged = scored(rig)[0]
    assert [reward.value for reward in judged.rewards] == [2.0, None]
    assert judged.total is None
    assert "I cannot judge this" in judged.reason
    assert role_of(loop).counts["without_reward"] == 1
    assert rig.committed("t.rewards.s", rig.topics.trajectories) == 1


@pytest.mark.parametrize("number", range(len(RAISED)))
def test_any_error_of_a_scorer_becomes_a_writable_reason(rig: Rig, number: int) -> None:
    before = signal.signal(signal.SIGINT, interrupt)  # as in a process of ours
    send(rig, ended("a", result=str(number)), ended("b"))
    loop = rig.rewards(scorers=[f"{HERE}:raises_as_told"])

    try:
        rig.settle(loop)
        rig.commit(loop)
    finally:
        signal.signal(signal.SIGINT, before)

    first, second = scored(rig)
    assert (first.total, second.total) == (None, None)
    assert 0 < len(first.reason) <= 4000
    assert rig.committed("t.rewards.s", rig.topics.trajectories) == 2


@pytest.mark.parametrize("number", range(len(ODD)))
def test_any_scorer_result_becomes_a_reward_or_a_reason(rig: Rig, number: int) -> None:
    send(rig, ended("a", result=str(number)))

    rig.settle(rig.rewards(scorers=[f"{HERE}:answers_oddly"]))

    (only,) = scored(rig)
    assert only.total is not None or 0 < len(only.reason) <= 4000


@pytest.mark.parametrize("room", range(2, 400, 50))
def test_a_bare_trajectory_near_the_size_limit_is_cut_further(rig: Rig, room: int) -> None:
    bare = ended("a", sequences=None, steps=None, code="too_large")
    size = len(rig.codec.encode("t", bare))
    send(rig, replace(bare, result="x" * (VALUE_LIMIT_BYTES - size - room)), ended("b"))

    rig.settle(rig.rewards())

    first, second = scored(rig)
    assert (first.trajectory.rollout_id, second.trajectory.rollout_id) == ("a", "b")
    assert (first.trajectory.request, second.total) == (bare.request, 1.25)


def test_a_nan_reward_becomes_null(rig: Rig) -> None:
    send(rig, ended())

    rig.settle(rig.rewards(scorers=[f"{HERE}:is_nothing"]))

    assert (scored(rig)[0].total, "nan" in scored(rig)[0].reason) == (None, True)


@pytest.mark.parametrize("status", ["failed", "cancelled", "timed_out", "refused"])
def test_an_unfinished_rollout_gets_a_record_without_reward(rig: Rig, status: str) -> None:
    send(rig, ended(status=status, code="why", request=None))

    rig.settle(rig.rewards())

    assert (scored(rig)[0].total, scored(rig)[0].reason) == (None, f"{status}/why")
    assert rig.log.all(rig.topics.scored)[0].key == b"r"


def test_a_trajectory_oversized_by_its_rewards_is_written_bare(rig: Rig) -> None:
    text = "x" * 999_700
    steps = (StepTaken(0, "main", None, text, 1.0, True, False),)
    send(rig, ended(steps=steps))

    rig.settle(rig.rewards(scorers=["environment_return", *[f"{HERE}:length"] * 20]))

    judged = scored(rig)[0]
    assert (judged.total, judged.trajectory.steps) == (None, None)
    assert judged.reason.startswith("too_large")


def test_unreadable_trajectories_are_buried(rig: Rig) -> None:
    rig.log.append(rig.topics.trajectories, b"r", b"no magic", 0)
    send(rig, ended())

    rig.settle(rig.rewards())

    assert len(scored(rig)) == 1
    assert len(rig.log.all(rig.topics.dead_letters)) == 1


def test_uncommitted_trajectories_are_scored_again_alike_after_a_kill(rig: Rig) -> None:
    first = rig.rewards("r1")
    send(rig, ended())
    rig.settle(first)
    source_of(first).kill()

    rig.settle(rig.rewards("r2"))

    once, again = scored(rig)
    assert once == again


def test_two_scoring_ids_are_two_consumer_groups(rig: Rig) -> None:
    send(rig, ended())
    loops = [rig.rewards(), rig.rewards("r2")]
    loops[1].stop()
    other = rig.loop(role_of(loops[1]), rig.log.publisher(), "t.rewards.other")

    rig.settle(loops[0], other)

    assert len(scored(rig)) == 2


def stuck(trajectory: Trajectory) -> float:
    """The time guard's error in a scorer."""
    raise ProgramFailed("stuck", "the scorer did not come back within 30 s")


def test_a_stuck_scorer_gives_no_reward(rig: Rig) -> None:
    send(rig, ended())
    rig.settle(rig.rewards(scorers=["tests.consumers.rewards.test_rewards:stuck"]))
    assert scored(rig)[0].total is None
