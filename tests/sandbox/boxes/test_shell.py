"""One shell in a box of the local driver: it survives all commands and leaves no processes."""

import asyncio
import itertools
import os
import re
import resource
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, cast

import pytest

from rollcall.sandbox.boxes.box import BoxLimits, CommandResult, Spec, Usage, driver
from rollcall.sandbox.boxes.box_commands import BoxCommands
from rollcall.sandbox.boxes.frame import answering
from rollcall.sandbox.boxes.shell import Shell
from rollcall.sandbox.boxes.supervised_program import SupervisedProgram
from rollcall.schemas.errors import WorkFailed
from tests.support.processes_left import running
from tests.support.waiting import until

Run = Callable[..., Awaitable[CommandResult]]


def in_a_shell(episode: Callable[[Run], Awaitable[None]], **options: object) -> None:
    """Run an episode in a box of its own, and check that nothing is left of it."""

    async def whole() -> Path:
        spec = Spec(limits=BoxLimits(file_bytes=1 << 20, open_files=100))
        box = await driver("local").open(spec)
        shell = Shell(box, **options)  # type: ignore[arg-type]

        async def run(command: str, timeout_s: float = 30.0) -> CommandResult:
            return await shell.run(command, timeout_s=timeout_s)

        try:
            await episode(run)
        finally:
            await shell.close()
            await box.close()
            await box.close()
        return Path(box.directory.decode())

    directory = asyncio.run(whole())
    assert not directory.parent.parent.exists()


def outputs(*commands: str, **options: object) -> list[CommandResult]:
    """The results of commands run one after the other."""
    came: list[CommandResult] = []

    async def episode(run: Run) -> None:
        came.extend([await run(command) for command in commands])

    in_a_shell(episode, **options)
    return came


def a_word() -> str:
    """An argument for `sleep` that no other process uses."""
    return f"{100_000 + secrets.randbelow(800_000)}.{secrets.randbelow(10**9):09d}"


def test_directory_variables_and_functions_persist_between_commands() -> None:
    came = outputs("cd / && x=3", "say() { echo said $1; }", "say $x; pwd; false", "echo $?")

    assert [ran.output for ran in came] == ["", "", "said 3\n/\n", "1\n"]
    assert [ran.exit_code for ran in came] == [0, 0, 1, 0]
    assert not any(ran.fresh for ran in came)


def test_stateless_shell_resets_before_every_command() -> None:
    came = outputs("cd /; x=3; exit 4", "pwd; echo $x", stateful=False)

    assert [(ran.output, ran.exit_code, ran.fresh) for ran in came] == [
        ("", 4, False),
        ("~\n\n", 0, False),
    ]


@pytest.mark.parametrize(
    ("command", "output", "code"),
    [
        ("printf 'a\\000\\r\\033[1m\\nno end'", "a\0\r\033[1m\nno end", 0),
        ("printf '\\377\\303('", "��(", 0),
        ("echo out; echo err >&2; echo /dev >/dev/stderr", "out\nerr\n/dev\n", 0),
        ("cat; read line; echo $?", "1\n", 0),
        ("cat <<END\nnever closed", "never closed", 0),
        ("echo 'unclosed", r".*Unterminated quoted string\n", 2),
        ("if", r".*Syntax error.*\n", 2),
        ("echo ${nothing:?is there}", r".*nothing: is there\n", 2),
        ("set -u; echo $nothing; set +u", r".*nothing: parameter not set\n", 2),
        ("nosuch", r".*nosuch: not found\n", 127),
        ("", "", 0),
        ("# a remark", "", 0),
        ("exec 2>&1 >/dev/null; echo unseen", "", 0),
        ("trap 'echo trapped' EXIT; printf() { :; }", "", 0),
        ("set -v; set -n", None, None),
        ("kill -TERM 0; sleep 9", None, None),
        ("\0", "the command holds a NUL.*\n", 2),
        ("\ud800", r".*\?: not found\n", 127),
        (f"echo {'x' * 1_000_000} | wc -c", "1000001\n", 0),
        (f": {'x' * (1 << 20)}", "the command has 1,048,578 bytes.*nothing was run\n", 2),
        (f": {'☃' * 400_000}", "the command has 1,200,002 bytes.*nothing was run\n", 2),
        ("echo " + "'" * 3, r".*Unterminated quoted string\n", 2),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_next_command_runs_after_any_command(
    command: str, output: str | None, code: int | None
) -> None:
    async def episode(run: Run) -> None:
        ran = await run(command, 2.0)
        assert output is None or ran.output == output or re.fullmatch(output, ran.output)
        assert code is None or ran.exit_code == code
        # after `set -n` a shell ignores commands: it times out and is replaced by a new one
        again = await run("echo on", 2.0)
        again = again if again.exit_code == 0 else await run("echo on")
        assert (again.output, again.exit_code) == ("on\n", 0)

    in_a_shell(episode)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 3", 3),
        ("kill -9 $$", 137),
        ("kill $$", 143),
        ("exec sh -c 'exit 5'", 5),
        ("set -e; false", 1),
        ("sleep 9999 & exit 7", 7),
    ],
)
def test_command_that_ends_the_shell_is_reported_and_a_new_shell_starts(
    command: str, code: int
) -> None:
    ended, after, there = outputs(f"x=1; cd /; echo before; {command}", "echo $x; pwd", "echo $$")

    assert (ended.output, ended.exit_code, ended.fresh) == ("before\n", code, True)
    assert (after.output, after.exit_code, after.fresh) == ("\n~\n", 0, False)
    assert there.output.strip().isdigit()


