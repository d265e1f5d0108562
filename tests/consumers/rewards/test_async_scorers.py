"""Async scorers in the rewards group: several at once, each with a time limit, none lost."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

from rollcall.consumers.loop.loop import Loop
from rollcall.sandbox.host import ScoringHost
from rollcall.schemas.claims import claim_of
from rollcall.schemas.errors import EventLoopBlocked, ObjectLost, Unavailable, WorkFailed
from rollcall.schemas.messages import Claim, ScoredTrajectory, Trajectory
from tests.support.rig import Rig, role_of, source_of
from tests.support.scored_trajectories import ended
from tests.support.waiting import holds

HERE = __name__
PATIENCE_S = 20.0


class Bench:
    """The behaviour of this module's scorers and a record of their calls; new for each test."""

    def __init__(self) -> None:
        self.acts: dict[str, Callable[[], Awaitable[float]]] = {}
        """By rollout; 1.0 at once for all others."""
        self.calls: Counter[str] = Counter()
        self.now = 0
        self.most = 0
        self.cancelled: list[str] = []
        self.gate = threading.Event()

    async def wait(self) -> float:
        await holds(self.gate.is_set)
        return 2.0


BENCH = Bench()


@pytest.fixture(autouse=True)
def bench() -> Bench:
    global BENCH
    BENCH = Bench()
    return BENCH


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    BENCH.gate.set()
    rig.close()


async def patient(trajectory: Trajectory) -> float:
    """Does what the bench says for this rollout."""
    bench, name = BENCH, trajectory.rollout_id
    bench.calls[name] += 1
    bench.now += 1
    bench.most = max(bench.most, bench.now)
    try:
        return await bench.acts[name]() if name in bench.acts else 1.0
    except asyncio.CancelledError:
        bench.cancelled.append(name)
        raise
    finally:
        bench.now -= 1


async def reads(trajectory: Trajectory, host: ScoringHost) -> float:
    """The length of the object that the result names."""
    return float(len(await host.fetch(claim_of(trajectory.result.encode()))))


PATIENT, READS = f"{HERE}:patient", f"{HERE}:reads"


def send(rig: Rig, *names: str, partition: int = 0) -> None:
    for name in names:
        rig.write(rig.topics.trajectories, name, ended(name), partition)


def scored(rig: Rig) -> list[ScoredTrajectory]:
    return rig.read(rig.topics.scored, ScoredTrajectory)


def totals(rig: Rig) -> dict[str, float | None]:
    """The first score of each rollout."""
    return {each.trajectory.rollout_id: each.total for each in reversed(scored(rig))}


