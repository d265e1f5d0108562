"""The gateway's listening socket; without the server, so that a port can be held before it."""

import socket

from rollcall.schemas.errors import Refused

LOOPBACK = "127.0.0.1"
BACKLOG = 4096
"""The most connections that wait to be accepted: all agents of a worker may start at once."""


def bind(host: str = LOOPBACK, port: int = 0) -> socket.socket:
    """Listen; port 0 chooses a free one. Raises Refused if the port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        msg = f"the gateway cannot listen on {host} port {port}: {error}; "
        msg += "set environments.gateway_port to a port that is free, or to 0 for any"
        raise Refused(msg) from error


def address_of(listener: socket.socket) -> str:
    """Return the address for processes of this machine, as the beginning of a URL."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
