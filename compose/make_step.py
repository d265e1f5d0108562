"""Run one step of the installation and print one line for it: `make_step.py TITLE COMMAND...`.

The command's output is kept back, and printed whole if the command fails. While it runs, a terminal
shows its time so far and its last line. It runs before anything is installed: it imports only the
standard library.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

EVERY_S = 0.2
TAIL_BYTES = 500
TITLE_CHARS = 50


def run_step(title: str, command: list[str]) -> int:
    """Run the command; return its exit code."""
    began, live = time.monotonic(), sys.stdout.isatty()
    if not live:
        print(f"{title:<{TITLE_CHARS}}", end="", flush=True)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        while True:
            try:
                code = process.wait(EVERY_S)
                break
            except subprocess.TimeoutExpired:
                if live:
                    show_progress(title, time.monotonic() - began, last_line(output.fileno()))
        if live:
            print(f"\r\x1b[K{title:<{TITLE_CHARS}}", end="")
        print(f"{time.monotonic() - began:7.1f} s", flush=True)
        if code:
            output.seek(0)
            print(f"{' '.join(command)} failed with exit code {code}:", file=sys.stderr, flush=True)
            shutil.copyfileobj(output, sys.stderr.buffer)
    return code


def last_line(output: int) -> str:
    """Return the last line of a file that is being written, without moving its position."""
    size = os.fstat(output).st_size
    tail = os.pread(output, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
    lines = tail.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def show_progress(title: str, seconds: float, text: str) -> None:
    """Write one line over the one before."""
    width = shutil.get_terminal_size().columns - 1
    line = "".join(filter(str.isprintable, f"{title}  {seconds:.0f} s  {text}"))[:width]
    print(f"\r\x1b[K{line}", end="", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(run_step(sys.argv[1], sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(130)