def drive(*loops: Loop, to: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not to():
        assert time.monotonic() < until
        for loop in loops:
            loop.turn(0.001)


def test_async_and_plain_rewards_are_recorded_together(rig: Rig) -> None:
    send(rig, "a", "b")
    loop = rig.rewards(scorers=["environment_return", PATIENT])

    rig.settle(loop)
    rig.commit(loop)

    first, second = sorted(scored(rig), key=lambda each: each.trajectory.rollout_id)
    assert [(r.scorer, r.value) for r in first.rewards] == [
        ("environment_return", 1.25),
        (PATIENT, 1.0),
    ]
    assert (first.total, second.total, first.reason) == (2.25, 2.25, "")
    assert rig.committed("t.rewards.s", rig.topics.trajectories) == 2
    assert role_of(loop).counts == {"scored": 2}


def test_an_unfinished_rollout_is_not_scored(rig: Rig, bench: Bench) -> None:
    rig.write(rig.topics.trajectories, "a", ended("a", "failed", code="why"), 0)

    rig.settle(rig.rewards(scorers=[PATIENT]))

    assert (scored(rig)[0].total, scored(rig)[0].reason) == (None, "failed/why")
    assert not bench.calls


def test_plain_scorers_alone_start_no_event_loop_thread(rig: Rig) -> None:
    send(rig, "a")
    loop = rig.rewards(threaded=True)
    before = threading.active_count()

    rig.settle(loop)

    assert (len(scored(rig)), threading.active_count()) == (1, before)


@pytest.mark.parametrize("threaded", [False, True])
def test_concurrent_scorings_are_bounded_with_few_more_in_hand(
    rig: Rig, bench: Bench, threaded: bool
) -> None:
    names = [f"r{number}" for number in range(40)]
    bench.acts = dict.fromkeys(names, bench.wait)
    send(rig, *names)
    loop = rig.rewards(scorers=[PATIENT], at_once=3, threaded=threaded)

    drive(loop, to=lambda: bench.now == 3)
    for _ in range(20):
        loop.turn(0.001)

    assert (role_of(loop).in_flight(), sum(bench.calls.values())) == (6, 3)

    bench.gate.set()
    drive(loop, to=lambda: len(scored(rig)) == 40)
    rig.commit(loop)
    assert totals(rig) == dict.fromkeys(names, 2.0)
    assert (bench.most, set(bench.calls.values())) == (3, {1})
    assert rig.committed("t.rewards.s", rig.topics.trajectories) == 40


def test_a_stuck_scorer_is_cancelled_and_the_others_are_scored(rig: Rig, bench: Bench) -> None:
    bench.acts["slow"] = bench.wait
    send(rig, "slow", "b", "c")
    loop = rig.rewards(scorers=[PATIENT], timeout_s=0.1, at_once=1)

    drive(loop, to=lambda: len(scored(rig)) == 3)

    assert totals(rig) == {"slow": None, "b": 1.0, "c": 1.0}
    late = next(each for each in scored(rig) if each.total is None)
    assert "did not come back within 0.1 s" in late.reason
    assert bench.cancelled == ["slow"]


def test_an_uncancellable_scorer_is_abandoned(rig: Rig, bench: Bench) -> None:
    async def cling() -> float:
        while not bench.gate.is_set():
            try:
                await bench.wait()
            except asyncio.CancelledError:
                bench.cancelled.append("again")
        return 7.0

    bench.acts["a"] = cling
    send(rig, "a", "b")
    loop = rig.rewards(scorers=[PATIENT], timeout_s=0.05, grace_s=0.05, at_once=1)

    drive(loop, to=lambda: len(scored(rig)) == 2)

    assert totals(rig) == {"a": None, "b": 1.0}
    assert bench.cancelled


@pytest.mark.parametrize(("fails", "total"), [(1, 5.0), (2, 5.0), (3, None)])
def test_a_retriable_failure_is_tried_three_times(
    rig: Rig, bench: Bench, fails: int, total: float | None
) -> None:
    async def box_died() -> float:
        if bench.calls["a"] <= fails:
            raise WorkFailed("box_died", "the box is gone", retriable=True)
        return 5.0

    bench.acts["a"] = box_died
    send(rig, "a")

    rig.settle(rig.rewards(scorers=[PATIENT]))

    [only] = scored(rig)
    assert only.total == total
    assert bench.calls["a"] == min(fails + 1, 3)
    if total is None:
        assert only.rewards[0].reason == "the box is gone (3 times)"


def test_a_permanent_scorer_failure_is_not_retried(rig: Rig, bench: Bench) -> None:
    async def refuses() -> float:
        raise WorkFailed("bad_config", "no such image", retriable=False)

    bench.acts["a"] = refuses
    send(rig, "a")

    rig.settle(rig.rewards(scorers=[PATIENT]))

    assert (scored(rig)[0].rewards[0].reason, bench.calls["a"]) == ("no such image", 1)


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("\udce9" * 10_000),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        ObjectLost("gone"),
        RecursionError(),
    ],
)
@pytest.mark.parametrize("threaded", [False, True])
def test_an_error_of_one_scorer_costs_only_its_own_reward(
    rig: Rig, bench: Bench, raised: BaseException, threaded: bool
) -> None:
    async def raises() -> float:
        await asyncio.sleep(0)
        raise raised

    if isinstance(raised, KeyboardInterrupt) and not threaded:
        return  # on the main thread it is a person's
    bench.acts["a"] = raises
    send(rig, "a", "b")
    loop = rig.rewards(scorers=[PATIENT], threaded=threaded)

    drive(loop, to=lambda: len(scored(rig)) == 2)

    assert totals(rig) == {"a": None, "b": 1.0}
    bad = next(each for each in scored(rig) if each.total is None)
    assert 0 < len(bad.reason) <= 4000


def test_an_unavailable_service_is_waited_for(rig: Rig, bench: Bench) -> None:
    async def away() -> float:
        if bench.calls["a"] < 3:
            msg = "the store does not answer"
            raise Unavailable(msg)
        return 4.0

    bench.acts["a"] = away
    send(rig, "a")
    loop = rig.rewards(scorers=[PATIENT])
    role_of(loop).waiting.away_s = 0.001

    drive(loop, to=lambda: bool(scored(rig)))

    assert (totals(rig), bench.calls["a"]) == ({"a": 4.0}, 3)


