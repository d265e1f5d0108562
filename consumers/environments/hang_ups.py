"""Tells when the clients of connections hang up, also while nothing is read from them.

asyncio sees the end of a connection only when it reads up to it. A gateway that takes bytes slowly,
or holds them until a call is answered, would keep a connection and its body long after its client
has gone.
"""

import asyncio
import select
from collections.abc import Callable


class HangUps:
    """The connections of one listener; lives on its event loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._hung_up: dict[int, Callable[[], None]] = {}
        """What to call, by the connection's file descriptor."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._tell)

    def watch(self, file: int, hung_up: Callable[[], None]) -> None:
        """Call this once, when the other end is closed, half-closed or reset."""
        if not self._epoll.closed:  # one may have been accepted just before
            self._hung_up[file] = hung_up
            self._epoll.register(file, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, file: int) -> None:
        """Watch it no more; it is still open."""
        if self._hung_up.pop(file, None) is not None:
            self._epoll.unregister(file)

    def close(self) -> None:
        """Watch nothing any more. May be called twice."""
        if not self._epoll.closed:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
        self._hung_up.clear()

    def _tell(self) -> None:
        for file, _ in self._epoll.poll(0):
            self._hung_up[file]()
