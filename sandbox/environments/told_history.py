"""What an agent's session was told, so that a process in its place can live it again.

Actions are kept as they came, packed; the replies in them wait by their ask's digest until the
process has asked for each.
"""

from collections import deque
from collections.abc import Iterator

from schemas.asks import AgentAction, Reply
from schemas.packed_rows import PackedRows


class ToldHistory:
    """Of one session; `left` replies of it have yet to be asked for by its present process."""

    def __init__(self) -> None:
        self._actions: PackedRows[tuple[str]] = PackedRows()
        """In order."""
        self._waiting: dict[str, deque[Reply]] = {}

    @property
    def left(self) -> int:
        """How many replies nobody has asked for yet."""
        return sum(map(len, self._waiting.values()))

    def append(self, action: str) -> None:
        """One more action was told."""
        self._actions.append((action,))

    def wait(self, reply: Reply) -> None:
        """Nobody has asked for it yet."""
        self._waiting.setdefault(reply.d, deque()).append(reply)

    def begin_again(self) -> None:
        """A new process has asked for nothing yet."""
        self._waiting = {}
        for reply in self._replies():
            self.wait(reply)

    def asked(self, digest: str) -> Reply | None:
        """The first reply to this ask that waits for it, which it does no longer."""
        if (replies := self._waiting.get(digest)) is None:
            return None
        reply = replies.popleft()
        if not replies:
            del self._waiting[digest]
        return reply

    def first_left(self) -> Reply:
        """The earliest told of those that wait. Raises StopIteration where none does."""
        left = [reply for replies in self._waiting.values() for reply in replies]
        return next(reply for reply in self._replies() if reply in left)

    def _replies(self) -> Iterator[Reply]:
        """Those of all actions, in order."""
        return (reply for (action,) in self._actions for reply in AgentAction.of(action).replies)
