"""Starts requests: writes one start or one refusal into the journal
partition of the same number."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

import structlog

from rollcall.consumers.agents.effects import Program
from rollcall.consumers.agents.outbox import REASON_CHARS, Outbox
from rollcall.consumers.agents.owned_journal import OwnedJournal
from rollcall.consumers.agents.recent_requests import FirstRequest, RecentRequests
from rollcall.consumers.agents.start_checks import StartChecks
from rollcall.consumers.log.protocols import Held, Log, Record
from rollcall.consumers.loop.dead_letter_records import resent_from
from rollcall.consumers.loop.dead_letters import SkippedRecords
from rollcall.schemas.bounds import check_names, fitting
from rollcall.schemas.errors import FailureCode, KilledWorkers, Refused, Skipped, WireError
from rollcall.schemas.messages import (
    RULES,
    Event,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
)
from rollcall.schemas.topics import Topics
from rollcall.schemas.untrusted_text import clean_text

READ_AT_ONCE = 8
"""The number of windows of requests that are read back at a time; each has a client of its own."""
UNREAD = {KilledWorkers: FailureCode.KILLED_WORKER, Skipped: FailureCode.SKIPPED}
"""Codes of requests that are refused undecoded, by error; other errors mean unreadable."""

log = structlog.get_logger()


class RequestStarts:
    """Starts requests; every start states from where requests were read,
    so that none is skipped."""

    def __init__(
        self,
        log_: Log,
        topics: Topics,
        outbox: Outbox,
        programs: Callable[[str], Program],
        journals: Mapping[int, OwnedJournal],
        skipped: SkippedRecords,
    ) -> None:
        self.log = log_
        self.topics = topics
        self.outbox = outbox
        self.checks = StartChecks(log_, topics, programs)
        self.skipped = skipped
        self.journals = journals
        """The journals of this worker, by partition."""
        self.partitions: dict[int, int] = {}
        """The request partitions of this worker, with the position after the last request seen."""
        self._asked: dict[int, RecentRequests] = {}
        self._topic_ids: dict[int, str] = {}

    def begin_partition(self, held: Held, start: int, next_offset: int) -> None:
        """Take over a partition; its requests count from `start` on."""
        partition = held.partition
        self.partitions[partition] = start
        self._topic_ids[partition] = held.topic_id
        self._asked[partition] = RecentRequests(
            self.log, self.topics.requests, partition, next_offset
        )

    def drop(self, partition: int) -> None:
        self.partitions.pop(partition, None)
        self._topic_ids.pop(partition, None)
        if partition in self._asked:
            self._asked.pop(partition).close()

    def knows_window(self, partition: int) -> bool:
        """Return True if the window of recent requests has been read back."""
        return self._asked[partition].known

    def look_back(self, over: Callable[[], bool]) -> None:
        """Read some windows back until `over()`."""
        unknown = (asked for asked in self._asked.values() if not asked.known)
        for asked in islice(unknown, READ_AT_ONCE):
            while asked.read() and not over():
                pass

    def handle(self, record: Record, request: RolloutRequest) -> None:
        """Write the start of a request, or its refusal."""
        span = self._span(record)
        first = self._asked_before(record, request.rollout_id)
        if self._counted(record):
            return
        if first is not None:
            self._repeated(record, span, request.rollout_id, first)
            return
        try:
            digest = self.checks.check(request)
        except Refused as error:
            self._refuse(record, span, request.rollout_id, FailureCode.REFUSED, str(error), request)
            return
        asked_ms, names = max(0, record.timestamp_ms), self._names(record)
        body = RolloutStarted(request, span, record.offset, digest, asked_ms, RULES, *names)
        start = Event.decision(request.rollout_id, 1, self.outbox.name, body)
        if not self.outbox.write(start, record.partition, record):
            reason = "the request is too large for the journal"
            self._refuse(record, span, request.rollout_id, FailureCode.TOO_LARGE, reason, None)
        elif record.partition in self.journals:
            self.journals[record.partition].starting.add(record.offset)

    def refuse_unread(self, record: Record, error: WireError) -> None:
        """Write a refusal for a request that cannot be read."""
        rollout_id = (record.key or b"").decode("utf-8", "replace")
        if record.key:
            self._asked[record.partition].note(record.key, record)
        span, code = self._span(record), UNREAD.get(type(error), FailureCode.UNREADABLE)
        if not self._counted(record):
            self._refuse(record, span, rollout_id, code, str(error), None)

    def _span(self, record: Record) -> int:
        """Return the position before this request, and move it behind the request."""
        began = self.partitions.get(record.partition, record.offset)
        self.partitions[record.partition] = record.offset + 1
        return began

    def _counted(self, record: Record) -> bool:
        """Return True if the journal tells that a request was started, so that
        no start of it can count."""
        owned = self.journals.get(record.partition)
        epoch, topic_id = self._names(record)
        return owned is not None and owned.journal.chain.started(topic_id, epoch, record.offset)

    def _names(self, record: Record) -> tuple[int, str]:
        """Return what identifies a request besides its offset: leader epoch and topic id."""
        return record.leader_epoch, self._topic_ids.get(record.partition, "")

    def _asked_before(self, record: Record, rollout_id: str) -> FirstRequest | None:
        """Return the request that this one repeats, in its own partition or in another one held
        here.

        Of two in different partitions the one appended first is never refused, whichever is read
        first. If no worker holds both partitions both may run, but never none.
        """
        named, here = rollout_id.encode(), self._asked[record.partition]
        first = here.first(named, record.offset)
        here.note(named, record)
        if first is None:
            own = FirstRequest(record.timestamp_ms, record.partition, record.offset)
            others = (asked.first(named) for asked in self._asked.values() if asked.known)
            first = min((own, *filter(None, others)))
            first = None if first == own else first
        return None if first is not None and self._sent_again(record) else first

    def _sent_again(self, record: Record) -> bool:
        """Return True if an operator ordered to send it again; the record's
        own claim is not enough."""
        if resent_from(record) is None:
            return False
        self.skipped.refresh()
        return self.skipped.is_resent_by_order(record)

    def _repeated(self, record: Record, span: int, rollout_id: str, first: FirstRequest) -> None:
        """Refuse a request that was made before.

        The refusal has attempt 0 and no run, so that it is not taken for the rollout's own end.
        """
        reason = (
            f"asked for before, at {first.partition}@{first.offset} of {record.topic}; "
            "to run it again, ask under a new id: `rollcall submit --again`"
        )
        self._refuse(record, span, rollout_id, FailureCode.REPEATED, reason, None, attempt=0)

    def _refuse(
        self,
        record: Record,
        span: int,
        rollout_id: str,
        code: str,
        reason: str,
        request: RolloutRequest | None,
        *,
        attempt: int = 1,
    ) -> None:
        unnamed = f"unreadable-{record.partition}-{record.offset}"
        rollout_id = fitting(rollout_id) or unnamed
        kept = request if request is not None and _names_fit(request) else None
        reason = clean_text(reason, REASON_CHARS)
        body = RolloutRefused(code, reason, span, record.offset, kept, *self._names(record))
        event = Event.decision(rollout_id, attempt, self.outbox.name, body)
        if not self.outbox.write(event, record.partition, record):
            bare = replace(body, request=None)
            self.outbox.write(replace(event, body=bare), record.partition, record)
        log.warning("request_refused", rollout_id=rollout_id, code=code, reason=reason)


def _names_fit(request: RolloutRequest) -> bool:
    try:
        check_names(request)
    except Refused:
        return False
    return True
