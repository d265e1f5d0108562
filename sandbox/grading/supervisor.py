"""Starts the witness of a run of tests and hears it out: a program, run in the box beside it.

Its text is piped into `python -I -S -`, behind that of `rollcall.sandbox.process_tree`; so what it
is told, a nonce among it, stands in no file, no argument and no variable. It sees the exit code of
the witness itself, and what the witness prints goes no further than here. When the witness has
ended, so has everything that it started, whatever became of that; then one line goes out: the
nonce, and what was seen. Nobody is left by then who could write to where it goes.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollcall.sandbox.process_tree import (
        LIBC,
        adopt_orphans,
        children,
        end_children,
        signal_on_parent_death,
    )
# The text of process_tree stands before this one where it is run.

PR_SET_DUMPABLE = 4
CHUNK_BYTES = 1 << 16
TAIL_BYTES = 20_000
REPORT_BYTES = 32 << 20
"""More than this is a flood, and its end; so is more output than is planned for."""
LOOK_S = 0.05


class Run:
    """One witness, and what it says."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.tail = b""
        self.output_bytes = 0
        self.reports = b""
        self.wrong = ""
        self.code = 0
        self.left = 0

    def go(self) -> None:
        """Start it, hear it until it ends or its time does, and end what it leaves."""
        reports, theirs = os.pipe()
        output, printed = os.pipe()
        plan = json.dumps({**self.plan["witness"], "reports": theirs, **self._laid()})
        text = f"{self.plan['program']}\nmain(__import__('json').loads({plan!r}))\n"
        process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-"],
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            env=_environment(self.plan["env"]),
            cwd="/",
            pass_fds=[theirs],
            start_new_session=True,
        )
        os.close(theirs)
        os.close(printed)
        assert process.stdin is not None
        try:
            process.stdin.write(text.encode())
            process.stdin.close()
        except BrokenPipeError:
            self.wrong = "killed"
        os.set_blocking(reports, False)
        os.set_blocking(output, False)
        self._hear(process, reports, output)
        process.kill()
        self.code = process.wait()
        end_children()

    def _laid(self) -> dict[str, Any]:
        """Lay tests of ours, and what pytest keeps, away from the tree."""
        place = tempfile.mkdtemp()
        for name, text in self.plan["controls"].items():
            with open(os.path.join(place, name), "w", encoding="utf-8") as file:
                file.write(text)
        argv = [*self.plan["witness"]["argv"]]
        if "no:cacheprovider" not in " ".join(argv):
            argv += ["-o", f"cache_dir={place}/cache"]
        return {"place": place, "argv": argv}

    def _hear(self, process: "subprocess.Popen[bytes]", reports: int, output: int) -> None:
        until = time.monotonic() + self.plan["timeout_s"]
        ended = False
        while not self.wrong:
            ready, _, _ = select.select([reports, output], [], [], 0 if ended else LOOK_S)
            heard = self._take(reports, output, ready)
            if ended and not heard:
                return
            if not ended and process.poll() is not None:
                ended = True
                self.left = len(children(os.getpid()))
                end_children()  # so that what is still in the pipes comes to an end
            elif not ended and not heard:
                time.sleep(LOOK_S / 50)  # an end that is closed is always ready
            if time.monotonic() > until:
                self.wrong = "timeout"

    def _take(self, reports: int, output: int, ready: list[int]) -> bool:
        heard = False
        for fd in ready:
            try:
                chunk = os.read(fd, CHUNK_BYTES)
            except BlockingIOError:
                continue
            heard = heard or bool(chunk)
            if fd == reports:
                self.reports += chunk
            else:
                self.output_bytes += len(chunk)
                self.tail = (self.tail + chunk)[-TAIL_BYTES:]
        if self.output_bytes > self.plan["output_bytes"] or len(self.reports) > REPORT_BYTES:
            self.wrong = "flood"
        return heard


def _environment(given: dict[str, str]) -> dict[str, str]:
    """Return the box's own variables and those given, without those that steer Python or pytest.

    The plan says what those say: `PYTHONPATH` and the options of pytest.
    """
    whole = {**os.environ, **given}
    steering = {name for name in whole if name == "PYTHONPATH" or name.startswith("PYTEST_")}
    return {name: value for name, value in whole.items() if name not in steering}


def supervise(plan: dict[str, Any]) -> None:
    """Do what is planned, and say once what came of it."""
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody of our user reads our memory or our files
    signal_on_parent_death(os.getppid(), signal.SIGKILL)
    adopt_orphans()
    run = Run(plan)
    run.go()
    seen = {
        "wrong": run.wrong,
        "code": run.code,
        "left": run.left,
        "reports": run.reports.decode(errors="replace").splitlines(),
        "output": run.tail.decode(errors="replace"),
    }
    sys.stdout.write(f"\n{plan['nonce']}{json.dumps(seen)}\n")
    sys.stdout.flush()
