"""Boxes of environments workers: records of them, and what is left when workers are killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollcall.consumers.environments.instance_records import InstanceRecords, host_name
from rollcall.consumers.environments.worker_boxes import WorkerBoxes
from rollcall.consumers.environments.worker_hosts import WorkerHosts
from rollcall.consumers.loop.answers import AnswerWriter
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.inference.scripted import ScriptedEngine
from rollcall.inference.text_script import added_by, text_script
from rollcall.sandbox.boxes.box import DRIVERS, Spec, driver
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.boxes.local import LocalDriver
from rollcall.schemas.errors import RollcallError, WorkFailed
from rollcall.schemas.messages import Instance, Limits, RolloutRequest, Task
from tests.support import box_holder
from tests.support.box_holder import QUICK
from tests.support.rig import Rig
from tests.support.shell_page import count_red, shell_task

HOLDER = str(box_holder.__file__)
ROOT = Path(HOLDER).parents[2]
FAR_S = 60.0


def why_not(name: str) -> str:
    """Why a driver has no boxes here; empty where it has."""

    async def tried() -> str:
        made = driver(name)
        box = await made.open(Spec())
        await box.close()
        return ""

    try:
        return asyncio.run(tried())
    except RollcallError as error:
        return str(error)


@pytest.fixture(params=sorted(DRIVERS))
def driver_here(request: pytest.FixtureRequest) -> str:
    reason = why_not(request.param)
    if reason:
        pytest.skip(f"{request.param}: {reason}")
    return str(request.param)


class Holders:
    """Processes that hold boxes."""

    def __init__(self, leases: Path) -> None:
        self.leases = leases
        self.running: list[subprocess.Popen[str]] = []

    def hold(self, driver_name: str, count: int) -> list[str]:
        """Start one; return the names of its boxes once it has them all."""
        holder = subprocess.Popen(
            [sys.executable, HOLDER, str(self.leases), driver_name, str(count)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.running.append(holder)
        assert holder.stdout is not None
        said = iter(holder.stdout.readline, "all boxes\n")  # log records come in between
        return [line.split()[1] for line in said if line.startswith("box ")]

    def kill(self) -> None:
        for holder in self.running:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()
        self.running.clear()


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[Holders]:
    made = Holders(tmp_path / "leases")
    yield made
    made.kill()


def traces(idents: list[str]) -> list[str]:
    """Processes, mounts and control groups that bear the name of a box."""
    found = []
    for path in (*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")):
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        found += [f"{path}: {ident}" for ident in idents if ident in text]
    mounts = Path("/proc/self/mounts").read_text()
    found += [f"mount of {ident}" for ident in idents if ident in mounts]
    groups = Path("/sys/fs/cgroup")
    folders = [*groups.glob("*/*"), *groups.glob("*/*/*"), *groups.glob("*")]
    return found + [str(path) for path in folders if any(i in path.name for i in idents)]


def soon(true: Callable[[], bool], told: Callable[[], object]) -> None:
    deadline = time.monotonic() + FAR_S
    while not true():
        assert time.monotonic() < deadline, told()
        os.sched_yield()


def test_boxes_of_killed_workers_are_removed_by_the_next_worker(
    driver_here: str, holders: Holders
) -> None:
    idents = holders.hold(driver_here, 2) + holders.hold(driver_here, 1)
    assert traces(idents)
    holders.kill()

    # When another worker starts
    loop_thread = EventLoopThread(threaded=True)
    told: list[Instance] = []
    leases = Leases(holders.leases, "next", QUICK)
    boxes = WorkerBoxes(loop_thread, leases, told.append, warm=0)

    def gone() -> bool:
        boxes.tick()
        loop_thread.watch()
        return not list(leases.all()) and not traces(idents)

    try:
        soon(gone, lambda: (list(leases.all()), traces(idents)))
    finally:
        loop_thread.close()
    assert {each.kind for each in told} <= {"reaped"}
    assert boxes.reaper.counts["reaped"] == len(told)


def test_a_live_worker_keeps_its_boxes(holders: Holders) -> None:
    idents = holders.hold("local", 1)
    loop_thread, leases = EventLoopThread(threaded=True), Leases(holders.leases, "next", QUICK)
    boxes = WorkerBoxes(loop_thread, leases, lambda instance: None, warm=0)
    until = time.monotonic() + 2 * QUICK.lapse_s
    while time.monotonic() < until:
        boxes.tick()
        loop_thread.watch()
        os.sched_yield()

    loop_thread.close()

    assert boxes.reaper.counts == {}
    assert {lease.ident for lease in leases.all()} >= set(idents)
    assert {lease.owner for lease in leases.all()} == {"holder-local"}


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(partitions=2)
    yield rig
    rig.close()


class Worker:
    """An environments worker with boxes, as it is built."""

    def __init__(self, rig: Rig, leases: Path, warm: int) -> None:
        self.loop_thread = EventLoopThread(threaded=False)
        pens = rig.log.publisher()
        self.note = InstanceRecords(
            AnswerWriter("e1", rig.log, rig.codec, rig.topics, pens, rig.wall)
        )
        self.leases = Leases(leases, "e1")
        self.boxes = WorkerBoxes(self.loop_thread, self.leases, self.note, warm=warm)
        hosts = WorkerHosts(self.loop_thread, listen=_never, processes=_never, boxes=self.boxes)
        self.loop = rig.environments(
            "e1",
            loop_thread=self.loop_thread,
            hosts=hosts,
            boxes=self.boxes,
            note=self.note,
            slots={"box": 2},
        )


def _never() -> None:
    msg = "this is not asked for"
    raise AssertionError(msg)


@pytest.mark.parametrize("mode", ["persistent", "ephemeral"])
def test_the_log_records_every_box_from_its_start_to_its_end(
    rig: Rig, tmp_path: Path, mode: str
) -> None:
    worker = Worker(rig, tmp_path / "leases", warm=1)
    policy = ScriptedEngine("p", text_script(count_red(), "count_red"), render=added_by)
    loops = [rig.agents(), rig.models(policy), worker.loop]
    config = json.dumps(shell_task()["environment_config"] | {"mode": mode})
    for number in range(4):
        task = Task("shell", config, seed=number)
        limits = Limits(max_turns=6, step_timeout_s=60.0)
        rig.ask(RolloutRequest(f"r{number}", task, policy_id="p", limits=limits))

    deadline = time.monotonic() + FAR_S
    while len(rig.trajectories()) < 4:
        assert time.monotonic() < deadline
        for loop in loops:
            loop.turn(0.0)
    worker.loop.role.close()

    told = rig.read(rig.topics.instances, Instance)
    lives: dict[str, list[Instance]] = {}
    for each in told:
        lives.setdefault(each.box_id, []).append(each)
    lent = [life for life in lives.values() if "lent" in [e.kind for e in life if e.driver]]
    kinds = ["starting", "ready", "lent", "returned", "removed"]
    assert [[each.kind for each in life] for life in lent] == [kinds] * 4
    assert {life[2].rollout_id for life in lent} == {f"r{n}" for n in range(4)}
    assert {each.mode for life in lent for each in life[:4]} == {mode}
    assert {(each.worker, each.host) for each in told} == {("e1", host_name())}
    spare = [life for life in lives.values() if life not in lent and life[0].driver]
    assert all([e.kind for e in life][-1] == "removed" for life in spare)
    assert bool(spare) == (mode == "persistent")
    in_line = [[e.kind for e in life] for life in lives.values() if not life[0].driver]
    assert in_line
    assert all(life == ["waiting", "lent"] for life in in_line)
    assert list(worker.leases.all()) == []
    timers = [trajectory.timers for trajectory in rig.trajectories()]
    assert all(each and each.environment_start_s for each in timers)


def test_a_worker_without_boxes_reports_it(rig: Rig) -> None:
    host = WorkerHosts(EventLoopThread(threaded=False), listen=_never, processes=_never)(
        "somewhere"
    )

    with pytest.raises(WorkFailed, match="somewhere wants a box") as failed:
        _ = host.boxes

    assert failed.value.retriable


def test_a_host_without_boxes_asks_no_driver_and_starts_no_thread(tmp_path: Path) -> None:
    class Unmoved(EventLoopThread):
        def call(self, run: Callable[[], object]) -> None:
            pytest.fail("the room begins")

    loop_thread = Unmoved(threaded=False)
    leases = Leases(tmp_path / "leases", "e1", QUICK)
    boxes = WorkerBoxes(loop_thread, leases, lambda instance: None, warm=4)

    boxes.tick()

    assert Counter(boxes.reaper.counts) == Counter()


class Chooser(LocalDriver):
    """Has no boxes of its own: it names the driver that has."""

    name = "chooser"

    def of(self, spec: Spec) -> LocalDriver:
        del spec
        return LocalDriver()


def test_a_driver_that_delegates_to_others_has_no_pool(tmp_path: Path) -> None:
    told: list[Instance] = []

    async def story() -> None:
        leases = Leases(tmp_path, "e1")
        boxes = WorkerBoxes(EventLoopThread(threaded=False), leases, told.append, warm=0)
        boxes._drivers["chooser"] = Chooser()
        mine = boxes.of("r", 1)
        box = await mine.lend("chooser", Spec())
        await mine.give_back(box)
        await mine.give_back(box)
        await boxes.close()

        assert list(leases.all()) == []

    asyncio.run(story())

    assert {each.driver for each in told} == {"local"}
    assert [each.kind for each in told] == ["starting", "ready", "lent", "returned", "removed"]
