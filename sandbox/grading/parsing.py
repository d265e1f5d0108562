"""Parsing of a test run's output in a process of its own with bounds of CPU, memory and time.

A patch controls what its tests print, so its output must not be able to block the worker. Output
that cannot be parsed within the bounds is not a verdict here: the caller finds out whether the
output can be parsed without the patch.
"""

import asyncio
import json
import resource
import sys

from rollcall.sandbox.grading.parsers import parse
from rollcall.sandbox.grading.verdict import TestLog
from rollcall.schemas.errors import WorkFailed

CPU_S = 20
WALL_S = 120.0
MEMORY_BYTES = 4 << 30
SAID = 300


class NotRead(Exception):
    """Raised if a run's output cannot be parsed."""


async def parsed(parser: str, text: str) -> TestLog:
    """Parse a text, as `parse` does, in another process. Raises NotRead."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", __name__, parser,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(WALL_S):
            said, complaint = await process.communicate(text.encode("utf-8", "surrogatepass"))
    except TimeoutError:
        msg = f"parser {parser!r} did not read {len(text):,} characters within {WALL_S:g} s"
        raise NotRead(msg) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2][:SAID]
        msg = f"parser {parser!r} cannot read it: {last or f'it ended with {process.returncode}'}"
        raise NotRead(msg)
    return TestLog(**json.loads(said))


def main(parser: str) -> None:
    """Parse standard input, and write the log as JSON."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    text = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    try:
        log = parse(parser, text)
    except WorkFailed as error:
        sys.exit(str(error))
    counts = None if log.counts is None else dict(log.counts)
    said = {"outcomes": dict(log.outcomes), "counts": counts, "wrong": log.wrong}
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
