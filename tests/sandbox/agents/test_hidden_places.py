"""No box shows state, tasks with solutions and tests, or checkouts: the tests search real boxes."""

import asyncio
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollcall.consumers.environments.gateway.gateway import Gateway
from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.consumers.environments.worker_boxes import WorkerBoxes
from rollcall.sandbox.agents.agent_processes import AgentProcesses
from rollcall.sandbox.boxes.box import Box, Spec
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.grading.grading import grade
from rollcall.sandbox.grading.reference import reference_of
from rollcall.sandbox.private_places import check_given, mounts
from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.sandbox.tasks.task_names import environment_config
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import Instance, Task, Trajectory
from tests.support.engines import has, left_out
from tests.support.hosted_rollout import HostedRun
from tests.support.process_host import ProcessHost
from tests.support.task_directories import write_task
from tests.support.tiers import cases

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
# All names of a box, and what small files hold, except those of the system and of Python, which are
# older than any project here; the word itself stands nowhere in here.
WALK = f"""
import os
OLD = tuple({json.dumps([f"{each}/" for each in ("/usr", sys.prefix, sys.base_prefix)])})
def found(reversed_word):
    word, seen = reversed_word[::-1], []
    for folder, folders, files in os.walk("/"):
        folders[:] = [each for each in folders if folder != "/" or each not in ("proc", "sys")]
        seen += [os.path.join(folder, each) for each in (*folders, *files) if word in each]
        for each in files if not os.path.join(folder, "").startswith(OLD) else ():
            path = os.path.join(folder, each)
            if os.access(path, os.R_OK) and os.path.isfile(path) and os.stat(path).st_size < 65536:
                with open(path, "rb") as file:
                    if word.encode() in file.read():
                        seen.append(path)
    return sorted(set(seen))
"""
AGENT = f"""
import json, os, urllib.request
import package
{WALK}

def acts(task, url, key):
    def step(action):
        body = json.dumps({{"action": action}}).encode()
        head = {{"Authorization": f"Bearer {{key}}"}}
        urllib.request.urlopen(urllib.request.Request(f"{{url}}/v1/step", body, head)).read()
    step(task["config"]["action"])
    seen = found(task["config"]["word"])
    try:
        from package import late
        import beside
        seen += [late.SAID, beside.SAID]
    except ImportError as error:
        seen.append(type(error).__name__)
    if task["config"]["box"] == "own":
        step(task["config"]["submit"])
    return json.dumps(seen)

def reads(task, url, key):
    return json.dumps(os.listdir(task["config"]["mounts"][0]))
"""


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    if not has("bwrap"):
        left_out("bubblewrap", "walks through boxes")


class Project:
    """A checkout that holds everything: an agent and its package, state, tasks."""

    def __init__(self, above: str | None) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="project-", dir=above))
        self.place.chmod(0o755)
        self.word = f"canary{secrets.token_hex(8)}"
        write_task(self.place / "tasks" / "sums")
        modules = {
            "agents.py": AGENT,
            "beside.py": "SAID = 'beside'\n",
            "package/__init__.py": "",
            "package/late.py": "SAID = 'late'\n",
        }
        canaries = (
            ".git", ".rollcall/objects", "tasks/sums/solution", "tasks/sums/tests", "tests",
            "package/tests", "package/.rollcall", "data",
        )  # fmt: skip
        hidden = {f"{each}/{self.word}.py": f"# {self.word}\n" for each in canaries}
        for name, content in {**modules, **hidden}.items():
            (self.place / name).parent.mkdir(parents=True, exist_ok=True)
            (self.place / name).write_text(content)

    def task(self) -> HarborTask:
        return read_task(self.place / "tasks" / "sums")

    def hosted(self, function: str, box: str, shell: Mapping[str, Any], **more: Any) -> HostedRun:
        config = {
            "agent": "python", "function": f"{self.place}/agents.py:{function}", "box": box,
            "word": self.word[::-1], **more,
        }  # fmt: skip
        task = Task("shell", json.dumps(shell)) if shell else Task(prompt="look")
        return HostedRun(config=config, task=task)


@pytest.fixture
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    above = getattr(request, "param", None)
    if above and not os.access(above, os.W_OK):
        left_out(f"a {above} that can be written", "checkouts there")
    made = Project(above)
    yield made
    shutil.rmtree(made.place)


