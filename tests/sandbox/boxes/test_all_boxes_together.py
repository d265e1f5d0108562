"""All boxes of a host together stay within its size, and each within its own limits.

The host of these tests is a control group of some size; limits below it are enforced for real.
"""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.sandbox.boxes.box import BoxLimits, Spec
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver
from rollcall.sandbox.boxes.cgroups import OURS, ROOT, Cgroups, host_limits
from rollcall.sandbox.boxes.interior import TTL_S
from tests.support.engines import has, left_out

MEBIBYTE = 1 << 20
HOST_BYTES, HOST_PROCESSES = 256 * MEBIBYTE, 64
PYTHON = ("/usr/bin/env", "python3", "-c")
TAKE = "b = bytearray(115 << 20); print('taken', flush=True); input()"
FORK = """
import os, time
for number in range(30):
    try: pid = os.fork()
    except OSError: break
    if pid == 0: time.sleep(60)
else: number += 1
print(number, flush=True)
input()
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    """The root of control groups that has a little of this machine's memory and processes."""
    if not has("bwrap"):
        left_out("bubblewrap", "what bounds all its boxes together")
    if not (Cgroups().holds("memory") and Cgroups().holds("pids")):
        pytest.skip("left out for want of control groups: what bounds all boxes together")
    name = f"rollcall-test-{secrets.token_hex(4)}"
    bounds = {"memory.max": HOST_BYTES, "memory.limit_in_bytes": HOST_BYTES,
              "pids.max": HOST_PROCESSES}  # fmt: skip
    unified = (ROOT / "cgroup.controllers").exists()
    places = [ROOT / name] if unified else [ROOT / each / name for each in ("memory", "pids")]
    for place in places:
        place.mkdir()
        for file, value in bounds.items():
            if (place / file).exists():
                (place / file).write_text(str(value))
        if not unified:
            (tmp_path / place.parent.name).symlink_to(place)
    yield places[0] if unified else tmp_path
    for place in places:
        (place / OURS).rmdir()
        place.rmdir()


def test_boxes_together_stay_within_the_limits_of_the_host(host: Path) -> None:
    limits = BoxLimits(memory_bytes=HOST_BYTES, processes=HOST_PROCESSES)

    async def whole() -> None:
        driver = BubblewrapDriver(cgroups=Cgroups(host))
        boxes = [await driver.open(Spec(limits=limits)) for _ in range(2)]
        try:
            forkers = [await box.start(*PYTHON, FORK) for box in boxes]
            forked = [int(await forker.read(100)) for forker in forkers]
            assert 0 < sum(forked) < HOST_PROCESSES // 2
            for forker in forkers:
                await forker.end()
            takers = [await box.start(*PYTHON, TAKE) for box in boxes]
            ends = [asyncio.create_task(taker.wait()) for taker in takers]
            await asyncio.wait(ends, timeout=30, return_when=asyncio.FIRST_COMPLETED)
            assert -signal.SIGKILL in [end.result() for end in ends if end.done()]
            assert [(await box.usage()).oom_kills for box in boxes] == [0, 0]  # not by own limits
        finally:
            for box in boxes:
                await box.close()
        assert (
            f"{HOST_BYTES * 7 // 8:,} bytes of memory, 32 processes"
            in (driver.enforces()["together"])
        )

    asyncio.run(whole())


@given(memory=st.integers(1 << 20, 1 << 58), pids=st.integers(2, 1 << 22), unified=st.booleans())
def test_host_reserves_part_of_its_resources_and_lower_limits_stay(
    memory: int, pids: int, unified: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root")
    places = (
        {"memory": root, "pids": root} if unified else {n: root / n for n in ("memory", "pids")}
    )
    for place in places.values():
        for folder in (place, place / OURS):
            folder.mkdir(parents=True, exist_ok=True)
    bounds = {"memory": "memory.max" if unified else "memory.limit_in_bytes", "pids": "pids.max"}
    if unified:
        for folder in (root, root / OURS):
            (folder / "cgroup.controllers").write_text("memory pids\n")
            (folder / "cgroup.subtree_control").touch()
    for controller, value in (("memory", memory), ("pids", pids)):
        (places[controller] / bounds[controller]).write_text(f"{value}\n")
        (places[controller] / OURS / bounds[controller]).touch()  # the kernel says `max`

    limits = host_limits(root)
    groups = Cgroups(root)

    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    has = min(memory, physical)
    assert has * 7 // 8 <= limits.memory_bytes <= has * 7 // 8 + 1
    assert 0 < limits.processes <= pids // 2
    together = groups.together()
    assert (together.memory_bytes, together.processes) == (limits.memory_bytes, limits.processes)

    (places["pids"] / OURS / "pids.max").write_text("1")
    assert Cgroups(root).together().processes == 1


def test_orphaned_control_groups_are_removed_after_the_lease_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / OURS
    for folder in (tmp_path, ours):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("memory pids\n")
        (folder / "cgroup.subtree_control").touch()
    for name in ("a" * 24 + "/1234", "b" * 24):
        (ours / name).mkdir(parents=True)
    (ours / ("b" * 24) / "process").touch()  # the kernel removes no folder that holds one

    assert Cgroups(tmp_path).found() == {"a" * 24, "b" * 24}
    later = time.time() + TTL_S + 60.0
    monkeypatch.setattr("rollcall.sandbox.boxes.cgroups.time.time", lambda: later)
    assert Cgroups(tmp_path).found() == {"b" * 24}
