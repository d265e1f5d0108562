"""The history of replies in an agent's session, so that a new process can replay it.

Actions are kept as they came, packed; their replies wait by the digest of their ask until the
process has asked for each.
"""

from collections import deque
from collections.abc import Iterator

from rollcall.schemas.agent_requests import AgentAction, Reply
from rollcall.schemas.packed_rows import PackedRows


class ReplyHistory:
    """The history of one session; its current process has yet to ask for `left` replies."""

    def __init__(self) -> None:
        self._actions: PackedRows[tuple[str]] = PackedRows()
        """All actions, in order."""
        self._waiting: dict[str, deque[Reply]] = {}

    @property
    def left(self) -> int:
        """The number of replies that the process has not asked for yet."""
        return sum(map(len, self._waiting.values()))

    def append(self, action: str) -> None:
        """Append an action."""
        self._actions.append((action,))

    def wait(self, reply: Reply) -> None:
        """Queue a reply that the process has not asked for yet."""
        self._waiting.setdefault(reply.d, deque()).append(reply)

    def begin_again(self) -> None:
        """Queue all replies again for a new process."""
        self._waiting = {}
        for reply in self._replies():
            self.wait(reply)

    def asked(self, digest: str) -> Reply | None:
        """Take the first waiting reply to this ask; None if there is none."""
        if (replies := self._waiting.get(digest)) is None:
            return None
        reply = replies.popleft()
        if not replies:
            del self._waiting[digest]
        return reply

    def first_left(self) -> Reply:
        """Return the earliest waiting reply. Raises StopIteration if there is none."""
        left = [reply for replies in self._waiting.values() for reply in replies]
        return next(reply for reply in self._replies() if reply in left)

    def _replies(self) -> Iterator[Reply]:
        """Iterate over the replies of all actions, in order."""
        return (reply for (action,) in self._actions for reply in AgentAction.of(action).replies)
