"""Real agent processes: they are forked, end, and are killed with their child processes."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.processes import wait_until
from rollcall.consumers.environments.gateway.endpoint import GatewayEndpoint
from rollcall.sandbox.agents.agent_processes import AgentExit, AgentProcess, AgentProcesses
from rollcall.schemas.agent_requests import AgentRequest, StepReply
from rollcall.schemas.errors import WorkFailed
from tests.support.served_endpoint import ServedEndpoint, serving
from tests.support.waiting import holds

ROOT = Path(__file__).parents[3]
ARGV = {"argv": ["named by the task"]}
FUNCTIONS = ROOT / "tests" / "support" / "agent_functions.py"


class Rig:
    """Agent processes beside an endpoint of a gateway that has their task."""

    def __init__(self, processes: AgentProcesses, served: ServedEndpoint) -> None:
        self.processes = processes
        self.served = served

    @property
    def endpoint(self) -> GatewayEndpoint:
        return self.served.endpoint

    @property
    def result(self) -> str:
        """The result that was returned last."""
        return self.served.requests[-1].text

    async def start_by(self, agent: str, config: Mapping[str, Any], **more: Any) -> AgentProcess:
        given = {"url": self.endpoint.url, "key": self.endpoint.key, **more}
        return await self.processes.start(agent, config, **given)

    async def start(self, function: str, **task: Any) -> AgentProcess:
        self.endpoint.task = task
        return await self.start_by("python", {"function": f"{FUNCTIONS}:{function}"})

    async def run(self, function: str, **task: Any) -> AgentExit:
        return await (await self.start(function, **task)).wait()


def acknowledged(request: AgentRequest) -> StepReply:
    return StepReply(request.d, "")


def rigged(tmp_path: Path, test: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with serving(acknowledged) as served:
            processes = AgentProcesses(tmp_path / "home", tmp_path / "scratch")
            try:
                await test(Rig(processes, served))
            finally:
                await processes.close()
        assert list((tmp_path / "scratch").iterdir()) == []

    asyncio.run(run())


def a_mark() -> str:
    """A mark that no concurrent run of the same test uses."""
    return f"family-{secrets.token_hex(8)}"


def marked(mark: str) -> list[str]:
    """The processes that bear a mark on their command line."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


def gone_within_10_s(mark: str) -> None:
    assert wait_until(lambda: marked(mark) == [], 10), marked(mark)


