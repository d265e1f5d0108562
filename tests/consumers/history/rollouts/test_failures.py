"""The failure summary of a run."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.history.rollouts.failures import NO_REWARD, Failures, failure_of
from rollcall.schemas.messages import ScoredTrajectory
from tests.support.scored_trajectories import scored

ENDS = ("finished", "failed", "refused", "timed_out", "cancelled")
CODES = ("", "bad_config", "unknown_environment", "raised", "deadline")


def ended(number: int, status: str, code: str, reward: float | None) -> ScoredTrajectory:
    one = scored(f"r-{number}", reward if status == "finished" else None, status=status)
    trajectory = replace(one.trajectory, code=code, reason=f"why {number}")
    return replace(one, trajectory=trajectory, reason=f"scorer {number}")


@given(
    st.lists(
        st.tuples(st.sampled_from(ENDS), st.sampled_from(CODES), st.sampled_from([None, 0.0, 1.0]))
    )
)
def test_every_failure_is_counted_once_under_its_code_with_an_example(
    ends: list[tuple[str, str, float | None]],
) -> None:
    records = [ended(number, *end) for number, end in enumerate(ends)]
    failures = Failures()
    told = [failures.take(record) for record in records]

    expected = Counter(
        NO_REWARD if status == "finished" else code or status
        for status, code, reward in ends
        if status in ("failed", "refused", "timed_out") or (status, reward) == ("finished", None)
    )
    assert failures.by_code == expected
    assert sum(told) == failures.count
    for code, example in failures.examples.items():
        first = next(r for r in records if (f := failure_of(r)) is not None and f.code == code)
        assert example.rollout_id == first.trajectory.rollout_id
        assert code in str(failures) or len(failures.by_code) > 3


def test_the_summary_names_the_commonest_codes_with_shares_and_examples() -> None:
    failures = Failures()
    for number in range(3728):
        code = "unknown_environment" if number < 3720 else "deadline"
        failures.take(ended(number, "failed", code, None))

    said = "3,728: unknown_environment (99 %), e.g. r-0; deadline (1 %), e.g. r-3720"
    assert str(failures) == said
    assert failures.why() == "why 0"
    assert str(Failures()) == "0"