def test_timed_out_command_is_killed_with_its_child_processes() -> None:
    word = a_word()

    async def episode(run: Run) -> None:
        deaf = f"trap '' TERM INT HUP; setsid sleep {word} & (sleep {word} &); sleep {word}"

        ran = await run(f"x=1; echo begun; {deaf}", 1.0)

        assert (ran.output, ran.exit_code, ran.timed_out, ran.fresh) == ("begun\n", -1, True, True)
        assert running(word) == []
        assert (await run("echo $x")).output == "\n"

    in_a_shell(episode)


def test_background_processes_block_no_command_and_end_with_the_box() -> None:
    word = a_word()

    async def episode(run: Run) -> None:
        # Forked twice, with its own session, an empty environment, another directory
        hidden = f"env -i setsid sh -c 'cd /; (sleep {word} & sleep {word}) & :'"

        ran = await run(f"sleep {word} & {hidden} & echo begun", 20.0)

        assert (ran.output, ran.timed_out) == ("begun\n", False)
        await asyncio.to_thread(until, lambda: len(running(word)) == 3, 10, lambda: "not begun")
        assert (await run("echo next")).output == "next\n"

    in_a_shell(episode)

    assert running(word) == []


def test_many_children_end_with_their_command() -> None:
    word = a_word()

    async def episode(run: Run) -> None:
        each = f"(sleep {word} & sleep {word}) &"
        await run(f"for i in 1 2 3 4 5 6 7 8 9 10 11 12; do {each} done; wait", 1.0)
        assert running(word) == []

    in_a_shell(episode)


def test_output_between_two_commands_belongs_to_neither() -> None:
    async def episode(run: Run) -> None:
        await run("(while ! [ -e go ]; do sleep 0.01; done; echo late; touch gone) &")
        await run("touch go; until [ -e gone ]; do sleep 0.01; done", 20.0)
        assert (await run("echo now")).output == "now\n"

    in_a_shell(episode)


def test_large_output_keeps_head_and_tail_and_counts_the_rest() -> None:
    flood = "echo first; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last"

    [ran] = outputs(flood, head_chars=10, tail_chars=7)

    elided = len("first\n") + 30_000_000 + len("\nlast\n") - 10 - 7
    assert ran.output == f"first\nxxxx\n[{elided} characters left out]\nx\nlast\n"
    assert ran.elided_chars == elided


def test_endless_output_ends_at_the_timeout() -> None:
    async def episode(run: Run) -> None:
        ran = await run("yes", 0.5)
        assert (ran.timed_out, ran.output[:4]) == (True, "y\ny\n")
        assert len(ran.output) < 11_000
        # Endless output in the background does not block later commands either
        assert (await run("yes & echo on", 20.0)).exit_code == 0
        assert (await run("kill $!", 20.0)).exit_code == 0

    in_a_shell(episode)


