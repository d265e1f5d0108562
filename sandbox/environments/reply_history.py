"""The replies in an agent's session: their history, so that a new process can replay it, and the
time that a step waits for further requests while some wait for the model.

Actions are kept packed, as they came. Their replies wait, by the digest of their request, until the
process has sent each request again.

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
"""The fraction of a reply's latency that a step waits for other requests."""
HOLD_S = (0.005, 1.0)
"""The shortest and the longest wait, in seconds."""
REPLY_TIMES = 31


class AdaptiveWait:
    """The waiting time of one process, in seconds of the given clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._shown_at: dict[str, float] = {}
        """The time at which each request was shown, by its digest."""
        self._latencies_s: deque[float] = deque(maxlen=REPLY_TIMES)
        self._wait_s = 0.0
        self._ended = False

    def shown(self, digest: str) -> None:
        """Record that a request goes to the model now."""
        self._shown_at[digest] = self._now()

    def replied(self, digest: str) -> None:
        """Record the arrival of the reply to a request."""
        shown_at = self._shown_at.pop(digest, None)
        if shown_at is not None:
            self._latencies_s.append(self._now() - shown_at)

    def until(self) -> float:
        """Return the time until which a step that begins now waits."""
        least, most = HOLD_S
        reply_s = statistics.median(self._latencies_s) if self._latencies_s else 0.0
        self._wait_s = min(max(self._wait_s, HOLD * reply_s, least), reply_s / 2 or least)
        self._ended = False
        return self._now() + min(most, max(self._wait_s, least))

    def end(self) -> None:
        """Record that the wait ended before there were as many requests as replies."""
        self._ended = True

    def learn(self, *, late: bool) -> None:
        """Adapt after a wait that ended: double it if a request came late, else halve it."""
        if self._ended:
            self._wait_s *= 2 if late else 0.5


class ReplyHistory:
    """The history of one session; its current process has yet to request `left` replies."""

    def __init__(self) -> None:
        self._actions: PackedRows[tuple[str]] = PackedRows()
        """All actions, in order."""
        self._waiting: dict[str, deque[Reply]] = {}

    @property
    def left(self) -> int:
        """The number of replies that the process has not requested yet."""
        return sum(map(len, self._waiting.values()))

    def append(self, action: str) -> None:
        """Append an action."""
        self._actions.append((action,))

    def queue(self, reply: Reply) -> None:
        """Queue a reply that the process has not requested yet."""
        self._waiting.setdefault(reply.d, deque()).append(reply)

    def start_replay(self) -> None:
        """Queue all replies again for a new process."""
        self._waiting = {}
        for reply in self._replies():
            self.queue(reply)

    def reply_to(self, digest: str) -> Reply | None:
        """Remove and return the first waiting reply to this request; None if there is none."""
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
