"""The end of a partition that chaos cuts off, on the in-memory log."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.compose.chaos.cut_log import Cut, LogVictim
from rollcall.compose.chaos.faults import CUT_OFF, LOG, Fault
from rollcall.compose.chaos.victims import ACCEPT, ACCEPTED, WorkerVictim
from rollcall.compose.chaos.wall_clock import WallClock
from rollcall.compose.chaos.watch import ON_THE_WIRE_MS, Watch
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.errors import JournalGone, Unavailable
from tests.support.journals import request
from tests.support.lost_rig import Lost
from tests.support.programs import ASKS
from tests.support.rig import Rig
from tests.support.tiers import examples
from tests.support.waiting import until
from tests.support.whole_log import audited


def within_reach(condition: Callable[[], bool]) -> None:
    until(condition, 30.0, lambda: "it does not hold yet")


def looked_at(victim: Any, condition: Callable[[], bool]) -> None:
    """Look at a victim until a condition holds."""

    def holds() -> bool:
        victim.look()
        return condition()

    within_reach(holds)


@dataclass
class Broker:
    """A broker that is down from its kill until the test says otherwise."""

    up: bool = True
    stack: Any = field(default_factory=lambda: SimpleNamespace(start=lambda: None))

    def fit(self) -> bool:
        return self.up

    back = works = fit

    def kill(self) -> None:
        self.up = False


@dataclass
class Worker:
    """An agents worker as chaos sees it."""

    losses: list[str] = field(default_factory=list)
    joined: bool = True

    def fit(self) -> bool:
        return self.joined


class Looked:
    """A watch that has read every request."""

    def __init__(self, rig: Rig) -> None:
        self.cuts: list[int] = []
        self.last_requests = {0: rig.log.reader([rig.topics.requests]).poll(0.0)[-1]}

    def expect_cut(self, fault: Fault, place: tuple[str, int], first: int) -> None:
        del fault, place
        self.cuts.append(first)


class MemoryVictim(LogVictim):
    """Cuts the in-memory log."""

    def _truncate(self, cut: Cut) -> bool:
        request = cut.request
        self.cluster.log.truncate(request.topic, request.partition, cut.first)
        return True


class Stage(Lost):
    """Rollouts that ended, the workers that ran them, and a victim."""

    def __init__(self) -> None:
        super().__init__()
        self.broker, self.worker = Broker(), Worker()
        cluster: Any = SimpleNamespace(log=self.log, topics=self.topics)
        watch: Any = Looked(self)
        publisher: Any = self.log.publisher()
        agents: Any = [self.worker]
        broker: Any = self.broker
        self.victim = MemoryVictim(cluster, broker, agents, watch, publisher)

    def cut(self, at_s: float = 0.0) -> None:
        """Append copies, have them committed, and cut them off."""
        self.victim.begin(Fault(at_s, CUT_OFF, LOG, LOG, 1.0))
        self.work()
        self.victim.look()

    def meet_the_loss(self) -> None:
        """Let workers go on until one ends by the name of the loss."""
        with pytest.raises(JournalGone) as told:
            self.work()
        self.worker.losses.append(str(told.value))


@settings(max_examples=examples(8), deadline=None)
@given(at_s=st.floats(0, 30), restarted=st.booleans())
def test_log_cut_is_reported_and_the_audit_stays_clean(at_s: float, restarted: bool) -> None:
    stage = Stage()
    victim = stage.victim

    # While the copies wait for their commit no request may follow them
    victim.begin(Fault(at_s, CUT_OFF, LOG, LOG, 1.0))
    assert victim.holds_requests_back()
    stage.work()
    victim.look()
    assert not victim.holds_requests_back()
    assert victim.cuts == 1

    # Nothing is judged while the broker is down
    victim.look()
    assert not victim.back()
    stage.broker.up = True
    if restarted:
        stage.replace_crew()
    victim.look()
    stage.meet_the_loss()
    victim.look()

    # It is over when the loss has its name
    assert victim.back()
    assert victim.unnamed == []
    stage.replace_crew(accept=True)
    stage.work()
    report = audited(stage)
    assert report.ok, report.breaches
    assert report.accepted == report.ended == 4 + 1 + report.cut_off


def test_unreported_cut_is_recorded_only_after_the_broker_returns() -> None:
    stage = Stage()
    stage.victim.named_s = 0.0
    stage.cut()
    for _ in range(3):
        stage.victim.look()
    assert stage.victim.unnamed == []

    stage.broker.up = True
    stage.worker.losses.append("t.rollout.requests 01 has lost its tail, which is another one")
    looked_at(stage.victim, stage.victim.back)

    assert len(stage.victim.unnamed) == 1


def test_cut_is_skipped_with_a_reason_when_copies_are_uncommitted() -> None:
    stage = Stage()
    stage.victim.committed_s = 0.0

    stage.victim.begin(Fault(0.0, CUT_OFF, LOG, LOG, 1.0))
    looked_at(stage.victim, stage.victim.back)

    assert (stage.victim.cuts, stage.broker.up) == (0, True)
    [why] = stage.victim.not_cut
    assert "have not committed the copies" in why


def test_cut_waits_for_joined_workers_and_the_end_of_the_last() -> None:
    stage = Stage()
    stage.worker.joined = False
    assert not stage.victim.fit()

    stage.worker.joined = True
    assert stage.victim.fit()
    stage.cut()
    stage.broker.up = True
    assert not stage.victim.fit()


STUB = """
import sys, time
from pathlib import Path
if not Path("told").exists():
    Path("told").touch()
    print({said!r}, flush=True)
    if {ends}:
        sys.exit(1)
