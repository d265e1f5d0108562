"""Detection of clients that hang up, also while nothing is read from them.

asyncio sees the end of a connection only when it reads up to it. A gateway that reads slowly, or
holds bytes until a call is answered, would keep a connection and its body long after its client
has gone.
"""

import asyncio
import select
from collections.abc import Callable


class HangUps:
    """The watched connections of one listener, on its event loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._hung_up: dict[int, Callable[[], None]] = {}
        """The callback of each connection, by file descriptor."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._tell)

    def watch(self, file: int, hung_up: Callable[[], None]) -> None:
        """Call `hung_up` once, when the other end is closed, half-closed or reset."""
        if not self._epoll.closed:  # one may have been accepted just before
            self._hung_up[file] = hung_up
            self._epoll.register(file, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, file: int) -> None:
        """Stop watching a connection that is still open."""
        if self._hung_up.pop(file, None) is not None:
            self._epoll.unregister(file)

    def close(self) -> None:
        """Stop watching all. May be called twice."""
        if not self._epoll.closed:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
        self._hung_up.clear()

    def _tell(self) -> None:
        for file, _ in self._epoll.poll(0):
            self._hung_up[file]()
