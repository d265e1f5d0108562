"""Boxes of namespaces: their limits, refused specs, and their end with their worker."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.sandbox import program_groups
from rollcall.sandbox.boxes.box import BoxLimits, Spec
from rollcall.sandbox.boxes.bubblewrap import FIRST_USER, MARK, BubblewrapBox, BubblewrapDriver
from rollcall.sandbox.boxes.cgroups import Cgroups
from rollcall.sandbox.boxes.shell import Shell
from rollcall.schemas.errors import WorkFailed
from tests.support.command_line import ROOT
from tests.support.engines import has, left_out
from tests.support.waiting import until

if not has("bwrap"):
    left_out("bubblewrap", "how boxes of namespaces are bound, and end")

LIMITS = BoxLimits(memory_bytes=96 << 20, processes=40, disk_bytes=4 << 20)
WORKER = """
import asyncio
from rollcall.sandbox.boxes.box import Spec
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver

async def work():
    driver = BubblewrapDriver()
    boxes = [await driver.open(Spec()) for _ in range(2)]
    for box in boxes:
        await box.start("/bin/sh", "-c", "trap '' TERM; (setsid sleep 9865 &); sleep 9866")
    print(*(box.ident for box in boxes), flush=True)
    await asyncio.sleep(600)

asyncio.run(work())
"""
CRAMPED = """
import asyncio, os, resource
from rollcall.sandbox.boxes.box import Spec
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver
from rollcall.schemas.errors import WorkFailed

def used():
    return sorted(os.listdir("/proc/self/fd"))

async def work():
    driver, most = BubblewrapDriver(), resource.getrlimit(resource.RLIMIT_NOFILE)
    held = await driver.open(Spec())  # and the worker's supervisor with it
    before, failed = used(), 0
    for room in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + room, most[1]))
        try:
            box = await driver.open(Spec())
        except WorkFailed as error:
            box = None
            failed += 1
            assert (error.code, error.retriable) == ("box_unavailable", True), error
            assert "Too many open files" in str(error), error
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
        if box:
            await box.close()
        assert used() == before, (room, before, used())
    print(failed, (await held.run(["echo", "alive"])).output, end="")
    await held.close()

