"""Choice of ports on loopback."""

import random
import socket
from collections.abc import Collection


def kept_or_free(old: int | None, taken: Collection[int]) -> int:
    """Return the old port if it is free, else another free one."""
    if old is None or old in taken or not is_free(old):
        return free_port(taken)
    return old


def free_port(taken: Collection[int]) -> int:
    """Return a free port below the kernel's ephemeral range: a client that keeps connecting to a
    port of that range without a listener can connect to itself, and hold the port.
    """
    draw = random.SystemRandom()
    while (port := draw.randrange(20_000, 32_000)) in taken or not is_free(port):
        pass
    return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Like Java: a port in TIME_WAIT counts as free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
