"""A process supervisor ends all programs started through it, at any end of its worker."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from rollcall.sandbox import process_tree
from rollcall.sandbox.process_supervisor import Confinement, ProcessSupervisor, SupervisedProcess
from rollcall.schemas.errors import WorkFailed
from tests.support.processes_left import running
from tests.support.waiting import holds, until

WORKER = """
import asyncio, os
from rollcall.sandbox.process_supervisor import ProcessSupervisor

# Ignores signals; forks twice; leads a session, with nothing in its environment, elsewhere
SCRIPT = "trap '' TERM INT HUP; (sleep $0 &); env -i setsid sh -c 'cd /; sleep '$0 & sleep $0"

async def work(word):
    supervisor = ProcessSupervisor.start()
    for _ in range(2):
        argv = ["/bin/sh", "-c", SCRIPT, word]
        await supervisor.spawn(argv, env={"PATH": "/usr/bin:/bin"}, cwd="/", standard=(0, 2, 2))
    print(supervisor.directory, flush=True)
    await asyncio.sleep(600)

asyncio.run(work(os.environ["WORD"]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_worker_leaves_no_processes_and_no_directory(number: int) -> None:
    word = f"{200_000 + os.getpid()}.{int(number)}"
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "WORD": word},
    )
    assert worker.stdout
    directory = Path(worker.stdout.readline().strip())
    until(lambda: len(running(word)) >= 8, 20, lambda: f"{running(word)} of 8 are running")

    worker.send_signal(number)
    worker.wait(20)
    worker.stdout.close()

    until(lambda: not running(word), 10, lambda: f"{running(word)} run on")
    until(lambda: not directory.exists(), 10, lambda: f"{directory} is left")


def spawn(argv: list[str], **options: object) -> int:
    """The exit code of one program under its own supervisor."""

    async def whole() -> int:
        supervisor = ProcessSupervisor.start()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            kept = await supervisor.spawn(
                argv, **{"env": {}, "cwd": "/", "standard": (null, null, null), **options}
            )  # type: ignore[arg-type]
            return await kept.wait()
        finally:
            os.close(null)
            await supervisor.close()
            await supervisor.close()
            assert not supervisor.directory.exists()

    return asyncio.run(whole())


@pytest.mark.parametrize(
    ("script", "code"), [("exit 5", 5), ("kill -9 $$", -9), ('test "$(ls -A /proc/$$/fd)"', 0)]
)
def test_exit_code_of_a_program_is_reported(script: str, code: int) -> None:
    assert spawn(["/bin/sh", "-c", script]) == code


def test_program_starts_with_three_descriptors_its_own_session_and_default_signals() -> None:
    script = (
        'set -- /proc/$$/fd/*; test "${1##*/} ${2##*/} ${3##*/}" = "0 1 2" || exit 1; '
        "read -r _ _ _ _ group session _ </proc/$$/stat; test $session = $$ || exit 2; "
        "grep -q 'SigIgn:.0000000[01][08]0000000' /proc/$$/status || exit 3"
    )  # 32 and 33 are the C library's own: its posix_spawn, which make uses, leaves them ignored

    assert spawn(["/bin/sh", "-c", script]) == 0


@pytest.mark.parametrize(
    ("argv", "options", "wrong"),
    [
        (["/no/such/program"], {}, "No such file"),
        (["/bin/sh"], {"cwd": "/no/such/directory"}, "No such file"),
        (["/bin/sh"], {"env": {"a": "\0"}}, "null"),
        (["/bin/sh"], {"env": {"a": "x" * 200_000}}, "bytes"),
        (["/bin/sh"], {"limits": {"RLIMIT_NOFILE": -7}}, "limit"),
    ],
)
def test_program_that_cannot_start_is_refused_with_the_reason(
    argv: list[str], options: dict[str, object], wrong: str
) -> None:
    with pytest.raises(WorkFailed, match=wrong) as failed:
        spawn(argv, **options)

    assert (failed.value.code, failed.value.retriable) == ("not_started", False)


def test_cancelled_spawn_leaves_no_program_running() -> None:
    word = f"{300_000 + os.getpid()}"

    async def whole() -> None:
        supervisor = ProcessSupervisor.start()
        standard = (0, 1, 2)
        spawning = [
            asyncio.ensure_future(
                supervisor.spawn(["/bin/sleep", word], env={}, cwd="/", standard=standard)
            )
            for _ in range(100)
        ]
        await asyncio.sleep(0)
        for each in spawning[:99]:
            each.cancel()
        kept = await spawning[99]
        assert len(running(word)) <= 100
        await asyncio.to_thread(
            until, lambda: len(running(word)) == 1, 20, lambda: f"{len(running(word))} running"
        )
        await kept.end()
        await kept.end()
        assert running(word) == []
        await supervisor.close()

    asyncio.run(whole())


