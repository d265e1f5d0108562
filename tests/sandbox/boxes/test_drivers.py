"""Behaviour that boxes of all drivers share: commands, tar streams, names.

The tests of bubblewrap are skipped with a message if it is not installed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.sandbox.boxes import tar_streams
from rollcall.sandbox.boxes.box import ENFORCED, Box, Driver, ImageBuild, Spec, driver
from rollcall.schemas.errors import WorkFailed
from tests.support.engines import IMAGE, has, left_out


@pytest.fixture(params=["local", "bubblewrap", "docker"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap" and not has("bwrap"):
        left_out("bubblewrap", "what its boxes do as all do")
    if request.param == "docker" and not IMAGE:
        left_out("docker", "what its boxes do as all do; `.ci/docker` starts an engine")
    return str(request.param)


def plain(kind: str) -> Spec:
    return Spec(image=IMAGE) if kind == "docker" else Spec()


def in_a_box(kind: str, episode: Callable[[Driver, Box], Awaitable[None]]) -> None:
    """Run an episode in a box of its own."""

    async def whole() -> None:
        opener = driver(kind)
        box = await opener.open(plain(kind))
        try:
            await episode(opener, box)
        finally:
            await box.close()
            await box.close()
        assert box.ident not in await opener.found()

    asyncio.run(whole())


def test_program_runs_to_completion_with_its_input(kind: str) -> None:
    async def episode(_: Driver, box: Box) -> None:
        home = "~" if kind == "local" else "/w"
        ran = await box.run(["wc", "-c"], stdin=b"x" * 1_000_000)
        assert (ran.output.strip(), ran.exit_code, ran.timed_out) == ("1000000", 0, False)
        ran = await box.run(["sh", "-c", "echo $A; pwd; echo e >&2; exit 3"], env={"A": "a b"})
        assert (ran.output, ran.exit_code) == (f"a b\n{home}\ne\n", 3)
        assert (await box.run(["pwd"], cwd="/usr")).output == "/usr\n"
        assert (await box.run(["true"], cwd="nowhere")).exit_code == 126
        assert (await box.run(["no-such-program"])).exit_code == 127
        assert (await box.run(["sh", "-c", "kill -9 $$"])).exit_code == 137
        ran = await box.run(["sh", "-c", "sleep 9999 & echo gone"])
        assert (ran.output, ran.exit_code) == ("gone\n", 0)

    in_a_box(kind, episode)


def test_output_limit_and_timeout_are_enforced(kind: str) -> None:
    async def episode(_: Driver, box: Box) -> None:
        ran = await box.run(["seq", "100000"], most_chars=20)
        assert ran.output.startswith("1\n2\n3\n4\n5\n")
        assert ran.output.endswith("99\n100000\n")
        assert ran.elided_chars == 588_875
        ran = await box.run(["sh", "-c", "echo begun; sleep 9999 & sleep 9999"], timeout_s=0.5)
        assert (ran.output, ran.exit_code, ran.timed_out) == ("begun\n", -1, True)
        first = 0 if kind == "local" else 2  # counts the processes that hold the box
        usage = await box.usage()
        assert usage.processes is None or usage.processes <= first

    in_a_box(kind, episode)


def test_listener_in_a_box_is_reachable_only_inside_it(kind: str) -> None:
    async def episode(_: Driver, box: Box) -> None:
        if kind == "local":
            with pytest.raises(WorkFailed, match="shares the network of its host"):
                await box.listen(8000)
            return
        listener = await box.listen(8000)
        assert listener.getsockname() == ("127.0.0.1", 8000)
        with pytest.raises(WorkFailed, match="already in use"):
            await box.listen(8000)
        connect = "import socket; socket.create_connection(('127.0.0.1', 8000)).sendall(b'here')"
        ran = await box.run(["python3", "-c", connect])
        assert ran.exit_code == 0, ran.output
        connection, _address = listener.accept()
        assert connection.recv(100) == b"here"
        connection.close()
        listener.close()
        assert (await box.run(["python3", "-c", connect])).exit_code == 1
        (await box.listen(8000)).close()

    in_a_box(kind, episode)


def test_tar_streams_are_copied_into_and_out_of_a_box(kind: str) -> None:
    async def episode(_: Driver, box: Box) -> None:
        await box.put(tar_streams.of_files({"a/b": b"1", "go": b"#!/bin/sh\necho went\n"}), "new")
        assert (await box.run(["new/go"])).output == "went\n"
        got = await box.get("new", most_bytes=1 << 20)
        assert tar_streams.files(got)["new/a/b"] == b"1"
        assert tar_streams.files(await box.get("new/a/b", most_bytes=1 << 20)) == {"b": b"1"}
        for path, most_bytes in (("nowhere", 1 << 20), ("new", 1024)):
            with pytest.raises(WorkFailed) as refused:
                await box.get(path, most_bytes=most_bytes)
            assert refused.value.code == "bad_archive"
        await box.run(["ln", "-s", "/etc", "out"])
        with pytest.raises(WorkFailed, match="absolute"):
            await box.get("out", most_bytes=1 << 20)
        with pytest.raises(WorkFailed, match="cannot be unpacked"):
            await box.put(tar_streams.of_files({"x": b""}), "/proc/nowhere")

    in_a_box(kind, episode)


def test_box_is_found_and_removed_by_name(kind: str) -> None:
    async def episode(opener: Driver, box: Box) -> None:
        named = await opener.open(plain(kind), "named0123")
        program = await named.start("/bin/sh", "-c", "sleep 9999 & sleep 9999")
        assert {named.ident, box.ident} <= set(await opener.found())
        for ident in ("named0123", "No", "../../etc"):
            with pytest.raises(WorkFailed):
                await opener.open(plain(kind), ident)

        await driver(kind).remove("named0123")
        await driver(kind).remove("named0123")

        assert await program.wait() == -9
        assert "named0123" not in await opener.found()
        assert kind != "local" or not Path(named.directory.decode()).exists()
        await named.close()

    in_a_box(kind, episode)


def test_writable_paths_belong_to_the_box_user(kind: str) -> None:
    async def whole() -> None:
        box = await driver(kind).open(replace(plain(kind), writable=("/testbed", "/opt/deep/er")))
        try:
            ran = await box.run(["sh", "-c", "echo 1 >/testbed/x && mkdir /opt/deep/er/y && id -u"])
            assert (ran.output, ran.exit_code) == ("1000\n", 0)
            assert (await box.run(["touch", "/usr/x"])).exit_code == 1
        finally:
            await box.close()

    if kind != "local":
        asyncio.run(whole())


def test_driver_reports_enforced_and_missing_limits(kind: str) -> None:
    enforced = driver(kind).enforces()

    assert set(enforced) <= set(ENFORCED)
    assert ("network" in enforced) == (kind != "local")
    assert all(": " in line for line in driver(kind).lacks())
    assert asyncio.run(driver_unavailable(kind)) == ""


async def driver_unavailable(kind: str) -> str:
    return await driver(kind).unavailable()


ORDINARY = {
    "a lock on its own file": "touch f; flock -n f true && exec 9>f && flock -n 9",
    "processes with semaphores": "python3 -c 'import multiprocessing as m; s = m.Semaphore(2); "
    "print(m.Pool(3).map(abs, range(9)), s.acquire())'",
    "a terminal": "python3 -c 'import pty, sys; sys.exit(pty.spawn([\"tty\"]))'",
    "a repository": "git init -q r && cd r && git -c user.email=a -c user.name=a commit -q "
    "--allow-empty -m a && git log --oneline",
    "a watch of its own files": "python3 -c 'import ctypes; l = ctypes.CDLL(None); "
    'assert l.inotify_add_watch(l.inotify_init(), b".", 2) > 0\'',
    "shared memory": "python3 -c 'from multiprocessing.shared_memory import SharedMemory as S; "
    "s = S(create=True, size=9); s.unlink()'",
}


@pytest.mark.parametrize("what", ORDINARY)
def test_ordinary_programs_run_in_a_box(kind: str, what: str) -> None:
    async def episode(_: Driver, box: Box) -> None:
        ran = await box.run(["sh", "-c", ORDINARY[what]])
        assert ran.exit_code == 0, ran.output

    in_a_box(kind, episode)


def test_end_of_one_program_does_not_affect_another_in_the_box(kind: str) -> None:
    async def episode(_: Driver, box: Box) -> None:
        lasting = await box.start("/bin/sh", "-c", "(sleep 9999 &) ; read line; echo $line")
        assert (await box.run(["sh", "-c", "(sleep 9999 &); exit 3"])).exit_code == 3
        await lasting.write(b"still here\n")
        assert await lasting.read(100) == b"still here\n"
        assert await lasting.wait() == 0
        await lasting.end()

    in_a_box(kind, episode)


def test_docker_builds_a_missing_image_when_a_box_is_opened(tmp_path: Path) -> None:
    if not IMAGE:
        left_out("docker", "that it builds a Dockerfile; `.ci/docker` starts an engine")

    async def told(name: str, run: str) -> str:
        lines = f"FROM {IMAGE}\nCOPY told /told\nCOPY told /code/\nCOPY told /code/by/\nRUN {run}\n"
        (tmp_path / "Dockerfile").write_text(lines)
        (tmp_path / "told").write_text("by the task\n")
        places = ("/code", "/new")
        spec = Spec(image=name, writable=places, build=ImageBuild(str(tmp_path), 100))
        box = await driver("docker").open(spec)
        try:
            mend = "cd /code && rm told && mv by/told . && touch /new/file && cat told"
            assert (await box.run(["sh", "-c", mend])).output == "by the task\n"
            return (await box.run(["cat", "/told", "/made"])).output
        finally:
            await box.close()

    assert asyncio.run(told("rollcall/task:test", "echo by its build > /made")) == (
        "by the task\nby its build\n"
    )
    with pytest.raises(WorkFailed, match="no such thing") as failed:
        asyncio.run(told("rollcall/task:none", "echo no such thing; exit 3"))
    assert (failed.value.code, failed.value.retriable) == ("image", False)
