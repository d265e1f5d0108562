"""A worker's start waits for a broker or registry that is away."""

import pytest

from compose.workers.readiness import patiently
from schemas.errors import TopicsDiffer, Unavailable


def test_what_is_away_for_a_moment_is_waited_for() -> None:
    answers = [Unavailable("no broker"), Unavailable("no registry"), "a worker"]

    def build() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return str(answer)

    assert patiently(build, retry_s=0.0) == "a worker"
    assert answers == []


@pytest.mark.parametrize("error", [Unavailable("no broker"), TopicsDiffer("no such topic")])
def test_what_stays_away_or_will_never_come_ends_the_wait(error: Exception) -> None:
    def build() -> None:
        raise error

    with pytest.raises(type(error)):
        patiently(build, retry_s=0.0, give_up_s=0.0 if isinstance(error, Unavailable) else 60.0)
