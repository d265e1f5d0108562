"""A hostile session of a gateway, drawn from a seed.

    python -m rollcall.compose.benchmarks.hostile_clients PORT KEY SEED SECONDS

It uses sockets and bytes only: connections that are silent or send their head byte by byte, bodies
that break off or never end, and bodies that take long to parse. Prints the count of each.
"""

import asyncio
import gzip
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

import orjson

MIB = 1024 * 1024
SIZES = (20_000, 200_000, 2 * MIB, 31 * MIB)
SIDE_BY_SIDE = 64
SILENT_S = 3.0
PIECE = 256 * 1024
LIMIT = 65_536
USER = b'{"role":"user","content":"a"}'


def _said(unit: bytes, size: int) -> bytes:
    """Return a message whose text repeats the unit up to a size."""
    return b'{"messages":[{"role":"user","content":"' + unit * (size // len(unit)) + b'"}]}'


def _listed(before: bytes, unit: bytes, after: bytes, size: int) -> bytes:
    return before + unit * (size // len(unit)) + after


BODIES: Mapping[str, Callable[[int], bytes]] = {
    "messages": lambda size: _listed(b'{"messages":[', USER + b",", USER + b"]}", size),
    "hidden_messages": lambda size: _listed(
        b'{"messages":[', USER.replace(b"role", b"rol\\u0065") + b",", USER + b"]}", size
    ),
    "deep_lists": lambda size: b'{"messages":' + b"[" * size,
    "deep_objects": lambda size: _listed(b'{"messages":', b'{"a":', b"", size),
    "surrogates": lambda size: _said(rb"\ud83d", size),
    "a_surrogate_and_escapes": lambda size: _said(rb"\n", size).replace(rb"\n", rb"\ud800", 1),
    "backslashes": lambda size: _said(rb"\\", size) + b"\xff",
    "emojis": lambda size: _said("\N{GRINNING FACE}".encode(), size),
    "wrong_bytes": lambda size: _said(b"\xff", size),
    "text": lambda size: _said(b"word ", size),
    "lists": lambda size: _listed(
        b'{"messages":[' + USER + b'],"a":[', b"[],", b'1],"n":"x"}', size
    ),
    "numbers": lambda size: _listed(b'{"conversation":[', b"1.5,", b"1]}", size),
    "no_messages": lambda size: _listed(b'{"messages":[', b"1,", b"1]}", size),
    "parts": lambda size: _listed(
        b'{"messages":[{"role":"user","content":[', b'{"type":"text","text":"a"},', b"1]}]}", size
    ),
}
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/step")
_CHUNK = b"1\r\nx\r\n"
packed = lru_cache(maxsize=4)(lambda size: gzip.compress(bytes(16 * size), 1))
made = lru_cache(maxsize=8)(lambda name, size: BODIES[name](size))


@dataclass
class HostileClients:
    """Parallel connections, each of which sends one hostile request after the other."""

    port: int
    key: str
    seed: int
    sizes: tuple[int, ...] = SIZES
    silent_s: float = SILENT_S
    done: Counter[str] = field(default_factory=Counter)

    async def run(self, seconds: float, side_by_side: int = SIDE_BY_SIDE) -> Counter[str]:
        """Run for `seconds`; return the count of each kind."""
        until = time.monotonic() + seconds
        rngs = [random.Random(f"{self.seed} {number}") for number in range(side_by_side)]
        await asyncio.gather(*(self._go_on(rng, until) for rng in rngs))
        return self.done

    async def _go_on(self, rng: random.Random, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            kind = rng.choice(KINDS)
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=LIMIT)
                try:
                    async with asyncio.timeout(left):
                        self.done[await kind(self, rng, reader, writer)] += 1
                finally:
                    writer.transport.abort() if rng.random() < 0.5 else writer.close()

    def head(self, rng: random.Random, length: int) -> bytes:
        """Return the head of a request with the session's key."""
        return (
            f"POST /r/{self.key}{rng.choice(PATHS)} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {self.key}\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    async def silent(
        self, rng: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str:
        """Send nothing, or the head byte by byte."""
        slow = rng.random() < 0.5
        head = self.head(rng, 10) if slow else b""
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.uniform(0, self.silent_s)):
                for at in range(len(head)):
                    writer.write(head[at : at + 1])
                    await asyncio.sleep(0.05)
                await reader.read(1)
        return "slow_head" if slow else "silent"

    async def broken(
        self, rng: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str:
        """Send part of a body; then disconnect, or wait forever."""
        size = rng.choice(self.sizes)
        writer.write(self.head(rng, size))
        await _send(writer, bytes(rng.randrange(size)))
        if rng.random() < 0.5:
            return "broken_body"
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.uniform(0, self.silent_s)):
                await reader.read(1)
        return "open_body"

    async def churned(
        self, rng: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str:
        """Disconnect at once, or send bytes that are no HTTP."""
        if rng.random() < 0.5:
            return "gone_at_once"
        writer.write(rng.randbytes(rng.randrange(2000)) + b"\r\n\r\n")
        await reader.read(LIMIT)
        return "no_http"

    async def chunked(
        self, rng: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str:
        """Send a body in chunks of one byte, or one that unpacks to a thousand times its size."""
        size = rng.choice(self.sizes)
        if rng.random() < 0.5:
            name, told, body = "bomb", "Content-Encoding: gzip", packed(size)
        else:
            name, told, body = "tiny_chunks", "Transfer-Encoding: chunked", _CHUNK * (size // 6)
        length = b"Content-Length: %d" % (len(body) if name == "bomb" else size)
        head = self.head(rng, size).replace(b"Content-Length: %d" % size, told.encode())
        if name == "bomb":
            head = head.replace(b"\r\n\r\n", b"\r\n" + length + b"\r\n\r\n")
        writer.write(head)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.silent_s):
                await _send(writer, body)
                await reader.readuntil(b"\r\n\r\n")
        return name

    async def whole(
        self, rng: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str:
        """Send a body that takes long to parse, and read the answer."""
        name = rng.choice(list(BODIES))
        body = made(name, rng.choice(self.sizes))
        writer.write(self.head(rng, len(body)))
        await _send(writer, body)
        await reader.readuntil(b"\r\n\r\n")
        return name


KINDS: tuple[Callable[..., Awaitable[str]], ...] = (
    HostileClients.silent,
    HostileClients.broken,
    HostileClients.churned,
    HostileClients.chunked,
    HostileClients.whole,
    HostileClients.whole,
    HostileClients.whole,
)


async def _send(writer: asyncio.StreamWriter, body: bytes) -> None:
    view = memoryview(body)
    for at in range(0, len(body), PIECE):
        writer.write(view[at : at + PIECE])
        await writer.drain()


if __name__ == "__main__":
    port, key, seed, seconds = sys.argv[1:]
    clients = HostileClients(int(port), key, int(seed))
    print(orjson.dumps(asyncio.run(clients.run(float(seconds)))).decode())
