"""Raw HTTP clients in place of agents: `python -m rollcall.compose.benchmarks.raw_callers`.

They use sockets and JSON only, so that our own code dominates the measurement. One process has all
of them: it reads sessions from standard input, a line of JSON each, and prints a line when one has
ended, with the seconds of every call.
"""

import asyncio
import re
import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from rollcall.compose.benchmarks.load import POLICY, SEEN

LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
LIMIT_BYTES = 1 << 20


async def converse(url: str, key: str, turns: int) -> list[float]:
    """Have a conversation of `turns` calls over one connection; return the seconds of each."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=LIMIT_BYTES)
    head = (
        f"POST {place.path}/v1/chat/completions HTTP/1.1\r\nHost: {place.netloc}\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: "
    ).encode()
    messages: list[Any] = [{"role": "user", "content": SEEN}]
    took = []
    try:
        for _ in range(turns):
            began = time.perf_counter()
            body = orjson.dumps({"model": POLICY, "messages": messages})
            writer.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
            answer = await _answer(reader)
            took.append(time.perf_counter() - began)
            messages += [answer["choices"][0]["message"], {"role": "user", "content": SEEN}]
    finally:
        writer.close()
    return took


async def _answer(reader: asyncio.StreamReader) -> Any:
    """Read an answer. Raises ConnectionError for anything else."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = LENGTH.search(head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    if b" 200 " not in head[:16]:
        raise ConnectionError((head + body).decode(errors="replace"))
    return orjson.loads(body)


async def _session(told: Mapping[str, Any]) -> None:
    """Run a session: one parallel conversation per caller."""
    callers = (converse(told["url"], told["key"], told["turns"]) for _ in range(told["callers"]))
    said: dict[str, Any] = {"id": told["id"], "code": 0}
    try:
        said["took"] = [s for each in await asyncio.gather(*callers) for s in each]
    except (OSError, asyncio.IncompleteReadError) as error:
        said |= {"code": 1, "words": str(error)}
    sys.stdout.buffer.write(orjson.dumps(said) + b"\n")
    sys.stdout.buffer.flush()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LIMIT_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    going = set()
    while line := await reader.readline():
        task = loop.create_task(_session(orjson.loads(line)))
        going.add(task)
        task.add_done_callback(going.discard)


if __name__ == "__main__":
    asyncio.run(_serve())
