"""Servers on a real broker adopt a version one by one, even if one of them dies for good."""

from collections.abc import Callable, Iterator

import pytest

from rollcall.compose.cluster import Cluster
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.loop.loop import Loop
from rollcall.schemas.messages import PolicyVersion, WeightsFile
from tests.support.later_executor import LaterExecutor
from tests.support.model_calls import Counting
from tests.support.rig import role_of
from tests.support.waiting import until

pytestmark = pytest.mark.broker
LEASE_MS = 3_000


class Servers:
    """Two servers that stage when a test lets them."""

    def __init__(self, cluster: Cluster) -> None:
        models = cluster.settings.models.model_copy(update={"adopt_at_once": 1})
        settings = cluster.settings.model_copy(update={"models": models})
        factory = WorkerFactory(cluster.log, cluster.codec, cluster.topics, settings)
        self.cluster, self.out = cluster, cluster.log.publisher()
        self.threads = [LaterExecutor(), LaterExecutor()]
        self.loops: list[Loop] = [
            factory.models(f"m{number}", Counting(version=-1), thread=thread)
            for number, thread in enumerate(self.threads)
        ]
        for loop in self.loops:
            role_of(loop).turn.turns.lease_ms = LEASE_MS
        self.alive = list(self.loops)

    def announce(self, version: int) -> None:
        weights = WeightsFile("file:///nowhere", "", 0, "", version)
        word = PolicyVersion("p", version, version - 1, "run", 0, "", weights, b"\0" * 4, b"")
        topic = self.cluster.topics.versions
        self.out.send(topic, "p", self.cluster.codec.encode(topic, word))
        assert not self.out.flush(20)

    def turn(self) -> None:
        for loop in self.alive:
            loop.turn(0.02)

    def serve(self, version: int) -> bool:
        self.turn()
        return all(role_of(loop).engine.version == version for loop in self.alive)

    def staging(self) -> list[int]:
        """The servers that are adopting a version."""
        self.turn()
        return [
            number
            for number, thread in enumerate(self.threads)
            if any(not future.done() for future in thread.submitted)
        ]

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, 60, lambda: f"staging {self.staging()}")

    def finish(self, number: int) -> None:
        self.threads[number].run_all()


@pytest.fixture
def servers(make_cluster: Callable[..., Cluster]) -> Iterator[Servers]:
    servers = Servers(make_cluster("p"))
    servers.announce(0)
    servers.until(lambda: len(servers.staging()) == 2)  # neither serves anything: neither waits
    for number in (0, 1):
        servers.finish(number)
    servers.until(lambda: servers.serve(0))
    yield servers
    for loop in servers.loops:
        loop.stop(1.0)


def test_servers_adopt_one_by_one_and_wait_a_lease_for_dead_ones(
    servers: Servers,
) -> None:
    servers.announce(1)
    order = []
    for _ in range(2):
        servers.until(lambda: bool(servers.staging()))
        [one] = servers.staging()
        order.append(one)
        servers.finish(one)
    servers.until(lambda: servers.serve(1))
    assert sorted(order) == [0, 1]

    # The next one dies over it, with its place
    servers.announce(2)
    servers.until(lambda: bool(servers.staging()))
    [dead] = servers.staging()
    servers.alive.remove(servers.loops[dead])
    servers.until(lambda: len(servers.staging()) == 2)
    servers.finish(1 - dead)
    servers.until(lambda: servers.serve(2))
    assert role_of(servers.loops[dead]).engine.version == 1