def test_slow_program_start_does_not_block_other_starts(tmp_path: Path) -> None:
    async def whole() -> list[int]:
        supervisor = ProcessSupervisor.start()

        def sh(script: str, *cgroups: str) -> asyncio.Future[SupervisedProcess]:
            confinement = Confinement(cgroups=cgroups)
            options = {"env": {}, "cwd": "/", "standard": (0, 1, 2), "confinement": confinement}
            return asyncio.ensure_future(supervisor.spawn(["/bin/sh", "-c", script], **options))  # type: ignore[arg-type]

        # Given two programs whose writes to their control groups block until a reader opens them
        for name in ("first", "second"):
            os.mkfifo(tmp_path / name)
        first, second = (sh("exit 3", str(tmp_path / each)) for each in ("first", "second"))

        # When other programs are started, one of which fails
        codes = [await (await sh("exit 4")).wait()]
        with pytest.raises(WorkFailed, match="No such file"):
            await sh("exit 5", str(tmp_path / "none"))
        assert not first.done()
        assert not second.done()

        # Then those end first; of the two, one continues when it can, and the cancelled one ends
        second.cancel()
        with (tmp_path / "first").open("rb") as heard:
            codes.append(await (await first).wait())
            assert heard.read() == b"0"
        await supervisor.close()
        return codes

    assert asyncio.run(whole()) == [4, 3]


def test_shared_supervisor_ends_when_its_last_borrower_returns_it() -> None:
    async def whole() -> tuple[bool, bool]:
        first, second = ProcessSupervisor.borrow(), ProcessSupervisor.borrow()
        await first.give_back()
        alive = second.alive
        await second.give_back()
        return first is second and alive, second.alive

    assert asyncio.run(whole()) == (True, False)


def supervisor_itself(supervisor: ProcessSupervisor) -> int:
    """The child of its reaper."""
    return process_tree.children(supervisor._process.pid)[0]


async def spare_of(supervisor: ProcessSupervisor) -> int:
    """The child that waits for the first request."""
    await holds(lambda: bool(process_tree.children(supervisor._process.pid)))
    await holds(lambda: bool(process_tree.children(supervisor_itself(supervisor))))
    return process_tree.children(supervisor_itself(supervisor))[0]


def descriptors(pid: int) -> list[str]:
    """Open descriptors except the three that the supervisor starts with."""
    kinds = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the folder was read
            if int(each.name) > 2:
                kinds.append(os.readlink(each).partition(":")[0])
    return sorted(kinds)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_idle_spare_process_inherits_no_descriptors_and_ends_with_its_supervisor() -> None:
    async def whole() -> None:
        supervisor = ProcessSupervisor.start()
        spare = await spare_of(supervisor)
        await holds(lambda: descriptors(spare) == ["pipe", "socket"])

        os.kill(supervisor_itself(supervisor), signal.SIGKILL)

        await holds(lambda: not Path(f"/proc/{spare}").exists())
        await supervisor.close()

    asyncio.run(whole())


def test_program_starts_even_if_the_spare_process_was_killed() -> None:
    async def whole() -> int:
        supervisor = ProcessSupervisor.start()
        spare, itself = await spare_of(supervisor), supervisor_itself(supervisor)

        # Given a supervisor that gets a request before it sees that its spare process is dead
        os.kill(itself, signal.SIGSTOP)
        os.kill(spare, signal.SIGKILL)
        await holds(lambda: state(spare) == "Z")
        argv = ["/bin/sh", "-c", "exit 7"]
        spawning = asyncio.create_task(supervisor.spawn(argv, env={}, cwd="/", standard=(0, 1, 2)))
        await asyncio.sleep(0)

        os.kill(itself, signal.SIGCONT)

        code = await (await spawning).wait()
        await supervisor.close()
        return code

    assert asyncio.run(whole()) == 7


def test_killed_idle_spare_process_is_replaced() -> None:
    async def whole() -> None:
        supervisor = ProcessSupervisor.start()
        spare = await spare_of(supervisor)
        os.kill(spare, signal.SIGKILL)
        await holds(
            lambda: process_tree.children(supervisor_itself(supervisor)) not in ([], [spare])
        )
        await supervisor.close()

    asyncio.run(whole())
