"""A session of a gateway beside a hostile one, and the gateway's memory meanwhile.

The real gateway runs in a separate process; the hostile session is `hostile_clients`, niced like
agents in boxes. Each round has a new one: a gateway holds a session's bytes until the deadline of a
body, or until the session is closed. The honest session has calls at fixed times, and a call's time
counts from its due time, so a stall counts for every call within it. The ceiling of their p99 is
that of the session alone, measured alternately in the same run. The ceiling of the memory is the
gateway's limit, 512 MiB.
"""

import asyncio
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson

from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.processes import die_with_parent, module, wait_until
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings

ROUNDS = 8
"""The number of rounds; they are short, as a shared machine's speed drifts."""
ALONE_S = 3.0
BESIDE_S = 4.0
CALLERS = 4
EVERY_S = 0.04
NICE = 10
MIB = 1024 * 1024
MAY_TAKE = 512 * MIB
LATE_S = 60.0
"""The time after which the honest session counts as not answered."""
EMPTY_S = 30.0
"""The time after which nothing of a closed session may be held; a body may still be parsed."""
LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


@dataclass
class OneGateway:
    """A gateway in a separate process."""

    pid: int
    port: int
    keys: tuple[str, str]
    asked: IO[bytes]
    told: IO[bytes]

    def held(self) -> dict[str, int]:
        """Return its bytes of bodies, open calls and connections."""
        self.asked.write(b"\n")
        self.asked.flush()
        held: dict[str, int] = orjson.loads(self.told.readline())
        return held

    def renew(self) -> None:
        """Close the second session, and open a new one in its place."""
        self.asked.write(b"next\n")
        self.asked.flush()
        self.keys = (self.keys[0], orjson.loads(self.told.readline())["key"])

    def memory(self, name: str) -> int:
        """Return the resident bytes (`VmRSS`), or their peak (`VmHWM`).

        Those of the gateway and its children are added, whose peaks may be at different times.
        """
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(_status(pid, name) for pid in (self.pid, *map(int, children)))


def _status(pid: int, name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


@contextmanager
def one_gateway() -> Iterator[OneGateway]:
    """Start a gateway; it ends with this block, or with this process."""
    with subprocess.Popen(
        module("rollcall.compose.benchmarks.one_gateway"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            begun = orjson.loads(process.stdout.readline())
            keys = tuple(begun["keys"])
            yield OneGateway(process.pid, begun["port"], keys, process.stdin, process.stdout)
        finally:
            process.kill()


@contextmanager
def hostile(gateway: OneGateway, seed: int, seconds: float) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the hostile session for `seconds`."""
    command = module(
        "rollcall.compose.benchmarks.hostile_clients",
        str(gateway.port),
        gateway.keys[1],
        str(seed),
        str(seconds),
    )
    with subprocess.Popen(
        ["nice", f"-n{NICE}", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@dataclass
class HonestSession:
    """Calls at fixed times, over connections that stay open."""

    gateway: OneGateway
    took: list[float] = field(default_factory=list)

    async def run(self, seconds: float) -> list[float]:
        """Return the milliseconds of each call since its due time."""
        self.took = []
        starts = [EVERY_S * number / CALLERS for number in range(CALLERS)]
        async with asyncio.timeout(seconds + LATE_S):
            await asyncio.gather(*(self._call(start, seconds) for start in starts))
        return self.took

    async def _call(self, start: float, seconds: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        begun = time.perf_counter()
        try:
            for number in range(int(seconds / EVERY_S)):
                due = begun + start + number * EVERY_S
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await self._ask(reader, writer, f"call {start} {number}")
                self.took.append(1000 * (time.perf_counter() - due))
        finally:
            writer.close()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: str
    ) -> None:
        """Send one call. Raises ServicesError for a wrong answer."""
        key = self.gateway.keys[0]
        body = orjson.dumps({"messages": [{"role": "user", "content": said}]})
        head = (
            f"POST /r/{key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answered = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(answered)
        answer: Any = orjson.loads(await reader.readexactly(int(length[1]) if length else 0))
        if b" 200 " not in answered[:16] or answer["choices"][0]["message"]["content"] != said:
            msg = f"the honest session was answered {answered[:100]!r} to {said!r}"
            raise ServicesError(msg)


@dataclass
class _Seen:
    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    above: int = 0
    done: list[dict[str, int]] = field(default_factory=list)


def _measure() -> _Seen:
    """Measure with and without the hostile session alternately, each on its own gateway."""
    seen = _Seen()
    with one_gateway() as quiet, one_gateway() as gateway:
        alone, beside = HonestSession(quiet), HonestSession(gateway)
        for session in (alone, beside):
            asyncio.run(session.run(1.0))
        idle = gateway.memory("VmRSS")
        for seed in range(ROUNDS):
            seen.alone += asyncio.run(alone.run(ALONE_S))
            with hostile(gateway, seed, BESIDE_S + 1.0) as process:
                time.sleep(1.0)  # until the hostile session is active
                seen.beside += asyncio.run(beside.run(BESIDE_S))
                words, _ = process.communicate()
            seen.done.append(orjson.loads(words))
            gateway.renew()
            if not wait_until(lambda: not any(gateway.held().values()), EMPTY_S):
                msg = f"the gateway holds {gateway.held()} after the hostile session was closed"
                raise ServicesError(msg)
        seen.above = gateway.memory("VmHWM") - idle
    return seen


def _notes(seen: _Seen) -> tuple[str, ...]:
    def words(name: str, took: list[float]) -> str:
        cuts = statistics.quantiles(took, n=1000)
        return (
            f"{name}: {len(took)} calls, p50 {cuts[499]:.1f} ms, p99 {cuts[989]:.1f} ms, "
            f"p99.9 {cuts[998]:.1f} ms, most {max(took):.0f} ms"
        )

    harm = {name: sum(done.get(name, 0) for done in seen.done) for name in seen.done[0]}
    return (
        words("alone", seen.alone),
        words("beside", seen.beside),
        f"at most {seen.above / MIB:.0f} MiB above idle",
        f"harm: {', '.join(f'{name} {times}' for name, times in sorted(harm.items()))}",
    )


def latency(settings: Settings) -> Figure:
    """Measure the p99 of a session's calls beside a hostile one, and alone."""
    del settings
    seen = _measure()
    beside, alone = (statistics.quantiles(took, n=100)[98] for took in (seen.beside, seen.alone))
    return Figure(beside, "ms", alone, lower_is_better=True, notes=_notes(seen))


def memory(settings: Settings) -> Figure:
    """Measure the gateway's peak memory above its idle memory, against its limit."""
    del settings
    seen = _measure()
    return Figure(seen.above / MIB, "MiB", MAY_TAKE / MIB, lower_is_better=True, notes=_notes(seen))