def test_agent_function_receives_its_task_and_its_return_value_is_submitted(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        ended = await rig.run("says", say="hello")

        assert (ended.code, ended.signal) == (0, None)
        assert ended.output == b"hello\n"
        assert rig.result == "hello"

    rigged(tmp_path, test)


def test_agent_inherits_no_worker_environment_or_descriptors(tmp_path: Path) -> None:
    os.environ["ROLLCALL_SECRET"] = "of the worker"

    async def test(rig: Rig) -> None:
        leak = os.open(tmp_path, os.O_RDONLY)
        ended = await rig.run("tells_surroundings")
        os.close(leak)

        assert ended.code == 0, ended.last_words
        found = json.loads(rig.result)
        assert found["leads"]
        assert found["input"] == ""
        assert sorted(set(found["descriptors"])) == ["/dev/null", found["descriptors"][1]]
        assert found["descriptors"][1].startswith("pipe:")
        environment = found["environment"]
        assert {name: environment[name] for name in ("PYTHONHASHSEED", "TZ", "LC_ALL")} == {
            "PYTHONHASHSEED": "0",
            "TZ": "UTC",
            "LC_ALL": "C.UTF-8",
        }
        assert environment["HOME"] == environment["TMPDIR"] == found["directory"]
        assert environment["OPENAI_BASE_URL"] == f"{rig.endpoint.url}/v1"
        assert not {"ROLLCALL_SECRET", "PYTHONPATH", "VIRTUAL_ENV"} & environment.keys()
        again = await rig.run("tells_surroundings")
        assert again.code == 0
        assert json.loads(rig.result)["hash"] == found["hash"]

    try:
        rigged(tmp_path, test)
    finally:
        del os.environ["ROLLCALL_SECRET"]


@pytest.mark.parametrize(
    ("how", "code", "number", "words"),
    [
        (0, 0, None, ""),
        (3, 3, None, ""),
        (300, 44, None, ""),
        ("goodbye", 1, None, "goodbye\n"),
        ("raises", 1, None, "ValueError: it does not like the task\n"),
        (-signal.SIGKILL, None, signal.SIGKILL, ""),
        (-signal.SIGSEGV, None, signal.SIGSEGV, ""),
    ],
)
def test_agent_exit_code_signal_and_last_words_are_reported(
    tmp_path: Path, how: object, code: int | None, number: int | None, words: str
) -> None:
    async def test(rig: Rig) -> None:
        ended = await rig.run("ends_as_told", how=how)

        assert (ended.code, ended.signal) == (code, number)
        assert ended.last_words.endswith(words)

    rigged(tmp_path, test)


def test_long_agent_output_is_kept_as_head_and_tail(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        ended = await rig.run("prints", mebibytes=64)

        assert ended.code == 0
        assert ended.output_bytes == (64 << 20) + 31
        assert len(ended.output) < (1 << 20) + 50
        assert ended.output.startswith(b"the first words\nxxx")
        assert ended.output.endswith(b"xxx\nthe last words\n".replace(b"\n", b"", 1))
        assert b"\n[66,060,319 bytes left out here]\n" in ended.output

    rigged(tmp_path, test)


def test_closing_a_killed_agent_removes_its_directory(
    tmp_path: Path,
) -> None:
    async def test(rig: Rig) -> None:
        process = await rig.start("waits")
        assert process.directory.is_relative_to(tmp_path / "scratch")

        process.kill()
        process.kill()
        ended = await process.wait()
        await process.close()
        await process.close()

        assert (ended.code, ended.signal) == (None, signal.SIGKILL)
        assert wait_until(lambda: not process.directory.exists(), 10)

    rigged(tmp_path, test)


@pytest.mark.parametrize("ends", [True, False])
def test_child_processes_of_an_agent_end_with_it(tmp_path: Path, ends: bool) -> None:
    mark = a_mark()

    async def test(rig: Rig) -> None:
        process = await rig.start("has_a_family", mark=mark, ends=ends)
        if not ends:
            await holds(lambda: len(marked(mark)) == 4)
            process.kill()
        await process.wait()

        gone_within_10_s(mark)
        other = await rig.run("says", say="the server lives on")
        assert other.code == 0

    rigged(tmp_path, test)


def test_agents_end_with_their_fork_server_and_the_next_gets_another(
    tmp_path: Path,
) -> None:
    mark = a_mark()

    async def test(rig: Rig) -> None:
        family = await rig.start("has_a_family", mark=mark)
        await holds(lambda: len(marked(mark)) == 4)
        os.kill(parent_of(family.pid), signal.SIGKILL)

        assert (await family.wait()).signal == signal.SIGKILL
        gone_within_10_s(mark)
        again = await rig.start("has_a_family", mark=mark)
        await holds(lambda: len(marked(mark)) == 4)
        os.kill(parent_of(parent_of(again.pid)), signal.SIGKILL)  # the reaper
        assert (await again.wait()).signal == signal.SIGKILL
        gone_within_10_s(mark)
        assert (await rig.run("kills_its_server")).signal == signal.SIGKILL
        assert (await rig.run("says", say="still here")).code == 0

    rigged(tmp_path, test)


def test_close_ends_a_hundred_concurrently_forked_agents(tmp_path: Path) -> None:
    alive: list[AgentProcess] = []

    async def test(rig: Rig) -> None:
        config = {"agent": "python", "function": f"{FUNCTIONS}:waits"}
        started = [rig.start_by("python", config) for _ in range(100)]
        alive.extend(await asyncio.gather(*started))
        assert len({process.pid for process in alive}) == 100
        assert len({parent_of(process.pid) for process in alive}) == 1
        await rig.processes.close()
        ends = await asyncio.gather(*(process.wait() for process in alive))
        assert {end.signal for end in ends} == {signal.SIGKILL}

    rigged(tmp_path, test)
    assert [process.pid for process in alive if Path(f"/proc/{process.pid}").exists()] == []


def test_killing_agents_during_shutdown_logs_no_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: Rig) -> None:
        config = {"agent": "python", "function": f"{FUNCTIONS}:waits"}
        started = (rig.start_by("python", config) for _ in range(10))
        agents = await asyncio.gather(*started)

        async def end_again_and_again(agent: AgentProcess) -> None:
            for _ in range(10):  # turns of the event loop; the server's end takes a few
                agent.kill()
                await asyncio.sleep(0)
            await agent.close()

        await asyncio.gather(rig.processes.close(), *map(end_again_and_again, agents))

    rigged(tmp_path, test)
    assert caplog.messages == []


WORKER = """
import asyncio, sys
from pathlib import Path
from rollcall.sandbox.agents.agent_processes import AgentProcesses
from tests.support.served_endpoint import serving

async def main():
    task = {"mark": sys.argv[1], "config": {"argv": ["sh", "-c", "sleep 600 & setsid sleep 600"]}}
    async with serving(lambda _: None) as served:
        endpoint = served.endpoint
        endpoint.task = task
        processes = AgentProcesses(Path("home"), Path("scratch"))
        config = {"agent": "python", "function": sys.argv[2]}
        await processes.start("python", config, url=endpoint.url, key=endpoint.key)
        await processes.start("command", task["config"], url=endpoint.url, key=endpoint.key)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_agent_process_is_left_when_the_worker_is_killed(tmp_path: Path, number: int) -> None:
    mark = a_mark()
    command = [sys.executable, "-c", WORKER, mark, f"{FUNCTIONS}:has_a_family"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    ) as worker:
        try:
            assert wait_until(lambda: len(marked(mark)) == 5, 60), marked(mark)
            assert wait_until(lambda: len(inside(tmp_path)) >= 8, 20), inside(tmp_path)
        except BaseException:
            worker.kill()
            raise
        worker.send_signal(number)

    assert wait_until(lambda: inside(tmp_path) == [], 10), inside(tmp_path)
    gone_within_10_s(mark)


def test_scratch_folder_of_a_killed_worker_is_removed_by_the_next_worker(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "left" / "by a killed one").mkdir(parents=True)

    async def test(rig: Rig) -> None:
        beside = AgentProcesses(tmp_path / "home", tmp_path / "scratch")
        assert len(list((tmp_path / "scratch").iterdir())) == 2
        assert (await rig.run("says", say="ours is still there")).code == 0
        await beside.close()

    rigged(tmp_path, test)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('not today')", "SystemExit: not today"),
        ("def other(): pass", "AttributeError: module 'agent' has no attribute 'run'"),
        ("import os; os.write(1, b'last'); os._exit(7)", "its process ended, saying 'last'"),
        ("import os; os.kill(os.getpid(), 11)", "its process ended, saying ''"),
        ("def run(: pass", "SyntaxError"),
    ],
)
def test_agent_import_error_fails_with_agent_missing(
    tmp_path: Path, source: str, words: str
) -> None:
    (tmp_path / "agent.py").write_text(source)

    async def test(rig: Rig) -> None:
        config = {"agent": "python", "function": f"{tmp_path}/agent.py:run"}
        for _ in range(2):
            with pytest.raises(WorkFailed, match="cannot be imported") as failed:
                await rig.start_by("python", config)
            assert (failed.value.code, failed.value.retriable) == ("agent_missing", False)
            assert words in str(failed.value)

    rigged(tmp_path, test)


WAITS_OR_SAYS = """
import pathlib, time
import beside

def run(task, url, key):
    pathlib.Path("begun").touch()
    while task.get("waits"):
        time.sleep(0.05)
    print({said!r} + beside.SAID)
"""


def edited(folder: Path, said: str, beside: str) -> None:
    """Write files of the same length with other bytes within one second, as an editor does."""
    texts = {"agent.py": WAITS_OR_SAYS.format(said=said), "beside.py": f"SAID = {beside!r}"}
    for name, text in texts.items():
        (folder / name).write_text(text)
        os.utime(folder / name, (1_700_000_000, 1_700_000_000))


def test_edited_agent_file_is_reloaded_without_disturbing_running_agents(
    tmp_path: Path,
) -> None:
    config = {"agent": "python", "function": f"{tmp_path}/agent.py:run"}

    async def test(rig: Rig) -> None:
        async def start(**task: Any) -> AgentProcess:
            rig.endpoint.task = task
            return await rig.start_by("python", config)

        async def said() -> str:
            ended = await (await start()).wait()
            assert ended.code == 0, ended.last_words
            return ended.last_words.split()[-1]

        # Given an agent that runs, and its fork server
        edited(tmp_path, "a", "x")
        first = await start(waits=True)
        await holds((first.directory / "begun").exists)
        server = parent_of(first.pid)

        # Then each later agent uses the files as they are at its start
        assert await said() == "ax"
        edited(tmp_path, "b", "x")
        assert await said() == "bx"
        second = await start()
        assert parent_of(second.pid) != server
        await second.wait()
        (tmp_path / "beside.py").write_text("SAID = 'yes'")
        assert await said() == "byes"
        (tmp_path / "agent.py").write_text("def run(: pass")
        with pytest.raises(WorkFailed, match="SyntaxError"):
            await said()
        edited(tmp_path, "c", "mended")
        assert await said() == "cmended"

        # And the running agent is not disturbed; its fork server ends after it
        assert parent_of(first.pid) == server
        await first.close()
        await holds(lambda: not Path(f"/proc/{server}").exists())
        assert not first.directory.exists()

    rigged(tmp_path, test)


@pytest.mark.parametrize("agent", ["mini-swe-agent", "openai-agents", "smolagents"])
def test_uninstalled_agent_fails_and_names_the_install_command(tmp_path: Path, agent: str) -> None:
    async def test(rig: Rig) -> None:
        with pytest.raises(WorkFailed, match=f"run `rollcall agents install {agent}`") as failed:
            await rig.start_by(agent, {})
        assert (failed.value.code, failed.value.retriable) == ("agent_missing", False)

    rigged(tmp_path, test)


@pytest.mark.parametrize(
    ("agent", "config", "words"),
    [
        ("mini-swe", {}, "unknown agent 'mini-swe'; did you mean 'mini-swe-agent'?"),
        ("python", {}, "needs agent_config.function, 'FILE.py:FUNCTION'; found None"),
        ("python", {"function": "file.py:", "agent": "command"}, "'FILE.py:FUNCTION'"),
        ("command", {"argv": "ls -l"}, "agent_config.argv, a list of words such as"),
        ("smolagents", {"python": "/usr/bin/python3"}, "agent 'smolagents' has its own"),
        ("python", {"function": "a.py:f", "python": "/no/such"}, "cannot be started with /no/such"),
    ],
)
def test_invalid_agent_config_fails_at_start_without_retry(
    tmp_path: Path, agent: str, config: dict[str, object], words: str
) -> None:
    async def test(rig: Rig) -> None:
        with pytest.raises(WorkFailed) as failed:
            await rig.start_by(agent, config)
        assert (failed.value.code, failed.value.retriable) == ("agent_missing", False)
        assert words in str(failed.value)

    rigged(tmp_path, test)


def test_command_agent_receives_its_task_and_endpoint_url(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        script = 'cat task.json; echo "$OPENAI_BASE_URL $EXTRA $(ls /proc/self/fd | wc -l)"; exit 4'
        rig.endpoint.task = {"prompt": "p", "config": {"argv": ["sh", "-c", script]}}
        process = await rig.start_by("command", ARGV, environment={"EXTRA": "more"})
        ended = await process.wait()

        told, said = ended.output.decode().rsplit("}", 1)
        assert json.loads(told + "}") == rig.endpoint.task
        assert said == f"{rig.endpoint.url}/v1 more 4\n"
        assert ended.code == 4
        rig.endpoint.task = {"config": {"argv": ["no-such-program"]}}
        process = await rig.start_by("command", ARGV)
        assert "FileNotFoundError" in (await process.wait()).last_words

    rigged(tmp_path, test)


def test_agent_with_an_invalid_key_exits_with_the_401_message(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        config = {"agent": "python", "function": f"{FUNCTIONS}:says"}
        process = await rig.start_by("python", config, key="of another")
        ended = await process.wait()

        assert ended.code == 1
        assert "GET /v1/task was answered 401" in ended.last_words

    rigged(tmp_path, test)


def test_cancelled_agent_start_leaves_no_process_and_no_directory(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.run("says", say="so that there is a server")
        config = {"agent": "python", "function": f"{FUNCTIONS}:says"}
        starts = [asyncio.create_task(rig.start_by("python", config)) for _ in range(5)]
        await asyncio.sleep(0)
        for start in starts:
            start.cancel()
        ended = await asyncio.gather(*starts, return_exceptions=True)
        assert {type(error) for error in ended} == {asyncio.CancelledError}

        process = await rig.start("waits")
        assert (await process.close()).signal == signal.SIGKILL
        (scratch,) = (tmp_path / "scratch").iterdir()
        await holds(lambda: not list(scratch.glob("[0-9]*-[2-9]")))

    rigged(tmp_path, test)
    assert inside(tmp_path) == []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def inside(directory: Path) -> list[str]:
    """The processes that work in a directory or below it."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").readlink().is_relative_to(directory):
                found.append(process.name)
        except OSError:
            continue
    return found
