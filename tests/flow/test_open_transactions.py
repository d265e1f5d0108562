"""A foreign producer holds a transaction open: every report of progress mentions it."""

import time
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from rollcall.compose.cli.topics import print_stats
from rollcall.consumers.history.reading.local_programs import watched_world
from rollcall.consumers.history.reading.topic_stats import measure
from rollcall.consumers.history.waiting.waiting import WaitReader
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.messages import Trajectory
from tests.support.journals import request
from tests.support.memory_cluster import MemoryAdmin
from tests.support.programs import ASKS
from tests.support.rig import Rig
from tests.support.tiers import cases
from tests.support.whole_log import audited

TOPICS: dict[str, Any] = {
    "requests": lambda rig: rig.topics.requests,
    "events": lambda rig: rig.topics.events,
    "calls": lambda rig: rig.topics.calls("p"),
    "trajectories": lambda rig: rig.topics.trajectories,
}


class Held(Rig):
    """A rollout that ended; a stranger opens a transaction, and more is asked for behind it."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.crew = [self.agents(), self.models(ScriptedEngine("p", yes)), self.rewards()]
        self.ask(request("before", ASKS))
        self.work()
        self.topic = TOPICS[topic](self)
        self.first = self.log.bounds(self.topic)[0][1]
        self.opened = self.log.transaction(self.topic, [b"junk"])
        for number in range(3):
            self.ask(request(f"r{number}", ASKS))
        self.work()

    def work(self) -> None:
        self.settle(*self.crew)
        for _ in range(2):
            self.commit(*self.crew)

    def ended(self) -> set[str]:
        written = [record.value for record in self.log.all(self.topics.trajectories)]
        readable = [value for value in written if value != b"junk"]
        return {self.codec.decode(value, Trajectory).rollout_id for value in readable}


def yes(call: Any) -> str:
    del call
    return "yes"


@pytest.mark.parametrize("topic", sorted(TOPICS))
@pytest.mark.parametrize("aborted", cases([True, False]))
def test_open_transaction_is_reported_with_every_lag_and_loses_nothing(
    topic: str, aborted: bool
) -> None:
    rig = Held(topic)
    said = f"{rig.topic} 0: a producer holds a transaction open since 2023-11-14 22:13"

    # Then records behind it count as lag, and the transaction is named
    state = measure(rig, now_s=rig.clock.now)
    assert [str(each).startswith(said) for each in state.held_back] == [True]
    behind = {lag.topic: lag.total for lag in state.lags}[rig.topic]
    assert behind >= rig.log.topics[rig.topic][0].end - rig.first > 1
    page = Console(width=400, record=True, file=StringIO())
    print_stats(state, page)
    assert said in page.export_text()
    waiting = WaitReader(rig, MemoryAdmin(rig.log), watched_world(5.0), "default").waiting()
    assert [each for each in waiting.remarks if each.startswith(said)]
    for drained in (True, False):
        report = audited(rig, drained=drained)
        assert (rig.topic, rig.first) in {(b.topic, b.offset) for b in report.breaches}
        assert report.held_back[0].startswith(said)
        assert f"--start-offset {rig.first}" in report.held_back[0]

    # And when it ends, all goes on from there
    (rig.opened.abort if aborted else rig.opened.commit)()
    rig.work()

    assert {"before", "r0", "r1", "r2"} <= rig.ended()
    assert audited(rig).held_back == []
    assert measure(rig, now_s=rig.clock.now).held_back == []
    if aborted:
        report = audited(rig)
        assert report.ok, report.breaches


def test_recent_transaction_is_no_breach_of_an_active_log() -> None:
    rig = Held("requests")
    rig.log.wall = time.time
    rig.opened.abort()
    rig.work()
    rig.log.transaction(rig.topic, [b"junk"])

    assert audited(rig, drained=False).ok
    assert not audited(rig, drained=True).ok
