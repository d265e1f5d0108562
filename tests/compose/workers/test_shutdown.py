"""When a worker leaves: a word with its name that came after it began."""

import pytest

from compose.workers.shutdown import Drained
from consumers.control_reader import ControlReader
from schemas.errors import Unavailable
from schemas.messages import Control
from tests.support.memory_cluster import MemoryCluster


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


def say(cluster: MemoryCluster, word: Control) -> None:
    value = cluster.codec.encode("t.control", word)
    cluster.log.append("t.control", b"k", value)


def drained_of(cluster: MemoryCluster, clock: Clock) -> Drained:
    control = ControlReader(cluster.log, cluster.codec, cluster.topics, from_end=True)
    return Drained("agents-1", control, clock)


def test_only_the_worker_that_is_named_leaves_and_looks_once_a_second(
    cluster: MemoryCluster,
) -> None:
    clock = Clock()
    drained = drained_of(cluster, clock)
    say(cluster, Control("drain", worker="agents-2"))
    say(cluster, Control("pause", worker="agents-1"))
    assert not drained()

    say(cluster, Control("drain", worker="agents-1"))
    assert not drained(), "it has looked just now"
    clock.now += 1.1

    assert drained()
    clock.now += 1.1
    assert drained(), "there is no way back"


def test_a_worker_that_is_started_again_is_not_drained_by_the_old_word(
    cluster: MemoryCluster,
) -> None:
    say(cluster, Control("drain", worker="agents-1"))

    assert not drained_of(cluster, Clock())()


def test_what_is_no_word_is_passed_over(cluster: MemoryCluster) -> None:
    drained = drained_of(cluster, Clock())
    cluster.log.append("t.control", b"k", b"no magic")
    say(cluster, Control("drain", worker="agents-1"))

    assert drained()


def test_words_wait_in_order_for_a_registry_that_is_away(cluster: MemoryCluster) -> None:
    # Given a registry that answers from the second question on
    say(cluster, Control("pause"))
    say(cluster, Control("resume"))
    asked: list[int] = []

    class Slow:
        def decode(self, value: bytes, expected: type[Control]) -> Control:
            asked.append(1)
            if len(asked) == 1:
                msg = "the registry does not answer"
                raise Unavailable(msg)
            return cluster.codec.decode(value, expected)

    control = ControlReader(cluster.log, Slow(), cluster.topics)  # type: ignore[arg-type]

    # When it is read twice
    first = [word.kind for _, word in control.poll()]
    assert not control.caught_up()
    second = [word.kind for _, word in control.poll()]

    # Then no word is lost or overtaken
    assert (first, second) == ([], ["pause", "resume"])
    assert control.caught_up()
