"""Whole rollouts at a task in a directory: asked for by its name, solved or not by a script."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rollcall.compose.request_checks import RequestChecks
from rollcall.compose.workers.served_policy import scripted_engine
from rollcall.consumers.environments.worker_boxes import WorkerBoxes
from rollcall.consumers.environments.worker_hosts import WorkerHosts
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.producers.submit import requests_of
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.sandbox.tasks.task_names import environment_config, request_of
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Instance, Limits, RolloutRequest, Sampling, Task, Trajectory
from rollcall.schemas.objects import ObjectStore
from tests.support.engines import has, left_out
from tests.support.memory_cluster import POLICY, MemoryCluster
from tests.support.rig import Rig
from tests.support.task_directories import write_task
from tests.support.waiting import until


@pytest.fixture
def task(tmp_path: Path) -> HarborTask:
    return read_task(write_task(tmp_path / "sums"))


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(partitions=2)
    yield rig
    rig.close()


def rollouts(
    rig: Rig, task: HarborTask, script: str, box: str = "local", **worker: Any
) -> list[Trajectory]:
    """Four rollouts, each graded at its end in its own box."""
    check = "python3 -c 'import sums; assert sums.add(2, 3) == 5'"
    config = {**environment_config(task, box=box), "check": check}
    for number in range(4):
        request = RolloutRequest(
            f"{script}{number}",
            Task("shell", json.dumps(config)),
            policy_id="p",
            limits=Limits(max_turns=3),
            sampling=Sampling(max_tokens=10_000),
        )
        rig.ask(request, partition=None)
    engine = scripted_engine("p", script, task.directory)
    loops = [rig.agents(), rig.models(engine), rig.environments(slots={"box": 4}, **worker)]

    def ended() -> bool:
        for loop in loops:
            loop.turn(0.0)
        return len(rig.trajectories()) == 4

    until(ended, 60, lambda: f"{len(rig.trajectories())} of 4 have ended")
    return rig.trajectories()


def rewards(ended: list[Trajectory]) -> list[float]:
    return [sum(step.reward for step in each.steps or ()) for each in ended]


def test_oracle_solves_the_task_and_null_does_not(rig: Rig, task: HarborTask) -> None:
    solved = rollouts(rig, task, "oracle")

    assert rewards(solved) == [1.0] * 4
    assert {each.status for each in solved} == {"finished"}
    opening = (solved[0].sequences or ())[0].messages[0].content
    assert opening.startswith("Mend `add` in sums.py, which subtracts.\n\nEach message is run")
    assert "which holds sums.py tests." in opening


def test_oracle_solves_the_task_in_an_isolating_box(rig: Rig, task: HarborTask) -> None:
    if not has("bwrap"):
        left_out("bubblewrap", "rollouts of the oracle in its boxes")

    assert rewards(rollouts(rig, task, "oracle", "bubblewrap")) == [1.0] * 4


def test_default_box_kind_comes_from_the_worker(rig: Rig, task: HarborTask, tmp_path: Path) -> None:
    loop_thread = EventLoopThread(threaded=False)
    told: list[Instance] = []
    boxes = WorkerBoxes(
        loop_thread, Leases(tmp_path / "leases", "e1"), told.append, warm=0, box="local"
    )
    store = ObjectStore(str(tmp_path / "objects"))
    hosts = WorkerHosts(loop_thread, listen=_never, processes=_never, boxes=boxes, objects=store)

    assert (
        rewards(rollouts(rig, task, "oracle", "", loop_thread=loop_thread, hosts=hosts))
        == [1.0] * 4
    )
    assert {each.driver for each in told} == {"local"}


def test_missing_image_fails_a_rollout_at_its_first_try(rig: Rig, tmp_path: Path) -> None:
    if not has("bwrap"):
        left_out("bubblewrap", "rollouts whose image it cannot have")
    task = read_task(write_task(tmp_path / "sums", {"environment/Dockerfile": "FROM base\n"}))
    loop_thread = EventLoopThread(threaded=False)
    told: list[Instance] = []
    boxes = WorkerBoxes(
        loop_thread, Leases(tmp_path / "leases", "e1"), told.append, warm=0, box="bubblewrap"
    )
    store = ObjectStore(str(tmp_path / "objects"))
    hosts = WorkerHosts(loop_thread, listen=_never, processes=_never, boxes=boxes, objects=store)

    ended = rollouts(rig, task, "oracle", "", loop_thread=loop_thread, hosts=hosts)

    assert {each.status for each in ended} == {"failed"}
    assert all(": image: image 'rollcall/task:" in each.reason for each in ended)
    assert "take box 'docker' or 'auto', or another image" in ended[0].reason
    failed = [each for each in told if each.kind == "failed"]
    assert len(failed) == 4
    assert all("is built by a docker engine" in each.reason for each in failed)


def _never() -> NoReturn:
    pytest.fail("this is not asked for")


def test_null_policy_never_submits(rig: Rig, task: HarborTask) -> None:
    assert rewards(rollouts(rig, task, "null")) == [0.0] * 4


def checked(line: dict[str, object]) -> RolloutRequest:
    """A line of `tasks request` as `submit` reads it."""
    cluster = MemoryCluster()
    defaults = RolloutRequest("", Task(), policy_id=POLICY)
    (request,) = requests_of(
        [json.dumps(line).encode()], RequestChecks(cluster).check, defaults=defaults
    )
    return request


@pytest.mark.parametrize("agent", ["react", "mini-swe-agent"])
def test_task_becomes_a_line_that_submit_accepts(task: HarborTask, agent: str) -> None:
    request = checked(request_of(task, box="local", agent=agent, max_tokens=9000))

    assert request.agent == ("react" if agent == "react" else "hosted")
    assert request.task.task_id == "sums"
    assert request.sampling.max_tokens == 9000
    assert request.task.prompt == task.instruction
    assert request.limits.rollout_timeout_s == 3600
    cut_off = json.loads(request.task.environment_config).get("max_steps")
    assert cut_off == (request.limits.max_turns if agent == "react" else None)


def test_invalid_or_changed_task_is_refused_before_publication(
    task: HarborTask,
) -> None:
    line = request_of(task, box="local", agent="react")
    other = request_of(replace(task, digest="0" * 64), box="local", agent="react")
    nameless = json.loads(json.dumps(line))
    nameless["task"]["environment_config"]["task"] = {"directory": "sums"}

    with pytest.raises(Refused, match="but 0000000000000000 is asked for; has it been changed"):
        checked(other)
    with pytest.raises(Refused, match=r"environment_config\.task\.directory"):
        checked(nameless)
    (task.directory / "tests" / "testbed" / "out").symlink_to("/etc")
    with pytest.raises(Refused, match="which leads out of tests/testbed/"):
        checked(line)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("box", "lokal", "unknown box 'lokal'; did you mean 'local'"),
        ("limits", {"memory": 1}, "'limits.memory' is no key"),
        ("mode", "once", "'persistent' or 'ephemeral'"),
        ("replay", 1, "replay: "),
    ],
)
def test_impossible_box_is_refused_before_publication(
    task: HarborTask, key: str, value: object, said: str
) -> None:
    line = request_of(task, agent="react")
    checked(line)
    line["task"]["environment_config"][key] = value

    with pytest.raises(Refused, match=said):
        checked(line)


@pytest.mark.parametrize(
    ("script", "tasks", "share", "said"),
    [
        ("oracle", False, None, "name their folder by --tasks"),
        ("noisy", True, None, "which needs one"),
        ("oracle", True, 0.5, "the share of gold is for 'noisy'"),
        ("my_module:speak", True, None, "--tasks and --gold-share are for oracle, null, noisy"),
    ],
)
def test_shipped_script_refuses_missing_or_unneeded_arguments(
    task: HarborTask, script: str, tasks: bool, share: float | None, said: str
) -> None:
    with pytest.raises(Refused, match=said):
        scripted_engine("p", script, task.directory if tasks else None, share)
