"""A fork bomb in one box: commands of other boxes are answered while it runs and while it ends."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from rollcall.sandbox.boxes.box import Spec
from rollcall.sandbox.boxes.bubblewrap import BubblewrapBox, BubblewrapDriver
from rollcall.sandbox.boxes.cgroups import Cgroups
from tests.support.engines import has, left_out
from tests.support.under_attack import ORDINARY_USER

if not has("bwrap"):
    left_out("bubblewrap", "fork bombs in its boxes")

ANSWER_S = {"control groups": 1.0, "rlimits": 5.0}
"""Longest wait of a command; without control groups, boxes share the processors without limits."""
BOMB_S = 2.0
TRIES = 3
"""Number of tries: other load may slow down one of them, a defect slows down all."""
BOMB = """
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError:
        os.write(1, b'full ')
        time.sleep(0.2)
"""
"""Each of its processes forks on, ignores all signals and leads a session of its own."""


def bounds() -> dict[str, Cgroups]:
    """Return each way to bind boxes here: rlimits, and control groups where they can be written."""
    found = {"rlimits": Cgroups(Path("/nowhere"))}
    return found | ({"control groups": Cgroups()} if Cgroups().holds("pids") else {})


@pytest.mark.parametrize("bound", bounds())
def test_fork_bomb_does_not_block_commands_in_other_boxes(bound: str) -> None:
    groups = bounds()[bound]
    user = ORDINARY_USER if bound == "rlimits" and os.getuid() == 0 else None

    slowest: list[float] = []
    while not slowest or (min(slowest) > ANSWER_S[bound] and len(slowest) < TRIES):
        slowest_s, ended = asyncio.run(measured(BubblewrapDriver(cgroups=groups, user=user)))
        assert ended
        slowest.append(slowest_s)

    assert min(slowest) <= ANSWER_S[bound]


async def measured(driver: BubblewrapDriver) -> tuple[float, bool]:
    """Return the longest wait of a command beside a bomb, and whether all of the bomb has ended."""
    other = await BubblewrapDriver().open(Spec())  # RLIMIT_NPROC counts all that a user runs
    bombed = await driver.open(Spec())
    waits: list[float] = []
    try:
        await other.run(["true"])
        bomb = asyncio.create_task(bombed.run(["python3", "-c", BOMB], timeout_s=BOMB_S))
        while not bomb.done():
            began = time.monotonic()
            assert (await other.run(["true"])).exit_code == 0
            waits.append(time.monotonic() - began)
        assert ((await bomb).timed_out, "full" in (await bomb).output) == (True, True)
        return max(waits), await processes(bombed) == 0
    finally:
        await bombed.close()
        await other.close()


async def processes(box: BubblewrapBox) -> int:
    """Count the processes of a box, without its first process and the counting one."""
    ran = await box.run(["sh", "-c", "echo /proc/[0-9]*"])
    return len(ran.output.split()) - 2