def test_cancelled_command_is_killed_and_the_next_uses_a_new_shell() -> None:
    word = a_word()

    async def episode(run: Run) -> None:
        task = asyncio.ensure_future(run(f"sleep {word} & x=1; sleep {word}"))
        await asyncio.to_thread(until, lambda: len(running(word)) == 2, 10, lambda: "not begun")

        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert running(word) == []
        assert (await run("echo $x")).output == "\n"

    in_a_shell(episode)


def test_process_limits_are_enforced() -> None:
    came = outputs(
        "ulimit -n; ulimit -c", "head -c 3000000 /dev/zero > big; ls -l big | cut -d' ' -f5"
    )

    assert came[0].output == "100\n0\n"
    assert came[1].output.splitlines()[-1] == str(1 << 20)


def test_box_directory_is_shown_under_the_same_name_in_every_box() -> None:
    once, again = outputs("pwd; pwd -P; ls ..; env"), outputs("pwd; pwd -P; ls ..; env")

    assert once[0].output.startswith("~\n~\ntmp\nw\n")
    assert sorted(once[0].output.split("\n")) == sorted(again[0].output.split("\n"))
    assert "HOME=~" in once[0].output.split("\n")


def test_removed_home_directory_is_recreated_for_the_next_shell() -> None:
    came = outputs("touch a; rm -rf ~", "exit", "pwd; ls")

    assert [ran.output for ran in came] == ["", "", "~\n"]


def test_deep_and_locked_directory_trees_are_removed() -> None:
    # `in_a_shell` checks that nothing is left
    deep = "i=0; while [ $i -lt 1500 ]; do mkdir d && cd -P d || break; i=$((i+1)); done; cd ~"
    outputs(
        deep,
        "mkdir locked && touch locked/in && chmod 0 locked",
        "touch -- -rf \"$(printf 'a\\nb')\"",
    )


def test_killed_process_supervisor_gives_a_retriable_box_died_error() -> None:
    word = a_word()

    async def episode() -> None:
        box, other = [await driver("local").open(Spec()) for _ in range(2)]
        shell, beside = Shell(box), Shell(other)
        assert (await beside.run("echo up", timeout_s=20.0)).exit_code == 0

        hidden = f"env -i setsid sleep {word} & (sleep {word} &); kill -9 $PPID; sleep {word}"
        for victim, command in ((shell, hidden), (beside, "echo up")):
            with pytest.raises(WorkFailed) as failed:
                await victim.run(command, timeout_s=20.0)
            assert (failed.value.code, failed.value.retriable) == ("box_died", True)

        fresh = await driver("local").open(Spec())
        assert (await Shell(fresh).run("echo up", timeout_s=20.0)).output == "up\n"
        for each in (box, other, fresh):
            await each.close()
            assert not Path(each.directory.decode()).exists()

    asyncio.run(episode())
    assert running(word) == []


@pytest.mark.parametrize("room", range(7))
def test_start_at_the_open_file_limit_fails_without_leaking_descriptors(room: int) -> None:
    async def whole() -> None:
        box = await driver("local").open(Spec())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = len(os.listdir("/proc/self/fd"))
        unused = (fd for fd in range(soft) if not os.path.lexists(f"/proc/self/fd/{fd}"))
        limit = next(itertools.islice(unused, room, None))  # so many more files can be opened
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            with pytest.raises(WorkFailed) as failed:
                await box.start("/bin/sh")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert failed.value.retriable
        if room < 4:  # two pipes are not open yet
            assert failed.value.code == "box_unavailable"
            assert "ulimit -n" in str(failed.value)
        assert len(os.listdir("/proc/self/fd")) == before
        await box.close()

    asyncio.run(whole())


class Deaf:
    """A program that never answers, or has ended at once."""

    def __init__(self, *, ended: bool) -> None:
        self.has_ended = ended
        self.ends = 0

    async def write(self, content: bytes) -> None:
        """Discard the input."""

    async def read(self, most_bytes: int) -> bytes:
        if not self.has_ended:
            await asyncio.Event().wait()
        return b""

    async def wait(self) -> int:
        return 1

    async def end(self) -> None:
        self.ends += 1


class DeadBox(BoxCommands):
    """A box in which no shell answers."""

    shown: ClassVar[dict[bytes, bytes]] = {}

    def __init__(self, program: Deaf, *, spoilt: bool = False) -> None:
        self.program = program
        self.spoilt = spoilt

    async def start(self, *argv: str, env: Mapping[str, str] | None = None) -> Deaf:
        return self.program

    async def run(self, argv: Sequence[str], **options: object) -> CommandResult:
        return CommandResult("", 1, oom=self.spoilt)

    async def usage(self) -> Usage:
        return Usage()


