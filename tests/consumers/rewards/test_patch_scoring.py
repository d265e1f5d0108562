"""Recorded patches, judged by the rewards group, and again from the object store alone."""

import json
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollcall.compose.settings import RewardsSettings, Settings
from rollcall.compose.workers.rescorer import Rescorer
from rollcall.consumers.history.reading.ranges import Range
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.rewards.scoring_host import ScoringHosts
from rollcall.sandbox.artefacts import KEY, PATCH, artefact
from rollcall.sandbox.boxes.box import Box, Spec
from rollcall.sandbox.tasks.harbor import read_task
from rollcall.schemas.claims import claim_of
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, StepTaken, Task, Trajectory
from rollcall.schemas.objects import ObjectStore
from tests.support.memory_cluster import MemoryCluster
from tests.support.processes_left import running
from tests.support.rig import PREFIX, Rig, source_of
from tests.support.scored_trajectories import ended
from tests.support.tiny_package import Patches, write_task
from tests.support.waiting import until

PATIENCE_S = 120.0
SLEEP = f"{100_000 + secrets.randbelow(800_000)}.{secrets.randbelow(10**9):09d}"
PATCHES = ("gold", "idle", "exits", "empty", "none", "gone")


@dataclass
class Recorded:
    """A store with patches in it, and trajectories that name them."""

    store: ObjectStore
    task: Path
    patches: dict[str, bytes]

    def trajectory(self, name: str, digest: str = "") -> Trajectory:
        """Of a rollout that submitted the patch of its name."""
        named = {"directory": str(self.task), "digest": digest or read_task(self.task).digest}
        config = json.dumps({"task": named})
        info: dict[str, object] = {}
        if name in self.patches:
            patch = self.patches[name]
            claim = claim_of(patch) if name == "gone" else self.store.put(patch)
            older = artefact(PATCH, claim_of(b"an older one"), b"")
            info[KEY] = [older.as_info(), artefact(PATCH, claim, patch).as_info()]
        steps = (
            StepTaken(0, "main", None, "go", 0.0, False, False),
            StepTaken(1, "main", "finish", "", 0.0, True, False, json.dumps(info)),
        )
        request = RolloutRequest(name, Task("shell", config), group_id="g")
        return ended(name, request=request, steps=steps)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    place = tmp_path_factory.mktemp("recorded")
    work = Patches(place / "work")
    patches = {
        "gold": work.gold(),
        "idle": work.of({"tiny/more.py": "x = 1\n"}),
        "exits": work.of({"tiny/__init__.py": "import os; os._exit(0)\n"}),
        "empty": b"",
        "gone": b"diff --git a/x b/x\n",
    }
    return Recorded(ObjectStore(str(place / "objects")), write_task(place / "sums"), patches)


class CountedHosts(ScoringHosts):
    """Counts the boxes that it opens."""

    opened = 0

    async def open(self, spec: Spec) -> Box:
        self.opened += 1
        return await super().open(spec)


@pytest.fixture
def rig(recorded: Recorded) -> Iterator[Rig]:
    rig = Rig(objects=recorded.store)
    yield rig
    rig.close()


