"""A worker leaves on a drain record with its name that is newer than its start."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.compose.services.embedded import down, taken_down
from rollcall.compose.services.service_process import ServiceProcess
from rollcall.compose.workers.shutdown import Drained, Stop
from rollcall.consumers.loop.control_reader import ControlReader
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.messages import Control
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


def test_only_the_named_worker_drains_and_checks_once_a_second(
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


def test_restarted_worker_ignores_an_earlier_drain_command(
    cluster: MemoryCluster,
) -> None:
    say(cluster, Control("drain", worker="agents-1"))

    assert not drained_of(cluster, Clock())()


def test_unreadable_control_record_is_skipped(cluster: MemoryCluster) -> None:
    drained = drained_of(cluster, Clock())
    cluster.log.append("t.control", b"k", b"no magic")
    say(cluster, Control("drain", worker="agents-1"))

    assert drained()


def test_control_records_wait_in_order_for_the_registry(cluster: MemoryCluster) -> None:
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


@pytest.fixture
def signals() -> Iterator[None]:
    """Restore signal handlers, since every Stop installs its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_worker_leaves_at_once_when_its_own_broker_is_taken_down(
    tmp_path: Path,
) -> None:
    # Given two state directories with a broker on record, and workers of each
    clock = Clock()
    stops = {}
    for port in (1111, 2222):
        home = tmp_path / str(port) / "services" / "kafka"
        home.mkdir(parents=True)
        ServiceProcess(2**22 + 1, "never", port, 3).note(home)
        ours = taken_down(tmp_path / str(port), f"127.0.0.1:{port}")
        stops[port] = Stop(taken_down=ours, clock=clock)
    elsewhere = Stop(taken_down=taken_down(tmp_path / "1111", "kafka.example:9092"), clock=clock)
    assert [stop() for stop in stops.values()] == [False, False]

    # When one is taken down
    assert down(tmp_path / "1111", wipe=False) == ()
    assert not stops[1111](), "it has looked just now"
    clock.now += 1.1

    # Then only its own workers leave, also one that is being drained
    assert not stops[1111].patient()
    assert [stop() for stop in (stops[1111], stops[2222], elsewhere)] == [True, False, False]
    assert elsewhere.patient()


@pytest.mark.usefixtures("signals")
def test_drained_worker_that_gets_a_signal_stops_waiting() -> None:
    stop = Stop(drained=lambda: True)
    assert stop()
    assert stop.patient()

    signal.raise_signal(signal.SIGTERM)

    assert stop()
    assert not stop.patient()