time.sleep(600)
"""
"""A worker that names a loss once."""


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("accepted", [False, True])
def test_loss_counts_whether_the_worker_stops_accepts_it_or_is_killed(
    tmp_path: Path, accepted: bool, killed: bool
) -> None:
    said = f'{{"event": "{ACCEPTED}", "lost": "t 1 has"}}' if accepted else f"t 1 has {ACCEPT}"
    (tmp_path / "stub.py").write_text(STUB.format(said=said, ends=not accepted and not killed))
    log, links = tmp_path / "log", Any
    worker = WorkerVictim(
        "agents-1", ["stub"], {"PYTHONPATH": str(tmp_path)}, log, links, "t", "-",
        WallClock(tmp_path / "clocks", "agents-1"),
    )  # fmt: skip
    worker.start()
    try:
        within_reach(lambda: said in log.read_text())
        if killed:
            worker.kill()
        looked_at(worker, lambda: bool(worker.losses))
        assert worker.losses[0] == said
    finally:
        worker.ask_to_stop()
        worker.wait(time.monotonic() + 10)


class AwayLog:
    """Makes readers of a log whose broker may be down."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.up = threading.Event()
        self.up.set()
        self.polling = threading.Lock()

    def reader(self, *positions: Any) -> "AwayLog":
        if not self.up.is_set():
            msg = "the broker is away"
            raise Unavailable(msg)
        self.read = self.log.reader(*positions)
        return self

    def poll(self, timeout_s: float) -> list[Record]:
        with self.polling:
            return self.read.poll(timeout_s) if self.up.is_set() else []

    def close(self) -> None:
        """There is nothing to release."""


def test_watch_sees_every_request_written_over_a_cut() -> None:
    rig: Any = Rig()
    topic, log = rig.topics.requests, AwayLog(rig.log)
    cluster: Any = SimpleNamespace(topics=rig.topics, codec=rig.codec, log=log)
    for number in range(5):
        rig.ask(request(f"before{number}", ASKS))
    watch = Watch(cluster)
    try:
        within_reach(lambda: len(watch.asked) == 5)

        with log.polling:
            log.up.clear()
        rig.log.truncate(topic, 0, 3)
        for number in range(4):
            rig.ask(request(f"after{number}", ASKS))
        watch.expect_cut(Fault(0.0, CUT_OFF, LOG, LOG, 1.0), (topic, 0), 3)
        log.up.set()

        within_reach(lambda: len(watch.asked) == 9)
        assert watch.all_scored({(topic, 0): 7}) is False
        assert watch.failure is None
    finally:
        watch.close()


def test_progress_after_a_cut_counts_from_the_cut() -> None:
    rig: Any = Rig()
    watch, fault = Watch(rig), Fault(0.0, CUT_OFF, LOG, LOG, 1.0)
    try:
        watch.expect(fault, 0, None, ())
        watch.progress[0].seen("agents", 0, ON_THE_WIRE_MS)
        assert watch.waiting() == []

        watch.expect_cut(fault, (rig.topics.requests, 0), 0)

        assert watch.waiting() == watch.progress
    finally:
        watch.close()