def lived(folder: Path, run: HostedRun) -> Trajectory:
    """Run a rollout with boxes lent by pools, as in a worker."""

    async def live() -> Trajectory:
        def tell(instance: Instance) -> None:
            told.append(instance)

        told: list[Instance] = []
        loop_thread: Any = SimpleNamespace(at_close=lambda close: None)
        boxes = WorkerBoxes(
            loop_thread, Leases(folder / "state" / "leases", "x"), tell, warm=1, box="bubblewrap"
        )
        gateway, processes = Gateway(bind()), AgentProcesses(folder / "agents", folder / "scratch")
        await gateway.start()
        run.host = ProcessHost(gateway, processes)
        run.host.boxes = boxes.of("r", 1)
        try:
            return await run.run(timeout_s=300)
        finally:
            await processes.close()
            await gateway.close()
            await boxes.close()

    return asyncio.run(live())


@pytest.mark.parametrize(
    ("project", "box", "mode"),
    cases(
        [
            (None, "own", "persistent"),
            ("/usr/src", "task", "persistent"),
            (None, "task", "ephemeral"),
            ("/usr/local/src", "own", "ephemeral"),
        ],
        2,
    ),
    indirect=["project"],
)
def test_hidden_files_are_invisible_in_agent_and_task_boxes(
    project: Project, box: str, mode: str, tmp_path: Path
) -> None:
    # Given a task whose commands and whose check walk through their box too
    look = f"python3 -c '{WALK}\nprint(found(\"{project.word[::-1]}\"))'"
    config = environment_config(project.task(), box="bubblewrap")
    shell = {**config, "mode": mode, "check": f"[ \"$({look})\" = '[]' ]"}
    run = project.hosted("acts", box, shell, action=look, submit=SUBMIT)

    trajectory = lived(tmp_path, run)

    # Then neither they nor the agent find anything, and the agent has its modules
    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    below_usr = str(project.place).startswith("/usr/")
    assert json.loads(trajectory.result) == (["ImportError"] if below_usr else ["late", "beside"])
    steps = [step for step in trajectory.steps or () if step.session == "main"]
    assert steps[1].text == "exit code 0\n[]\n"
    assert (steps[-1].terminated, steps[-1].reward) == (True, 1.0), steps[-1].info


def test_code_under_test_finds_no_hidden_files_in_the_grading_box(project: Project) -> None:
    body = f'{WALK}\ndef add(a, b):\n    return a + b + len(found("{project.word[::-1]}"))\n'
    lines = [f"+{line}" for line in body.splitlines()]
    patch = "\n".join(
        ["diff --git a/sums.py b/sums.py", "--- a/sums.py", "+++ b/sums.py",
         f"@@ -1,2 +1,{len(lines)} @@", "-def add(a, b):", "-    return a - b", *lines, ""]
    )  # fmt: skip

    verdict = asyncio.run(
        grade(BubblewrapDriver().open, reference_of(project.task()), patch.encode())
    )

    assert verdict.resolved, verdict


@pytest.mark.parametrize(
    "named", [".", ".rollcall", ".rollcall/objects", "tasks", "tasks/sums/solution", "package"]
)
def test_mount_that_contains_hidden_files_is_refused(project: Project, named: str) -> None:
    config = {"mounts": [str((project.place / named).resolve())]}

    with pytest.raises(WorkFailed, match="no box may see") as failed:
        mounts(config, {})

    assert (failed.value.code, failed.value.retriable) == ("bad_config", False)


def test_mounted_directory_is_visible_beside_the_modules_of_a_folder(
    project: Project, tmp_path: Path
) -> None:
    data = project.place / "data"
    run = project.hosted("reads", "own", {}, mounts=[str(data)])

    trajectory = lived(tmp_path, run)

    assert trajectory.status == "finished", trajectory.reason
    assert json.loads(trajectory.result) == [f"{project.word}.py"]


def test_copied_directory_may_be_a_checkout_but_not_contain_state(project: Project) -> None:
    check_given(str(project.place / "data"), checkout=True)
    (project.place / "data" / ".git").mkdir()
    check_given(str(project.place / "data"), checkout=True)
    with pytest.raises(WorkFailed, match=r"holds .*/\.rollcall"):
        check_given(str(project.place), checkout=True)


@pytest.mark.parametrize("seen", ["above", "state", "state/leases", "state/other"])
def test_state_directory_of_any_name_is_never_mounted_in_a_box(seen: str, tmp_path: Path) -> None:
    (tmp_path / "above" / "state" / "other").mkdir(parents=True)

    async def lend(place: Path) -> Box:
        loop_thread: Any = SimpleNamespace(at_close=lambda close: None)
        leases = Leases(tmp_path / "above" / "state" / "leases", "x")
        boxes = WorkerBoxes(loop_thread, leases, lambda instance: None, warm=0, box="bubblewrap")
        try:
            return await boxes.of("r", 1).lend(None, Spec(mounts={str(place): str(place)}))
        finally:
            await boxes.close()

    place = tmp_path / "above" / seen.removeprefix("above")
    with pytest.raises(WorkFailed, match="holds state of this worker"):
        asyncio.run(lend(place))
