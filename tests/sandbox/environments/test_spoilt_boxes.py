"""An agent that breaks its own box earns 0, as for any other work that fixes nothing.

A rollout whose box died has no reward; so no agent may be able to make its box look dead.
"""

import asyncio
import json
from typing import Any

import pytest

from rollcall.sandbox.artefacts import KEY, PATCH
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver
from rollcall.sandbox.environment import Observation, make_environment
from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.sandbox.tasks.task_names import environment_config
from rollcall.schemas.errors import WorkFailed
from tests.support.engines import IMAGE, has, left_out
from tests.support.mortal_boxes import MortalHost, kill
from tests.support.task_directories import write_task

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
TIME_S = 1.0
MEBIBYTE = 1 << 20
LIMITS = {"memory_bytes": 96 * MEBIBYTE, "disk_bytes": 64 * MEBIBYTE, "processes": 64}
FILL = "for place in /dev/shm/a /tmp/a ~/a; do head -c 300000000 /dev/zero > $place; done"
LOOP = "while :; do kill -STOP -1; done"
OPEN = {
    "its directory is barred": "chmod 0 ~",
    "and the shell ended": "chmod 0 ~; exit",
    "and its time spent": "chmod 0 ~; sleep 60",
    "all below it is barred": "chmod -R 0 .; chmod 0 ~/.git ~",
    "all names are gone": "rm -rf ~/* ~/.git ~",
}
"""Attacks that the box survives."""
CLOSED = {
    "everybody is killed": "kill -9 -1",
    "everybody is stopped": f"({LOOP}) & exit",
    "nothing new can begin": "for i in $(seq 100); do sleep 1000 & done",
    "nothing new can begin, ever": "for i in $(seq 100); do setsid sleep 1000 & done; exit",
    "files without end": "mkdir d; cd d; seq 100000 | xargs touch; echo",
}
"""Attacks that only an isolating box survives."""
BOUND = BubblewrapDriver().enforces()["memory"] == "control group"
FIRST = "for pid in 1 $$; do echo 1000 >/proc/$pid/oom_score_adj; done"
HOLD = """python3 -c '
import os
kept = [os.memfd_create("x") for _ in range(9)]
for fd in kept:
    for _ in range(60): os.write(fd, bytes(1 << 20))
'"""
SPOILS = {
    "memory is full": f"{FILL}; exit",
    "memory is full, without a word": FILL,
    "memory is full, and the first process is to go first": f"{FIRST}; {HOLD}; {FILL}; exit",
}
"""In the last one the kernel is told to kill the first process of the box, or the shell, first."""


def usable(kind: str) -> str:
    if kind == "bubblewrap" and not has("bwrap"):
        left_out("bubblewrap", "its boxes that are broken from within")
    if kind == "docker" and not IMAGE:
        left_out("docker", "containers that are broken from within; `.ci/docker` starts an engine")
    return kind


@pytest.fixture(params=["local", "bubblewrap", "docker"])
def kind(request: pytest.FixtureRequest) -> str:
    return usable(request.param)


@pytest.fixture(params=["bubblewrap", "docker"])
def isolating(request: pytest.FixtureRequest) -> str:
    """As `kind`, without `local`, which isolates nothing."""
    return usable(request.param)


@pytest.fixture
def task(tmp_path: Any) -> HarborTask:
    return read_task(write_task(tmp_path / "sums"))


def shown(task: HarborTask, kind: str, *actions: str, **config: Any) -> list[Observation]:
    """All observations, until one ends the episode. Raises WorkFailed."""
    limits = {} if kind == "local" else {"limits": LIMITS}
    image = IMAGE if kind == "docker" else ""
    given = {**environment_config(task, box=kind, image=image), "timeout_s": TIME_S, **limits}

    async def whole() -> list[Observation]:
        host = MortalHost(lambda *moment: None)
        made = make_environment("shell", json.dumps({**given, **config}), host)  # type: ignore[arg-type]
        seen = [await made.open(0)]  # type: ignore[misc]
        try:
            for action in actions:
                if not seen[-1].terminated:
                    seen.append(await made.step(action))  # type: ignore[misc]
            return seen
        finally:
            await made.close()  # type: ignore[misc]

    return asyncio.run(whole())


def size_of_patch(seen: Observation) -> int:
    left: Any = seen.info.get(KEY, [])
    return next((each["size"] for each in left if each["name"] == PATCH), 0)


@pytest.mark.parametrize("how", OPEN)
def test_agent_that_locks_its_work_directory_earns_zero(
    task: HarborTask, kind: str, how: str
) -> None:
    last = shown(task, kind, OPEN[how], SUBMIT, check="false")[-1]

    assert (last.terminated, last.reward, last.info["check_exit_code"]) == (True, 0.0, 1)


def test_patch_is_taken_from_a_locked_work_directory(task: HarborTask, kind: str) -> None:
    mend = "sed -i 's/a - b/a + b/' sums.py; chmod 0 ~"

    last = shown(task, kind, mend, SUBMIT)[-1]

    assert last.terminated
    assert size_of_patch(last) > 100


@pytest.mark.parametrize("how", CLOSED)
def test_agent_that_disrupts_its_box_earns_zero(task: HarborTask, isolating: str, how: str) -> None:
    last = shown(task, isolating, CLOSED[how], "exit", SUBMIT, check="false")[-1]

    assert (last.terminated, last.reward) == (True, 0.0)


@pytest.mark.parametrize("how", SPOILS)
def test_agent_that_holds_all_memory_ends_its_episode_with_zero_reward(
    task: HarborTask, isolating: str, how: str
) -> None:
    if isolating == "bubblewrap" and not BOUND:
        pytest.skip("left out for want of control groups: boxes of bubblewrap without memory")

    last = shown(task, isolating, SPOILS[how], SUBMIT, SUBMIT, check="false")[-1]

    assert (last.terminated, last.reward, size_of_patch(last)) == (True, 0.0, 0)
    said = "the box cannot be used any more: what was done in the box holds all the memory"
    assert last.text.startswith(said) or "exit code" in last.text


def test_box_too_small_for_its_task_fails_with_bad_config(task: HarborTask, tmp_path: Any) -> None:
    if not has("bwrap") or not BOUND:
        left_out("bubblewrap", "boxes that are too small for their tasks")
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "file").write_bytes(b"\1" * (40 * MEBIBYTE))
    small = {"limits": {"memory_bytes": 16 * MEBIBYTE}, "path": str(tmp_path / "large")}

    with pytest.raises(WorkFailed) as failed:
        shown(task, "bubblewrap", SUBMIT, **small)

    assert failed.value.code == "bad_config"


def test_externally_killed_box_is_distinguished_from_a_spoilt_box(
    task: HarborTask,
) -> None:
    if not has("bwrap"):
        left_out("bubblewrap", "its boxes that are killed from without")
    given = {**environment_config(task, box="bubblewrap"), "limits": LIMITS}

    async def whole() -> str:
        lent: list[Any] = []
        host = MortalHost(lambda box, *moment: lent.append(box))
        made = make_environment("shell", json.dumps(given), host)  # type: ignore[arg-type]
        await made.open(0)  # type: ignore[misc]
        try:
            kill(lent[-1])
            await made.step("chmod 0 ~; exit")  # type: ignore[misc]
        except WorkFailed as error:
            return error.code
        finally:
            await made.close()  # type: ignore[misc]
        return ""

    assert asyncio.run(whole()) == "box_died"