@pytest.mark.parametrize("ended", [True, False])
def test_unresponsive_shell_gives_a_retriable_box_died_error(ended: bool) -> None:
    program = Deaf(ended=ended)
    shell = Shell(DeadBox(program), open_s=0.05)

    with pytest.raises(WorkFailed, match="does not do it") as failed:
        asyncio.run(shell.run("echo", timeout_s=9.0))

    assert (failed.value.code, failed.value.retriable) == ("box_died", True)
    assert program.ends == 1


def test_box_without_free_memory_is_reported_as_spoilt() -> None:
    shell = Shell(DeadBox(Deaf(ended=True), spoilt=True), open_s=0.05)

    with pytest.raises(WorkFailed, match="holds all the memory") as failed:
        asyncio.run(shell.run("echo", timeout_s=9.0))

    assert (failed.value.code, failed.value.retriable) == ("box_spoilt", False)


def test_standby_shell_is_used_once_and_a_killed_shell_is_detected() -> None:
    async def episode() -> None:
        box = await driver("local").open(Spec())
        try:
            await box.stand_by(20.0)
            await box.stand_by(20.0)
            waited = cast(SupervisedProgram, await box.shell(20.0))
            another = cast(SupervisedProgram, await box.shell(20.0))
            assert waited.pid != another.pid

            await box.stand_by(20.0)
            await box.write("sub/note", b"mine")
            shell = Shell(box, workdir="sub")
            assert (await shell.run("cat note; nowhere", timeout_s=60.0)).output.startswith("mine")
            assert (await shell.run("echo $?; cd ..; ls", timeout_s=60.0)).output == "127\nsub\n"

            await box.stand_by(20.0)
            dead = cast(SupervisedProgram, await box.shell(20.0))
            os.kill(dead.pid, signal.SIGKILL)
            with pytest.raises(WorkFailed, match="does not answer") as died:
                await answering(dead, 20.0)
            assert died.value.code == "box_died"
        finally:
            await box.close()

    asyncio.run(episode())


def test_thirty_concurrent_shells_keep_separate_state() -> None:
    async def one(number: int) -> str:
        box = await driver("local").open(Spec())
        try:
            shell = Shell(box)
            await shell.run(f"x={number}; sleep 0.{number % 10}", timeout_s=60.0)
            return (await shell.run("echo $x", timeout_s=60.0)).output
        finally:
            await box.close()

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(30)))

    began = time.monotonic()
    said = asyncio.run(all_of_them())

    assert said == [f"{number}\n" for number in range(30)]
    assert time.monotonic() - began < 60


def test_live_box_gets_a_second_attempt_to_start_its_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> CommandResult:
        box = await driver("local").open(Spec())
        begin, asked = box.shell, itertools.count()

        async def slow_at_first(within_s: float) -> object:
            if next(asked) == 0:
                msg = "a shell in the box does not answer within 20 s"
                raise WorkFailed("box_died", msg, retriable=True)
            return await begin(within_s)

        monkeypatch.setattr(box, "shell", slow_at_first)
        shell = Shell(box)
        try:
            return await shell.run("echo there", timeout_s=10)
        finally:
            await shell.close()
            await box.close()

    assert asyncio.run(whole()).output == "there\n"


@pytest.mark.parametrize(("killed", "code"), [(1, "box_spoilt"), (0, "box_died")])
def test_repeated_shell_failure_in_a_live_box_is_classified_by_oom_kills(
    monkeypatch: pytest.MonkeyPatch, killed: int, code: str
) -> None:
    async def whole() -> str:
        box = await driver("local").open(Spec())
        asked: list[float] = []

        async def ended(within_s: float) -> object:
            asked.append(within_s)
            raise WorkFailed("box_died", "a shell in the box does not answer", retriable=True)

        async def usage() -> Usage:
            return Usage(oom_kills=killed * len(asked))

        monkeypatch.setattr(box, "shell", ended)
        monkeypatch.setattr(box, "usage", usage)
        try:
            await Shell(box).run("echo there", timeout_s=10)
        except WorkFailed as error:
            return error.code
        finally:
            await box.close()
        return ""

    assert asyncio.run(whole()) == code