asyncio.run(work())
"""


def in_a_box(episode: Callable[[BubblewrapBox], Awaitable[None]], **spec: object) -> None:
    async def whole() -> None:
        box = await BubblewrapDriver().open(replace(Spec(limits=LIMITS), **spec))  # type: ignore[arg-type]
        try:
            await episode(box)
        finally:
            await box.close()

    asyncio.run(whole())


def held_by(ident: str) -> list[int]:
    """Processes that hold a box, or run in it as a user of its own."""
    user = BubblewrapDriver().user_of(ident) or -1
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            status = (place / "status").read_text()
            begins = (place / "cmdline").read_bytes().startswith((MARK + ident).encode())
        except OSError:
            continue
        if begins or f"Uid:\t{user}\t" in status:
            found.append(int(place.name))
    return found


def test_box_has_its_writable_paths_mounts_and_variables(tmp_path: Path) -> None:
    source = Path(shutil.which("bwrap") or "").parent  # all users can reach it

    async def episode(box: BubblewrapBox) -> None:
        ran = await box.run(["sh", "-c", "echo $A >/testbed/x; cat x; ls /lent/bwrap; pwd"],
                            cwd="/testbed")  # fmt: skip
        assert ran.output == "1\n/lent/bwrap\n/testbed\n"
        assert (await box.run(["touch", "/lent/x"])).exit_code == 1

    in_a_box(episode, writable=("/testbed",), mounts={"/lent": str(source)}, env={"A": "1"})


def test_mount_includes_nested_mounts_of_the_host() -> None:
    """The directory is bind-mounted, since an overlay would not show nested mounts."""

    async def episode(box: BubblewrapBox) -> None:
        assert (await box.run(["ls", "/lent/pts"])).output == "ptmx\n"

    in_a_box(episode, mounts={"/lent": "/dev"})


def test_shell_keeps_its_state_and_out_of_memory_is_reported() -> None:
    async def episode(box: BubblewrapBox) -> None:
        shell = Shell(box)
        assert (await shell.run("cd /tmp; x=1", timeout_s=30)).exit_code == 0
        assert (await shell.run("pwd; echo $x", timeout_s=30)).output == "/tmp\n1\n"
        ended = await shell.run("sleep 9999 & exit 7", timeout_s=30)
        assert (ended.exit_code, ended.fresh) == (7, True)
        assert "sleep" not in (await shell.run("ps -eo args --pid 1 -N", timeout_s=30)).output
        ran = await box.run(["python3", "-c", "bytearray(200 << 20)"])
        if BubblewrapDriver().enforces()["memory"] == "control group":
            assert (ran.exit_code, ran.oom) == (137, True)
        else:
            assert "MemoryError" in ran.output

    in_a_box(episode)


def test_box_without_its_first_process_reports_box_died() -> None:
    async def episode(box: BubblewrapBox) -> None:
        program = await box.start("/bin/sh", "-c", "sleep 9999")
        for pid in held_by(box.ident):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not held_by(box.ident), 20, lambda: f"{held_by(box.ident)} run on")
        assert await program.wait() == -9
        with pytest.raises(WorkFailed) as died:
            await box.run(["true"])
        assert (died.value.code, died.value.retriable) == ("box_died", True)

    in_a_box(episode)


@pytest.mark.parametrize(
    ("spec", "code", "said"),
    [
        (Spec(network=True), "bad_config", "no network"),
        (Spec(image="nowhere"), "image", "no image 'nowhere'"),
        (Spec(mounts={"/x": "/nowhere/at/all"}), "box_unavailable", "/nowhere/at/all"),
    ],
)
def test_unsupported_box_spec_is_refused(spec: Spec, code: str, said: str) -> None:
    async def whole() -> None:
        driver = BubblewrapDriver()
        with pytest.raises(WorkFailed, match=said) as refused:
            await driver.open(spec, "refused000")
        assert refused.value.code == code
        assert "refused000" not in await driver.found()

    asyncio.run(whole())


def test_box_name_in_use_is_refused_with_control_groups() -> None:
    async def episode(box: BubblewrapBox) -> None:
        if Cgroups():
            with pytest.raises(WorkFailed, match="already"):
                await BubblewrapDriver().open(Spec(), box.ident)
            assert (await box.run(["true"])).exit_code == 0

    in_a_box(episode)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Unknown option --disable-userns", "version 0.8"),
        ("Can't find source path /root/x: Permission denied", "must be able to walk there"),
        ("No permissions to create new namespace", "sysctl user.max_user_namespaces"),
        ("setting up uid map: Permission denied", "apparmor_restrict_unprivileged_userns"),
    ],
)
def test_bubblewrap_failure_names_the_remedy(said: str, remedy: str, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text(f'#!/bin/sh\necho "bwrap: {said}" >&2; exit 1\n')
    program.chmod(0o755)

    why = asyncio.run(BubblewrapDriver(str(program), user=os.getuid()).unavailable())

    assert said in why
    assert remedy in why
    assert "\n" not in why


def test_missing_bubblewrap_names_the_install_command() -> None:
    missing = BubblewrapDriver()
    missing._program = ""
    assert "apt-get install bubblewrap" in asyncio.run(missing.unavailable())


def test_reused_pid_of_a_dead_box_is_not_entered() -> None:
    async def episode(box: BubblewrapBox) -> None:
        box._confinement = replace(box._confinement, within=os.getpid())
        with pytest.raises(WorkFailed, match="gone") as died:
            await box.run(["true"])
        assert died.value.code == "box_died"

    in_a_box(episode)


def test_limits_without_control_groups_are_reported_as_rlimits() -> None:
    driver = BubblewrapDriver(cgroups=Cgroups(Path("/nowhere")))

    assert driver.enforces()["memory"].startswith("rlimits")
    assert any("control groups" in line for line in driver.lacks())


def test_box_processes_end_with_their_killed_worker() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert worker.stdout
    idents = worker.stdout.readline().split()
    assert len(idents) == 2
    assert all(held_by(ident) for ident in idents)

    worker.kill()
    worker.wait(20)
    worker.stdout.close()

    until(lambda: not any(map(held_by, idents)), 20, lambda: f"{list(map(held_by, idents))} run on")

    async def reaped() -> set[str]:
        driver = BubblewrapDriver()
        for ident in idents:
            await driver.remove(ident)
        return set(await driver.found())

    assert asyncio.run(reaped()).isdisjoint(idents)


def test_each_box_of_root_has_its_own_user() -> None:
    driver = BubblewrapDriver()
    users = {driver.user_of(f"box{number:08d}") for number in range(100)}

    assert len(users) == 100 if os.getuid() == 0 else users == {0}
    assert all(user >= FIRST_USER for user in users - {0})


def test_cgroup_v2_files_are_written_in_kernel_format(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "rollcall"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
        (folder / "cgroup.subtree_control").touch()
    groups = Cgroups(tmp_path)
    box = tmp_path / "rollcall" / "somebody"

    files = groups.make("somebody", BoxLimits())

    assert files == (str(box / "cgroup.procs"),)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    (box / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    (box / "memory.current").write_text("4096\n")
    (box / "pids.current").write_text("2\n")

    usage = groups.usage("somebody")

    assert (usage.memory_bytes, usage.processes, usage.oom_kills) == (4096, 2, 3)
    assert groups.found() == {"somebody"}


def test_processes_join_cgroup_v1_groups_as_threads(tmp_path: Path) -> None:
    """A join as a process waits for all cores of the machine."""
    (tmp_path / "cgroup.procs").touch()

    alone = program_groups.entry(str(tmp_path))
    (tmp_path / "tasks").touch()

    assert Path(alone).name == "cgroup.procs"
    assert Path(program_groups.entry(str(tmp_path))).name == "tasks"


def test_no_descriptor_leaks_when_the_open_file_limit_is_reached() -> None:
    """Also if a first pipe or file is open already and the next one fails."""
    done = subprocess.run(
        [sys.executable, "-c", CRAMPED], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    failed, alive = done.stdout.split()
    assert (int(failed) > 10, alive) == (True, "alive")
