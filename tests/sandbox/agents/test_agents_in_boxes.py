"""Agents in boxes of namespaces reach their own endpoint, and nothing else.

They are skipped with a message if bubblewrap is not installed.
"""

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollcall.consumers.environments.gateway.gateway import Gateway
from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.sandbox.agents.agent_box import AgentBox
from rollcall.sandbox.agents.agent_processes import AgentProcess, AgentProcesses
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver
from rollcall.sandbox.tasks.harbor import read_task
from rollcall.sandbox.tasks.task_names import environment_config
from rollcall.schemas.messages import ModelCall, Task, Trajectory
from tests.support.engines import IMAGE, has, left_out
from tests.support.hosted_rollout import HostedRun
from tests.support.mortal_boxes import kill
from tests.support.process_host import ProcessHost, lived
from tests.support.processes_left import running
from tests.support.task_directories import write_task
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
FUNCTIONS = ROOT / "tests" / "support" / "boxed_agents.py"
NOTHING = "0" * 16
# A process of the box that is neither its first nor the shell of the check.
SEES_NOBODY = "sleep 0.1; set -- /proc/[0-9]*; [ $# -le 2 ]"


@pytest.fixture(autouse=True)
def _bubblewrap(request: pytest.FixtureRequest) -> None:
    if not has("bwrap") and "docker" not in request.node.name:
        left_out("bubblewrap", "agents in boxes")


def hears(call: ModelCall) -> str:
    return call.messages[-1].content


def boxed(function: str, box: str = "own", task: Task | None = None, **config: Any) -> HostedRun:
    given = {"agent": "python", "function": f"{FUNCTIONS}:{function}", "box": box, **config}
    return HostedRun(config=given, say=hears, task=task or Task(prompt="do it"))


def test_agent_in_a_box_reaches_its_own_endpoint_and_nothing_else(tmp_path: Path) -> None:
    run = boxed("looks_around", host_file=str(tmp_path))

    async def beside_others() -> Trajectory:
        gateway, processes = Gateway(bind()), AgentProcesses(tmp_path / "a", tmp_path / "b")
        await gateway.start()
        try:
            # Given sessions of others, one at the gateway's port and one at a port of its own
            common = gateway.open_endpoint(["p"], {})
            private = await gateway.open_endpoint_at(["p"], {}, bind())
            ports = [
                int(endpoint.url.split("/")[2].split(":")[1]) for endpoint in (common, private)
            ]
            run.config = {**run.config, "ports": ports, "other_key": common.key}
            run.host = ProcessHost(gateway, processes)

            # When an agent in a box looks for them, by their ports and by their keys
            trajectory = await run.run()
            assert common.open_requests() == private.open_requests() == []
            return trajectory
        finally:
            await processes.close()
            await gateway.close()

    trajectory = asyncio.run(beside_others())

    # Then it has found nothing but what it was given
    assert trajectory.status == "finished", trajectory.reason
    assert json.loads(trajectory.result) == {
        "url": "http://127.0.0.1:8000",
        "said": "who am I?",
        "ports": ["ConnectionRefusedError"] * 2,
        "outside": "OSError",
        "name": "gaierror",
        "another": 401,
        "mixed": 401,
        "user": 1000,
        "directory": "/w",
        "home": "/w",
        "host": False,
        "interfaces": ["lo"],
        "processes": [1, 3],
        "rights": [NOTHING] * 5 + ["1"],
        "descriptors": ["0", "1", "2"],
        "database": True,
        "child": "42\n",
        # A folder below /tmp that is not mounted lies in the box's own /tmp.
        "prefix": "written" if Path(sys.prefix).is_relative_to("/tmp") else "OSError",
    }
    assert not Path(sys.prefix, "written").exists()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Trajectory]:
    """The trajectory of each misbehaving agent, run one after the other."""
    mark = f"stays-{secrets.token_hex(8)}"
    runs = {
        "stays": boxed("stays", mark=mark),
        "floods": boxed("floods"),
        "takes_the_port": boxed("takes_the_port"),
    }
    trajectories = lived(tmp_path_factory.mktemp("boxed"), *runs.values())
    assert running(mark) == []
    return dict(zip(runs, trajectories, strict=True))