def drive(*loops: Loop, to: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not to():
        assert time.monotonic() < deadline
        for loop in loops:
            loop.turn(0.005)


def scored(rig: Rig) -> dict[str, ScoredTrajectory]:
    found = rig.read(rig.topics.scored, ScoredTrajectory)
    return {each.trajectory.rollout_id: each for each in reversed(found)}


def test_a_patch_is_judged_once_for_all_scorers_with_a_reason(rig: Rig, recorded: Recorded) -> None:
    hosts = CountedHosts(box="local", objects=recorded.store)
    scorers = ["resolved", "tests_passed", "no_submission"]
    for name in PATCHES:
        rig.write(rig.topics.trajectories, name, recorded.trajectory(name), 0)
    loop = rig.rewards(scorers=scorers, hosts=hosts, at_once=2, timeout_s=PATIENCE_S)

    drive(loop, to=lambda: len(scored(rig)) == len(PATCHES))

    found = scored(rig)
    values = {name: [reward.value for reward in found[name].rewards] for name in PATCHES}
    assert values == {
        "gold": [1.0, 1.0, 0.0],
        "idle": [0.0, 0.8, 0.0],
        "exits": [0.0, 0.0, 0.0],
        "empty": [0.0, 0.0, 1.0],
        "none": [0.0, 0.0, 1.0],
        "gone": [None, None, 0.0],
    }
    why = {name: found[name].rewards[0].reason for name in PATCHES}
    assert why["gold"] == "resolved: all 5 tests pass"
    assert "test_adds FAILED" in why["idle"]
    assert why["exits"].startswith("invalid: pytest did not come to its end")
    assert (why["empty"], why["none"]) == (
        "empty: the patch is empty",
        "no_patch: nothing was submitted",
    )
    assert "was it removed?" in why["gone"]
    assert found["gone"].total is None
    assert hosts.opened == 4  # a patch that resolves has a second one


def test_a_patch_for_another_task_is_not_judged(rig: Rig, recorded: Recorded) -> None:
    rig.write(rig.topics.trajectories, "a", recorded.trajectory("gold", digest="0" * 64), 0)
    rig.write(rig.topics.trajectories, "b", ended("b"), 0)
    loop = rig.rewards(scorers=["resolved"])

    drive(loop, to=lambda: len(scored(rig)) == 2)

    assert "is not the one that was worked on" in scored(rig)["gold"].reason
    assert "names no task" in scored(rig)["b"].reason
    assert all(each.total is None for each in scored(rig).values())


def test_recorded_patches_are_rejudged_from_the_store_alone(
    recorded: Recorded, tmp_path: Path
) -> None:
    rewards = RewardsSettings(box="local", boxes=2)
    settings = Settings(prefix=PREFIX, state_dir=tmp_path / "state", rewards=rewards)
    cluster = MemoryCluster(settings=settings, objects=recorded.store)
    for name in ("gold", "idle", "none"):
        cluster.write(cluster.topics.trajectories, name, recorded.trajectory(name), 0)

    rescorer = Rescorer(["resolved", "no_submission*-0.5"], scoring_id="anew")
    found = rescorer.rescore(cluster, Selection(cluster, Range()))  # type: ignore[arg-type]

    assert found.totals == {("gold", 1): 1.0, ("idle", 1): 0.0, ("none", 1): -0.5}
    assert {name: each.total for name, each in scored(cluster).items()} == {
        "gold": 1.0, "idle": 0.0, "none": -0.5,
    }  # fmt: skip


def test_a_worker_killed_during_judging_loses_no_score(rig: Rig, recorded: Recorded) -> None:
    names = ("gold", "idle", "empty")
    for name in names:
        rig.write(rig.topics.trajectories, name, recorded.trajectory(name), 0)
    hosts = CountedHosts(box="local", objects=recorded.store)
    first = rig.rewards(scorers=["resolved"], hosts=hosts, threaded=True, timeout_s=PATIENCE_S)
    drive(first, to=lambda: hosts.opened >= 1)
    source_of(first).kill()

    second = rig.rewards("r2", scorers=["resolved"], threaded=True, timeout_s=PATIENCE_S)
    drive(second, to=lambda: len(scored(rig)) == 3)
    rig.settle(second)

    first.role.close()  # as the end of its process would have done

    assert {name: each.total for name, each in scored(rig).items()} == {
        "gold": 1.0, "idle": 0.0, "empty": 0.0,
    }  # fmt: skip
    records = rig.read(rig.topics.scored, ScoredTrajectory)
    assert max(Counter(each.trajectory.rollout_id for each in records).values()) == 1


JUDGE = f"""
import asyncio
from pathlib import Path
from rollcall.sandbox.boxes.box import driver
from rollcall.sandbox.grading.grading import grade
from tests.support.tiny_package import BASE, Patches, reference
import sys
work = Patches(Path(sys.argv[1]) / "work")
patch = work.of({{"tiny/__init__.py": "import os; os.execv('/bin/sleep', ['sleep', '{SLEEP}'])"}})
asyncio.run(grade(driver("local").open, reference(), patch))
"""


def test_a_killed_judge_leaves_no_process(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    judge = subprocess.Popen([sys.executable, "-c", JUDGE, str(tmp_path)], cwd=root)
    try:
        until(lambda: bool(running(SLEEP)), PATIENCE_S, lambda: "the patch does not run yet")
    finally:
        judge.send_signal(signal.SIGKILL)
        judge.wait()

    until(lambda: not running(SLEEP), PATIENCE_S, lambda: f"left: {running(SLEEP)}")
    assert judge.returncode == -signal.SIGKILL
