"""What `control` has said: the cancels that stay, and whether agents are paused."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from consumers.control_reader import ControlReader
from consumers.log.protocols import Log, Record
from consumers.loop.dead_letters import DeadLetters
from schemas.codec import Codec
from schemas.errors import WireError
from schemas.messages import Control, RolloutRequest
from schemas.topics import Topics

HEAR_S = 10.0
BAD_WORDS = 10_000
"""Records that nobody can read, kept until it is known who is to bury them."""


@dataclass
class ControlState:
    """The `control` topic as a table; the last pause or resume wins, cancels stay."""

    rollouts: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    paused: bool = False

    def take(self, word: Control) -> None:
        if word.kind == "cancel" and word.rollout_id:
            self.rollouts[word.rollout_id] = word.reason
        elif word.kind == "cancel" and word.group_id:
            self.groups[word.group_id] = word.reason
        elif word.kind in ("pause", "resume"):
            self.paused = word.kind == "pause"

    def cancels(self, request: RolloutRequest) -> str | None:
        """The reason why this request is to be cancelled, None when it is not."""
        by_group = self.groups.get(request.group_id) if request.group_id else None
        return self.rollouts.get(request.rollout_id, by_group)


class ControlListener:
    """Reads `control`, to its end before anything is started: agents may have been paused."""

    def __init__(
        self,
        log: Log,
        codec: Codec,
        topics: Topics,
        letters: DeadLetters,
        clock: Callable[[], float],
    ) -> None:
        self.state = ControlState()
        self.letters = letters
        self._reader = ControlReader(log, codec, topics, unreadable=self.note_bad)
        self._bad_words: deque[tuple[Record, WireError]] = deque(maxlen=BAD_WORDS)
        until = clock() + HEAR_S
        while not self._reader.caught_up() and clock() < until:
            self.listen(0.1)

    def listen(self, timeout_s: float = 0.0) -> tuple[set[str], set[str]]:
        """Take the words that have come; the rollouts and groups that they cancel.

        An empty group names nobody: most rollouts are of none.
        """
        ids, groups = set[str](), set[str]()
        for _, word in self._reader.poll(timeout_s):
            self.state.take(word)
            if word.kind == "cancel":
                (ids if word.rollout_id else groups).add(word.rollout_id or word.group_id)
        groups.discard("")
        return ids, groups

    def note_bad(self, record: Record, error: WireError) -> None:
        """Keep what somebody will bury, of whatever topic every worker reads."""
        self._bad_words.append((record, error))

    def bury_bad_words(self) -> None:
        """Every worker reads them; one of them buries them."""
        if self._bad_words:
            self.letters.bury_once(self._bad_words)
            self._bad_words.clear()
