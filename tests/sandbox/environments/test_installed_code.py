"""Code that an image has installed from the agent's work directory: src layouts, `pip -e`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rollcall.sandbox.boxes.box import driver
from rollcall.sandbox.environment import Observation, make_environment
from rollcall.sandbox.grading.grading import grade
from rollcall.sandbox.grading.reference import reference_of
from rollcall.sandbox.grading.verdict import Verdict
from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.sandbox.tasks.task_names import environment_config
from tests.support.engines import IMAGE, left_out
from tests.support.mortal_boxes import MortalHost
from tests.support.task_directories import TASK, TESTS, WRONG, write_task

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
INSTALLED = "/usr/lib/python3/dist-packages/sums.pth"
"""The files that `pip install -e` creates, written without a package index."""
DOCKERFILE = f"""\
FROM {IMAGE}
COPY testbed /testbed
RUN echo /testbed/src > {INSTALLED} && touch /testbed/built
WORKDIR /testbed
"""


@pytest.fixture
def task(tmp_path: Path) -> HarborTask:
    if not IMAGE:
        left_out("docker", "code that an image has installed; `.ci/docker` starts an engine")
    files: dict[str, str | None] = {
        "environment/Dockerfile": DOCKERFILE,
        "environment/testbed/src/sums.py": WRONG,
        "environment/testbed/sums.py": None,
        "task.toml": TASK.replace("[environment]\n", '[environment]\nworkdir = "/testbed"\n'),
        "tests/testbed/tests/test_sums.py": TESTS,
        "solution/gold.patch": None,
    }
    return read_task(write_task(tmp_path / "sums", files))


def worked_at(task: HarborTask, *actions: str) -> tuple[list[Observation], Verdict]:
    """All observations, and the verdict on the work."""

    async def whole() -> tuple[list[Observation], Verdict]:
        host = MortalHost(lambda *moment: None)
        config = json.dumps(environment_config(task, box="docker"))
        made = make_environment("shell", config, host)  # type: ignore[arg-type]
        seen = [await made.open(0)]  # type: ignore[misc]
        try:
            seen += [await made.step(action) for action in actions]  # type: ignore[misc]
        finally:
            await made.close()  # type: ignore[misc]
        left: Any = seen[-1].info["artefacts"]
        patch = host.kept[left[-1]["uri"]]
        return seen, await grade(driver("docker").open, reference_of(task), patch)

    return asyncio.run(whole())


def test_edits_apply_to_the_installed_package_and_are_graded(task: HarborTask) -> None:
    add = "python3 -c 'import sums; print(sums.__file__, sums.add(2, 3))'"

    seen, verdict = worked_at(
        task, "pwd; git log --format=%s; git status --short", f"cd /; {add}; cd - >/dev/null",
        "sed -i 's/a - b/a + b/' src/sums.py", "exit", f"pwd; {add}; git diff --stat", SUBMIT,
    )  # fmt: skip

    texts = [each.text.partition("\n")[2] for each in seen]
    assert "/bin/sh in /testbed." in seen[0].text
    assert texts[1] == "/testbed\nbase\n"
    assert texts[2] == "/testbed/src/sums.py -1\n"
    assert texts[5].startswith("/testbed\n/testbed/src/sums.py 5\n src/sums.py | 2 +-\n")
    assert (verdict.code, verdict.reason) == ("resolved", "all 2 tests pass")


def test_task_without_a_fix_is_not_resolved(task: HarborTask) -> None:
    _, verdict = worked_at(task, "touch new", SUBMIT)

    assert verdict.code == "failed"
