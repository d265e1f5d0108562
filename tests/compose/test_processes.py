"""Real processes that are started, stopped and distinguished from others."""

import os
import signal
import sys
from pathlib import Path

import pytest

from rollcall.compose.processes import (
    ChildProcess,
    end,
    memory_bytes,
    module,
    run_in_new_process,
    spawn,
    started,
    wait_until,
)
from rollcall.schemas.errors import Refused, Unfit
from rollcall.schemas.topics import checked

ROOT = Path(__file__).parents[2]


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines()


def test_process_has_empty_stdin_and_appends_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    code = "import os, sys; print(sys.stdin.read() == '', os.getsid(0) == os.getpid())"

    process = spawn(["python3", "-c", code], log)

    assert process.wait(20) == 0
    assert lines_of(log) == ["before", "True True"]


def test_end_waits_for_the_grace_period_and_then_kills(tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(15, {}); print(1, flush=True); time.sleep(60)"
    logs = [tmp_path / "polite", tmp_path / "deaf"]
    handlers = ["lambda *_: sys.exit(0)", "signal.SIG_IGN"]
    both = [
        spawn(["python3", "-c", code.format(handler)], log)
        for log, handler in zip(logs, handlers, strict=True)
    ]
    assert wait_until(lambda: all(log.exists() and lines_of(log) for log in logs), 20)
    assert memory_bytes([both[0].pid]) > 1_000_000

    end(both, grace_s=1.0)

    assert [process.returncode for process in both] == [0, -signal.SIGKILL]
    assert [started(process.pid) for process in both] == [None, None]
    assert memory_bytes([process.pid for process in both]) == 0


def test_child_dies_with_its_parent_unless_it_may_outlive_it(tmp_path: Path) -> None:
    parent = f"""
from pathlib import Path
from rollcall.compose.processes import spawn
for name, outlives in (("dies", False), ("outlives", True)):
    child = spawn(["sleep", "60"], Path({str(tmp_path)!r}) / name, outlives_us=outlives)
    print(child.pid, flush=True)
"""
    log = tmp_path / "parent"
    (tmp_path / "parent_module.py").write_text(parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    process = spawn(module("parent_module"), log, environment=environment)

    assert process.wait(20) == 0
    dying, living = (int(line) for line in lines_of(log))
    try:
        assert wait_until(lambda: started(dying) is None, 10)
        assert started(living) is not None
    finally:
        os.kill(living, signal.SIGKILL)


def test_holds_within_gives_up_after_its_deadline() -> None:
    asked: list[int] = []

    assert not wait_until(lambda: bool(asked.append(1)), 0.05, every_s=0.0)
    assert asked


def test_apart_returns_and_raises_like_the_function_in_another_process() -> None:
    assert run_in_new_process(os.getpid) != os.getpid()
    assert run_in_new_process(dict, both=2) == {"both": 2}
    with pytest.raises(Refused, match="no such name"):
        run_in_new_process(checked, "no such name")
    with pytest.raises(Unfit, match="'abort' was killed"):
        run_in_new_process(os.abort)


CALLER = """
import os, sys, threading
from rollcall.compose.processes import run_in_new_process

def say(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    threading.Event().wait()

if __name__ == "__main__":
    run_in_new_process(say, sys.argv[1])
"""


def caller_of(folder: Path) -> tuple[ChildProcess, Path, int]:
    """A process that waits for its call of `run_in_new_process`, its log, and the pid of that
    child."""
    script, told, log = folder / "caller.py", folder / "pid", folder / "log"
    script.write_text(CALLER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    caller = spawn([sys.executable, str(script), str(told)], log, environment=environment)
    assert wait_until(lambda: told.exists() and told.read_text() != "", 20)
    return caller, log, int(told.read_text())


def test_apart_process_ends_with_its_caller(tmp_path: Path) -> None:
    caller, _, child = caller_of(tmp_path)

    os.kill(caller.pid, signal.SIGKILL)

    caller.wait(20)
    assert wait_until(lambda: started(child) is None, 20)


def test_ctrl_c_ends_the_apart_process_and_interrupts_only_its_caller(tmp_path: Path) -> None:
    caller, log, child = caller_of(tmp_path)

    os.killpg(caller.pid, signal.SIGINT)

    assert caller.wait(20) != 0
    assert started(child) is None
    assert log.read_text().count("KeyboardInterrupt") == 1