@pytest.mark.parametrize(
    ("function", "result"),
    [("stays", "I stay"), ("floods", "calm again"), ("takes_the_port", "OSError")],
)
def test_disruptive_boxed_agents_still_return_their_results(
    ended: Mapping[str, Trajectory], function: str, result: str
) -> None:
    trajectory = ended[function]

    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    assert trajectory.result == result


def test_boxed_agent_resumes_in_another_box_after_box_death(tmp_path: Path) -> None:
    async def disturb(run: HostedRun) -> None:
        if run.answered == 2 and len(run.host.boxes.lent) == 1:
            await run.host.boxes.lent[0].close()

    run = boxed("edits", disturb=None)
    run.disturb, run.say = disturb, lambda call: "echo x >> file; cat file"

    [trajectory] = lived(tmp_path, run)

    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    assert len(run.host.boxes.lent) == 2
    assert len(run.calls) == 3
    said = [m.content for s in trajectory.sequences or () for m in s.messages]
    assert {"0 x\n", "0 x\nx\n"} <= {*said}


@pytest.mark.parametrize(("box", "attempt"), [("own", 1), ("task", 2)])
def test_agent_starts_in_another_box_if_its_first_box_died(
    box: str, attempt: int, tmp_path: Path
) -> None:
    run = boxed("edits", box, Task("shell", json.dumps({"box": "bubblewrap"})))
    run.say = lambda call: "ls"

    async def before_it_enters(run: HostedRun) -> None:
        host = run.host
        if "start" in vars(host):
            return
        start = host.start

        async def in_a_dead_one(*words: Any, box: AgentBox, **given: Any) -> AgentProcess:
            if not host.started:
                kill(box.box)
            process: AgentProcess = await start(*words, box=box, **given)
            return process

        host.start = in_a_dead_one

    run.disturb = before_it_enters
    [trajectory] = lived(tmp_path, run)

    assert (trajectory.status, trajectory.attempt) == ("finished", attempt), trajectory.reason


