"""HTTP as bytes: what no client library would send, and what it would hide."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """One HTTP response, as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Raw:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seen: bytearray = field(default_factory=bytearray)

    @classmethod
    async def to(cls, port: int) -> "Raw":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**22))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        """Read one response; raises EOFError when it is cut."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().rstrip().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(first.split()[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return body

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


def request(
    path: str,
    body: Any = None,
    *,
    key: str = "",
    method: str = "POST",
    **headers: str,
) -> bytes:
    """A request as bytes; the body is JSON unless it is bytes already."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = {"Host": "gateway", "Content-Type": "application/json"}
    if key:
        lines["Authorization"] = f"Bearer {key}"
    lines["Content-Length"] = str(len(data))
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data


async def exchange(port: int, data: bytes) -> Answer:
    """One request on a connection of its own."""
    raw = await Raw.to(port)
    await raw.send(data)
    answer = await raw.answer()
    await raw.close()
    return answer