class Shelf:
    above_bytes = 1 << 20

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, value: bytes) -> Claim:
        claim = claim_of(value)
        self.objects[claim.sha256] = value
        return claim

    def get(self, claim: Claim) -> bytes:
        if claim.sha256 not in self.objects:
            msg = f"object {claim.sha256[:8]} is gone"
            raise ObjectLost(msg)
        return self.objects[claim.sha256]


def test_a_host_fetches_objects_and_reports_missing_ones() -> None:
    rig = Rig(objects=Shelf())
    rig.objects.put(b"abc")  # type: ignore[union-attr]
    for name, result in (("a", "abc"), ("b", "never put")):
        rig.write(rig.topics.trajectories, name, ended(name, result=result), 0)
    loop = rig.rewards(scorers=[READS], threaded=True)

    drive(loop, to=lambda: len(scored(rig)) == 2)

    assert totals(rig) == {"a": 3.0, "b": None}
    assert "is gone" in next(each.reason for each in scored(rig) if each.total is None)
    rig.close()


def test_scorings_of_a_revoked_partition_are_cancelled(bench: Bench) -> None:
    rig = Rig(partitions=2)
    bench.acts = dict.fromkeys(("a", "b"), bench.wait)
    send(rig, "a", partition=0)
    send(rig, "b", partition=1)
    loop = rig.rewards(scorers=[PATIENT])
    drive(loop, to=lambda: bench.now == 2)

    other = rig.rewards("r2", scorers=[PATIENT])  # takes one of the two over
    drive(loop, other, to=lambda: len(bench.cancelled) == 1)
    bench.gate.set()
    drive(loop, other, to=lambda: len(scored(rig)) == 2)

    assert totals(rig) == {"a": 2.0, "b": 2.0}
    assert sorted(bench.calls.values()) == [1, 2]
    rig.close()


@pytest.mark.parametrize("threaded", [False, True])
def test_a_worker_killed_midway_loses_and_doubles_no_score(
    rig: Rig, bench: Bench, threaded: bool
) -> None:
    names = [f"r{number}" for number in range(12)]
    bench.acts = dict.fromkeys(names[4:], bench.wait)
    send(rig, *names)
    first = rig.rewards(scorers=[PATIENT], at_once=2, threaded=threaded)
    drive(first, to=lambda: bench.now == 2 and len(scored(rig)) == 4)
    rig.commit(first)
    source_of(first).kill()
    assert rig.committed("t.rewards.s", rig.topics.trajectories) == 4

    bench.gate.set()
    second = rig.rewards("r2", scorers=[PATIENT], at_once=2, threaded=threaded)
    drive(second, to=lambda: len(totals(rig)) == 12)
    rig.settle(second)

    assert Counter(each.trajectory.rollout_id for each in scored(rig)) == Counter(names)
    assert totals(rig) == {name: 1.0 if name in names[:4] else 2.0 for name in names}


def test_scorings_in_hand_are_finished_before_a_worker_leaves(rig: Rig, bench: Bench) -> None:
    bench.acts = dict.fromkeys(("a", "b"), bench.wait)
    send(rig, "a", "b")
    loop = rig.rewards(scorers=[PATIENT], threaded=True)
    drive(loop, to=lambda: bench.now == 2)
    threading.Timer(0.1, bench.gate.set).start()

    loop.clock = time.monotonic
    loop.stop(PATIENCE_S)

    assert totals(rig) == {"a": 2.0, "b": 2.0}
    assert rig.committed("t.rewards.s", rig.topics.trajectories) == 2


def test_a_scorer_that_blocks_the_event_loop_thread_ends_the_worker(rig: Rig, bench: Bench) -> None:
    async def blocks() -> float:
        bench.gate.wait()
        return 1.0

    bench.acts["a"] = blocks
    send(rig, "a")
    loop = rig.rewards(scorers=[PATIENT], threaded=True)
    room = role_of(loop).waiting.loop_thread
    room.slow_s, room.wedged_s = 0.01, 0.3

    with pytest.raises(EventLoopBlocked, match="patient a"):
        drive(loop, to=lambda: False)

    bench.gate.set()


def test_an_async_scorer_without_an_event_loop_thread_gives_a_null_reward(rig: Rig) -> None:
    send(rig, "a")
    loop = rig.rewards(scorers=[PATIENT])
    role_of(loop).waiting = None

    rig.settle(loop)

    assert "nobody here waits" in scored(rig)[0].reason