def test_no_boxed_agent_process_survives_its_killed_worker(tmp_path: Path) -> None:
    mark = f"boxed-{secrets.token_hex(8)}"
    program = [sys.executable, "-m", "tests.support.boxed_agent_worker"]
    worker = subprocess.Popen(
        [*program, str(tmp_path), f"{FUNCTIONS}:waits", mark],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert worker.stdout
    ident = worker.stdout.readline().strip()
    assert ident
    assert running(mark)

    worker.kill()
    worker.wait(20)
    worker.stdout.close()

    def left() -> list[int]:
        return [*running(mark), *running(f"rollcall-box-{ident}")]

    until(lambda: left() == [], 20, lambda: f"{left()} run on")
    asyncio.run(BubblewrapDriver().remove(ident))


def test_agent_with_its_own_tools_works_where_its_task_is(tmp_path: Path) -> None:
    # Given a task with a file, and an agent that edits it without any step of its environment
    shell = {"files": {"notes": "red\n"}, "check": "grep -q green notes", "box": "bubblewrap"}
    run = boxed("edits", "task", Task("shell", json.dumps(shell)))
    run.say = lambda call: "pwd; echo green >> notes; sleep 600 >/dev/null 2>&1 & ls"

    [trajectory] = lived(tmp_path, run)

    # Then its environment has taken what was done, and only that
    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    assert len(run.host.boxes.lent) == 1
    last = (trajectory.steps or ())[-1]
    assert (last.session, last.reward, last.terminated) == ("main", 1.0, True)
    said = [m.content for s in trajectory.sequences or () for m in s.messages]
    assert any("/w\nnotes\n" in each for each in said), said


PROGRAM = """
import json, os, subprocess, urllib.request
url, key = os.environ["ROLLCALL_URL"], os.environ["ROLLCALL_KEY"]
task = json.load(open(os.path.join(os.environ["HOME"], "task.json")))
body = {"model": "p", "messages": [{"role": "user", "content": task["prompt"]}]}
head = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
asked = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), head)
said = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]
subprocess.run(["sh", "-c", said], check=True)
"""


@pytest.mark.parametrize("driver", ["bubblewrap", "docker"])
def test_program_from_an_image_runs_as_agent_in_its_task_box(driver: str, tmp_path: Path) -> None:
    if driver == "docker" and not IMAGE:
        left_out("docker", "agents in containers; `.ci/docker` starts an engine")
    image = {"image": IMAGE} if driver == "docker" else {}
    shell = {"box": driver, "check": "grep -q green notes", **image}
    config = {"agent": "command", "argv": ["python3", "-c", PROGRAM], "box": "task"}
    run = HostedRun(config=config, task=Task("shell", json.dumps(shell), prompt="do it"))
    run.say = lambda call: "id -u > who; echo green > notes"

    [trajectory] = lived(tmp_path, run)

    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    assert (trajectory.steps or ())[-1].reward == 1.0


def test_agent_killed_in_its_task_box_gets_another_attempt(tmp_path: Path) -> None:
    async def disturb(run: HostedRun) -> None:
        if run.answered == 3 and len(run.host.started) == 1:
            run.host.started[0].kill()

    run = boxed("edits", "task", Task("shell", json.dumps({"box": "bubblewrap"})))
    run.say, run.disturb = lambda call: "ls", disturb

    [trajectory] = lived(tmp_path, run)

    assert (trajectory.status, trajectory.attempt) == ("finished", 2), trajectory.reason


def test_agent_that_exhausts_the_task_box_memory_ends_with_zero_reward(tmp_path: Path) -> None:
    if BubblewrapDriver().enforces()["memory"] != "control group":
        pytest.skip("left out for want of control groups: agents without memory")
    limits = {"memory_bytes": 64 << 20}
    shell = {"box": "bubblewrap", "limits": limits, "check": "false"}
    run = boxed("edits", "task", Task("shell", json.dumps(shell)))
    run.say = lambda call: "tail /dev/zero; head -c 60000000 /dev/zero > /dev/shm/all"

    [trajectory] = lived(tmp_path, run)

    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    last = (trajectory.steps or ())[-1]
    assert (last.session, last.reward, last.terminated) == ("main", 0.0, True)


def test_agent_that_ends_its_episode_finishes_its_rollout(tmp_path: Path) -> None:
    run = boxed("ends_it", "task", Task("shell", json.dumps({"box": "bubblewrap", "max_steps": 1})))

    [trajectory] = lived(tmp_path, run)

    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    mains = [step for step in trajectory.steps or () if step.session == "main"]
    assert [step.action for step in mains] == [None, "ls"]


@pytest.mark.parametrize("by", ["step", "end"])
@pytest.mark.parametrize("how", ["child", "daemon", "chain"])
def test_agent_processes_end_before_the_patch_is_taken_and_checked(
    how: str, by: str, tmp_path: Path
) -> None:
    # Given an agent in the box of its task that leaves something running, or stays itself
    mark = f"outstays-{secrets.token_hex(8)}"
    task = read_task(write_task(tmp_path / "sums"))
    shell = {**environment_config(task, box="bubblewrap"), "check": SEES_NOBODY}
    run = boxed("outstays", "task", Task("shell", json.dumps(shell)), how=how, by=by, mark=mark)
    seen: list[list[int]] = []

    async def watch(run: HostedRun) -> None:
        keep = run.host.keep
        if not seen:
            seen.append([])
            run.host.keep = lambda *given: (seen[0].extend(running(mark)), keep(*given))[1]

    run.disturb = watch

    [trajectory] = lived(tmp_path, run)

    # Then its work is taken, and its environment's check sees nobody but itself
    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    last = [step for step in trajectory.steps or () if step.session == "main"][-1]
    assert "patch" in (last.info or ""), last.info
    assert (last.reward, last.terminated) == (1.0, True), last.info
    assert seen == [[]]
