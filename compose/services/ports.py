"""Ports on loopback: dealt, and kept where they are free."""

import random
import socket
from collections.abc import Collection


def kept_or_free(old: int | None, taken: Collection[int]) -> int:
    """The old port where nobody has it, else a free one."""
    if old is None or old in taken or not is_free(old):
        return free_port(taken)
    return old


def free_port(taken: Collection[int]) -> int:
    """Drawn below the ports that the kernel deals to outgoing connections: a client that keeps
    calling a port of those while nobody listens can end up connected to itself, and hold it.
    """
    draw = random.SystemRandom()
    while (port := draw.randrange(20_000, 32_000)) in taken or not is_free(port):
        pass
    return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Java does: a port in TIME_WAIT counts as free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
