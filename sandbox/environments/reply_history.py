"""The replies in an agent's session: their history, so that a new process can replay it, and the
time that a step waits for further requests while some wait for the model.

Actions are kept as they came, packed; their replies wait by the digest of their request until the
process has made each again.

The wait is proportional to the latency of replies: without it each concurrent caller of a process
would get a step of its own, and the process would run at the speed of one caller. If it was too
short for a caller it doubles, up to half of the latency of a reply.
"""

import statistics
from collections import deque
from collections.abc import Callable, Iterator

from rollcall.schemas.agent_requests import AgentAction, Reply
from rollcall.schemas.packed_rows import PackedRows

HOLD = 0.1
"""The fraction of a reply's latency that a step waits for other asks."""
HOLD_S = (0.005, 1.0)
"""The shortest and the longest wait, in seconds."""
REPLY_TIMES = 31


class AdaptiveWait:
    """The waiting time of one process, in seconds of the given clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._shown_at: dict[str, float] = {}
        """The time at which each ask was shown, by its digest."""
        self._took: deque[float] = deque(maxlen=REPLY_TIMES)
        self._patience_s = 0.0
        self._ended = False

    def shown(self, digest: str) -> None:
        """Record that an ask goes to the model now."""
        self._shown_at[digest] = self._now()

    def told(self, digest: str) -> None:
        """Record that the reply to an ask has come."""
        shown_at = self._shown_at.pop(digest, None)
        if shown_at is not None:
            self._took.append(self._now() - shown_at)

    def until(self) -> float:
        """Return the time until which a step that begins now waits."""
        least, most = HOLD_S
        reply_s = statistics.median(self._took) if self._took else 0.0
        self._patience_s = min(max(self._patience_s, HOLD * reply_s, least), reply_s / 2 or least)
        self._ended = False
        return self._now() + min(most, max(self._patience_s, least))

    def end(self) -> None:
        """Record that the wait ended before there were as many asks as replies."""
        self._ended = True

    def learn(self, *, late: bool) -> None:
        """Adapt after a wait that ended: double it if an ask came late, else halve it."""
        if self._ended:
            self._patience_s *= 2 if late else 0.5


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
