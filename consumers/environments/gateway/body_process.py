"""The process that reads large bodies, started with a socket: `python -m MODULE FD`.

An order comes with two files: one holds a body, one earlier conversations. The process replaces the
body by the parsed request and returns its length, or the refusal of the body, or the name of an
earlier response that it needs. Reading a body so costs the gateway nothing; this process has
limited memory and a lower priority on the processor.
"""

import os
import resource
import socket
import sys

import orjson
import structlog

from rollcall.consumers.environments.gateway.adapter_dialect import ADAPTER_ROUTES
from rollcall.inference.dialects.dialect import Declined
from rollcall.inference.dialects.request_serialisation import (
    ConversationMissing,
    LoadedConversations,
    conversations_of,
    serialise_request,
)
from rollcall.inference.dialects.routes import ROUTES

MOST_BYTES = 384 * 1024 * 1024
"""Limit of data memory; an interpreter with the dialects uses 50 MiB."""
NICE = 5
ORDER_BYTES = 65_536
DIALECTS = {each.name: each for each in (*ROUTES.values(), *ADAPTER_ROUTES.values())}


def answer_order(order: bytes, body_file: int, earlier_file: int) -> dict[str, object]:
    """Write the parsed request into the body's file; return the answer to the order."""
    dialect, policies, unknown = orjson.loads(order)
    try:
        earlier = LoadedConversations(conversations_of(_content(earlier_file)), unknown)
        parsed = serialise_request(DIALECTS[dialect].read(_content(body_file), policies, earlier))
    except MemoryError:
        msg = "the body takes too much memory to be read; send a smaller one"
        return {"status": 413, "code": "request_too_large", "message": msg, "param": None}
    except ConversationMissing as needed:
        return {"needs": needed.name}
    except Declined as declined:
        return {
            "status": declined.status,
            "code": declined.code,
            "message": str(declined),
            "param": declined.param,
        }
    os.ftruncate(body_file, 0)
    written = 0
    while written < len(parsed):
        written += os.pwrite(body_file, memoryview(parsed)[written:], written)
    return {"length": len(parsed)}


def serve(orders: socket.socket) -> None:
    """Answer orders until the other end is closed."""
    while True:
        order, files, _, _ = socket.recv_fds(orders, ORDER_BYTES, 2)
        if not order:
            return
        try:
            orders.sendall(orjson.dumps(answer_order(order, *files)))
        finally:
            for file in files:
                os.close(file)


def log_to_stderr() -> None:
    """Log lines of JSON, like the worker."""
    structlog.configure(
        [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


if __name__ == "__main__":
    log_to_stderr()
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    serve(socket.socket(fileno=int(sys.argv[1])))
