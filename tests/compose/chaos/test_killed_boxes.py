"""The workload's shells on the in-memory log, in boxes that are killed meanwhile."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.chaos import own_engine, workload
from rollcall.compose.chaos.boxes import (
    BoxFigures,
    BoxTally,
    BoxVictim,
    EngineVictim,
    box_figures,
    boxes_left,
)
from rollcall.compose.chaos.faults import BOXES, ENGINE, KILL, ROLES, USUAL, Fault
from rollcall.compose.chaos.own_engine import OwnEngine, image_of_programs
from rollcall.compose.chaos.plan import ChaosPlan
from rollcall.compose.processes import started
from rollcall.compose.settings import EnvironmentsSettings, Settings
from rollcall.consumers.audit.audit import audit
from rollcall.sandbox.boxes.box import Spec, driver
from rollcall.sandbox.boxes.leases import Leases
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import (
    EnvironmentStepped,
    Limits,
    RolloutRequest,
    StepTaken,
    Trajectory,
)
from tests.support.command_line import call
from tests.support.engines import IMAGE, has, left_out
from tests.support.memory_cluster import POLICY, MemoryCluster
from tests.support.rig import PREFIX
from tests.support.waiting import until

NAMESPACES = ({"box": "bubblewrap"},)
KILLED = Fault(1.0, KILL, BOXES, BOXES, 0.0)


def of_shells(count: int) -> list[RolloutRequest]:
    """Requests of the workload that act in a shell, with time to end."""
    requests = (workload.request(7, number, boxes=NAMESPACES) for number in range(2000))
    shells = [each for each in requests if each.task.environment == workload.SHELL]
    return [replace(each, policy_id=POLICY, limits=Limits(max_tries=4)) for each in shells[:count]]


def test_about_one_in_ten_requests_uses_a_box_when_available() -> None:
    boxes = [{"box": "docker", "image": "i"}, {"box": "bubblewrap"}]
    requests = [workload.request(7, number, boxes=boxes) for number in range(2000)]
    shells = [each for each in requests if each.task.environment == workload.SHELL]
    configs = [json.loads(each.task.environment_config) for each in shells]

    assert 0.5 < len(shells) / (workload.BOXED * len(requests)) < 2
    assert {(c["box"], c["mode"]) for c in configs} == {
        (box, mode) for box in ("docker", "bubblewrap") for mode in ("persistent", "ephemeral")
    }
    assert [workload.request(7, number) for number in range(2000)] == [
        workload.request(7, number, boxes=()) for number in range(2000)
    ]


def test_engine_is_harmed_only_when_selected() -> None:
    assert set(USUAL) == set(ROLES) - {ENGINE}
    assert not ChaosPlan(3, USUAL, minutes=1).containers
    assert ENGINE not in {fault.role for fault in ChaosPlan(3, USUAL, minutes=9).faults()}
    assert ChaosPlan(3, [BOXES, ENGINE], minutes=1).containers


@pytest.mark.parametrize("roles", [[BOXES], [BOXES, ENGINE]])
def test_chaos_beside_another_release_kills_no_boxes(tmp_path: Path, roles: list[str]) -> None:
    wheel = tmp_path / "older.whl"
    wheel.touch()

    assert BOXES not in ChaosPlan(3, ROLES, minutes=1, beside=wheel).victims()
    assert not ChaosPlan(3, ROLES, minutes=1, beside=wheel).containers
    with pytest.raises(Refused, match="and without boxes, so there are no boxes"):
        ChaosPlan(3, roles, minutes=1, beside=wheel)


def test_missing_engine_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Refused, match="there is no engine to kill: dockerd is not installed"):
        call(None, "chaos", "--minutes", "1", "--kill", "boxes,engine")
    assert list(tmp_path.iterdir()) == []


def test_containers_consist_of_host_programs_with_their_libraries() -> None:
    with tarfile.open(fileobj=BytesIO(image_of_programs())) as tar:
        names = tar.getnames()
        assert all(tar.getmember(f"bin/{name}").isfile() for name in own_engine.PROGRAMS)
    assert len(names) == len(set(names)) > len(own_engine.PROGRAMS)


def test_processes_outside_the_boxes_of_a_worker_are_not_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        leases = Leases(tmp_path, "worker")
        victim = BoxVictim(leases)
        assert not victim.fit()
        victim.begin(KILLED)
        assert (victim.killed, bystander.poll()) == (0, None)
        leases.take(leases.draw(), "bubblewrap")  # one whose box has not begun
        assert not BoxVictim(leases).fit()
        leases.close()
        bystander.communicate(b"\n")


ENGINE_OF_NOBODY = """\
#!/bin/sh
trap '' TERM
while :; do sleep 0.05; done
"""


def runs(process: "subprocess.Popen[bytes]") -> bool:
    """Whether a process is neither ended nor stopped; D is one that waits for its own vfork."""
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] in "RSD"


def test_foreign_engine_survives_the_end_of_our_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given engines of others, one of which DOCKER_HOST names and one whose data is called almost
    # like ours
    program = tmp_path / own_engine.PROGRAM
    program.write_text(ENGINE_OF_NOBODY)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    ours = OwnEngine(tmp_path / "engine.log")
    theirs = [
        subprocess.Popen(
            [str(program), f"--host=unix://{place}/docker.sock", f"--data-root={place}/data"]
        )
        for place in (tmp_path, f"{ours.directory}-data")
    ]
    try:
        assert os.environ["DOCKER_HOST"] != ours.host

        # When ours is killed, begun anew, stopped, and ended
        victim = EngineVictim(ours)
        ours.begin()
        victim.begin(replace(KILLED, role=ENGINE))
        victim.end(replace(KILLED, role=ENGINE))
        victim.begin(replace(KILLED, kind="pause", role=ENGINE))
        mine = ours._process.pid  # type: ignore[union-attr]
        monkeypatch.setattr(own_engine, "GRACE_S", 0.2)
        ours.close()

        # Then only ours is gone
        assert started(mine) is None
        assert all(map(runs, theirs))
    finally:
        ours.close()
        for each in theirs:
            each.kill()
            each.wait()


def test_real_engine_and_its_containers_survive_beside_our_engine(tmp_path: Path) -> None:
    if not IMAGE:
        left_out("docker", "two engines, one of which is killed; `.ci/docker` starts the other")

    async def beside() -> None:
        box = await driver("docker").open(Spec(image=IMAGE))
        ours = OwnEngine(tmp_path / "engine.log")
        try:
            ours.start()
            victim = BoxVictim(Leases(tmp_path / "leases", "chaos"), ours)
            assert ours.first_processes() == {}
            assert not victim.fit()
            victim.begin(KILLED)
            EngineVictim(ours).begin(replace(KILLED, role=ENGINE))
            ours.begin()
            ours.close()
            assert victim.killed == 0
            assert not ours.directory.exists()
            assert (await box.run(["echo", "still here"])).output == "still here\n"
            assert await driver("docker").found() == [box.ident]
        finally:
            ours.close()
            await box.close()

    asyncio.run(beside())


def shown(*steps: tuple[str, str]) -> BoxFigures:
    """The figures for a trajectory with these commands and outputs."""
    request = of_shells(1)[0]
    taken = [StepTaken(0, "main", None, "begin", 0.0, False, False)]
    taken += [StepTaken(1, "main", *step, 0.0, False, False) for step in steps]
    none: dict[str, Any] = {"policies": (), "sequences": (), "model_calls": 0, "sampled_tokens": 0}
    none |= {"failures": 0, "journal_partition": 0, "first_offset": 0, "last_offset": 0}
    none |= {"started_ms": 0, "ended_ms": 0}
    tally = BoxTally(rollouts={request.rollout_id})
    tally.trajectory(
        Trajectory(request.rollout_id, 1, "finished", request, steps=tuple(taken), **none)
    )
    return tally.figures()


def test_shell_with_a_repeated_or_missing_command_is_reported_wrong() -> None:
    say = [workload.SHELL_COMMAND.format(word) for word in ("left", "on")]

    assert shown((say[0], "exit code 0\nleft\n"), (say[1], "exit code 0\nleft\non\n")).ok
    twice = shown((say[0], "exit code 0\nleft\n"), (say[1], "exit code 0\nleft\nleft\non\n"))
    never = shown((say[0], "exit code 0\nleft\n"), (say[1], "exit code 0\non\n"))
    assert (twice.wrong, never.wrong, twice.ok) == (1, 1, False)


# Boxes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    if not has("bwrap"):
        left_out("bubblewrap", "boxes that are killed under the workload's shells")
    settings = Settings(
        prefix=PREFIX,
        state_dir=tmp_path / "state",
        cache_dir=tmp_path / "cache",
        environments=EnvironmentsSettings(warm=0),  # no box that nobody is in
    )
    cluster = MemoryCluster(settings=settings)
    cluster.hire(workload.script("models-1"))
    yield cluster
    dismiss(cluster)


def dismiss(cluster: MemoryCluster) -> None:
    """Let every worker leave. May be called twice."""
    for loop in cluster.log.crew:
        loop.stop(0.0)
    cluster.log.crew = ()


@pytest.mark.parametrize("killing", [False, True])
def test_killed_box_is_rebuilt_and_runs_no_command_twice(
    cluster: MemoryCluster, killing: bool
) -> None:
    requests = of_shells(3)
    leases = Leases(cluster.settings.leases(), "chaos")
    victim = BoxVictim(leases)
    for request in requests:
        cluster.ask(request)

    def ended() -> bool:
        cluster.log.work()
        if killing and victim.killed < len(requests) and in_use(cluster, victim.killed):
            victim.begin(replace(KILLED, at_s=float(victim.killed)))
        return len(cluster.trajectories()) >= len(requests)

    until(ended, 60, lambda: f"{len(cluster.trajectories())} have ended")
    cluster.finish()
    assert {each.status for each in cluster.trajectories()} == {"finished"}
    assert audit(cluster, drained=True).breaches == []
    dismiss(cluster)
    found = box_figures(cluster, victim.killed, boxes_left(leases, None))
    assert found.rollouts == len(requests)
    assert found.killed == len(requests) * killing
    assert (found.died > 0) == killing
    assert found.ok, found
    assert (found.again, found.given_up) == (found.died, 0)


def in_use(cluster: MemoryCluster, killed: int) -> bool:
    """Whether a few commands have run since the last kill."""
    return len(cluster.events(EnvironmentStepped)) > 4 * (killed + 1)


def test_leftover_box_is_reported(cluster: MemoryCluster) -> None:
    """It is the box of a worker that is gone, found by its first process."""
    leases = Leases(cluster.settings.leases(), "gone")
    ident = leases.draw()
    leases.take(ident, "bubblewrap")
    argv = ["bash", "-c", f"exec -a rollcall-box-{ident} sleep 60"]
    with subprocess.Popen(argv) as holder:
        until(lambda: bool(boxes_left(leases, None).boxes), 10, lambda: "it is not found")
        left = boxes_left(leases, None)
        os.kill(holder.pid, signal.SIGKILL)
    leases.close()

    assert left.boxes == left.leases == [ident]
    assert not BoxTally().figures(left=left).ok
