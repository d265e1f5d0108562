"""Starts the witness of a run of tests and collects its reports: a program, run in the box.

Its text follows that of `rollcall.sandbox.process_tree` on the standard input of `python -I -S -`,
so its plan, which contains a nonce, is in no file, argument or variable. It reads the witness's
exit code itself, and captures its output. When the witness has ended, all processes that it started
are killed. Then one line is printed: the nonce and the findings. At that time no other process is
left that could write to the same output.
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
# In the program, the text of process_tree precedes this one.

PR_SET_DUMPABLE = 4
CHUNK_BYTES = 1 << 16
TAIL_BYTES = 20_000
REPORT_BYTES = 32 << 20
"""The most bytes of reports. A run with more, or with more output than planned, is ended."""
LOOK_S = 0.05


class Run:
    """One run of a witness, with its reports and output."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.tail = b""
        self.output_bytes = 0
        self.reports = b""
        self.wrong = ""
        self.code = 0
        self.left = 0

    def go(self) -> None:
        """Run the witness to its end or its time limit, then kill all remaining processes."""
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
        """Write the control tests to a folder outside of the tree; pytest caches there too."""
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
                end_children()  # so that the pipes have no further writers
            elif not ended and not heard:
                time.sleep(LOOK_S / 50)  # select returns at once for a closed pipe
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

    The plan contains their content: `PYTHONPATH` and the options of pytest.
    """
    whole = {**os.environ, **given}
    steering = {name for name in whole if name == "PYTHONPATH" or name.startswith("PYTEST_")}
    return {name: value for name, value in whole.items() if name not in steering}


def supervise(plan: dict[str, Any]) -> None:
    """Run the witness, and print one line with the findings."""
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # other processes of our user cannot read our memory
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
