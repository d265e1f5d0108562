"""Reads `control` for an agents worker: to its end before anything is started, then as it grows."""

from collections import deque
from collections.abc import Callable

import structlog

from rollcall.consumers.agents.control_state import MOST_RECORDS, ControlState
from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.loop.control_reader import ControlReader
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.producers.control import control_key, retire_control, write_control
from rollcall.producers.publisher import Publisher
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Control
from rollcall.schemas.topics import DAY_MS, Topics

POLLS = 10
"""Polls in one turn while the topic has not been read to its end."""
POLL_S = 0.02
SAY_EVERY_S = 10.0
BAD_RECORDS = 1000
"""The most unreadable records that are kept until a worker is known that buries them."""
BAD_BYTES = 32 << 20
"""The most bytes that they may take; records dropped here are read again by the next worker."""
KEPT_MS = 7 * DAY_MS
"""The time for which a cancel applies to later requests; longer while older requests wait."""
RETIRE_EVERY_S = 600.0
MOST_RETIRED = 5000
"""The most records that one pass retires."""

log = structlog.get_logger()


class ControlListener:
    """Reads `control` for one worker; until its state is known, nothing may be started."""

    def __init__(
        self,
        log_: Log,
        codec: Codec,
        topics: Topics,
        dead_letters: DeadLetters,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.state = ControlState()
        self.dead_letters = dead_letters
        self._log, self._codec, self._topics = log_, codec, topics
        self._clock, self._wall = clock, wall
        self._reader = ControlReader(
            log_, codec, topics, unreadable=self.note_bad, skipped=dead_letters.skipped, clock=clock
        )
        self._bad_records: deque[tuple[Record, WireError]] = deque(maxlen=BAD_RECORDS)
        self._keyless: dict[bytes, Control] = {}
        """Records without a key: the next compaction may drop them."""
        self._say_due = clock() + SAY_EVERY_S
        self._retire_due = 0.0

    def listen(self) -> tuple[set[str], set[str]]:
        """Apply new records; return the rollouts and groups that they cancel.

        An empty group id cancels nothing: most rollouts belong to no group.
        """
        ids, groups = self._take()
        for _ in range(0 if self.state.known else POLLS):
            self.state.known = self._reader.caught_up()
            if self.state.known:
                break
            more = self._take(POLL_S)
            ids, groups = ids | more[0], groups | more[1]
        self._say_what_is_waited_for()
        groups.discard("")
        return ids, groups

    def _take(self, timeout_s: float = 0.0) -> tuple[set[str], set[str]]:
        ids, groups = set[str](), set[str]()
        for record, order in self._reader.poll(timeout_s):
            self.state.apply_order(order, record.key, record.timestamp_ms)
            if not (self.state.known or record.key) and len(self._keyless) < MOST_RECORDS:
                self._keyless[control_key(order).encode(errors="replace")] = order
            if order.kind == "cancel":
                (ids if order.rollout_id else groups).add(order.rollout_id or order.group_id)
        return ids, groups

    def _say_what_is_waited_for(self) -> None:
        if not self.state.known and self._clock() >= self._say_due:
            self._say_due = self._clock() + SAY_EVERY_S
            held = len(self.state.records)
            why = "no request is started before all of it is read"
            log.warning("control_not_read_yet", topic=self._topics.control, words=held, why=why)

    def note_bad(self, record: Record, error: WireError) -> None:
        """Keep an unreadable record of a topic that every worker reads, until it is buried."""
        self._bad_records.append((record, error))
        while sum(len(bad.value or b"") for bad, _ in self._bad_records) > BAD_BYTES:
            self._bad_records.popleft()

    def tend(self, publisher: Publisher, group: str) -> None:
        """Do what one worker does for all: bury unreadable records and retire old ones.

        Raises Unavailable.
        """
        if self._bad_records:
            self.dead_letters.bury_once(self._bad_records)
            self._bad_records.clear()
        if not self.state.known:
            return
        self._say_again(publisher)
        if self._clock() >= self._retire_due:
            self._retire_due = self._clock() + RETIRE_EVERY_S
            self._retire_old(publisher, group)

    def _say_again(self, publisher: Publisher) -> None:
        """Write records of commit c73aa9c, which had no keys, again with keys."""
        for key, order in self._keyless.items():
            if key in self.state.records and order.kind != "resume":
                write_control(publisher, self._codec, self._topics, order)
        self._keyless.clear()

    def _retire_old(self, publisher: Publisher, group: str) -> None:
        """Retire records older than KEPT_MS, once all requests from before
        that time have been taken."""
        before_ms = int(self._wall() * 1000) - KEPT_MS
        old = [key for key, _ in self.state.older_than(before_ms)][:MOST_RETIRED]
        if not old:
            return
        topic = self._topics.requests
        taken = self._log.committed(group, topic)
        firsts = self._log.offsets_for_times([topic], before_ms)
        starts = self._log.bounds(topic)
        if all(at <= taken.get(n, starts[n][0]) for (_, n), at in firsts.items()):
            for key in old:
                retire_control(publisher, self._topics, key)
