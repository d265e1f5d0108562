"""Requests against the chain of starts: none is skipped, and every start has its request."""

from array import array
from collections.abc import Sequence

from rollcall.consumers.audit.audit_state import AuditState
from rollcall.consumers.audit.columns import word_of
from rollcall.consumers.audit.report import Breach
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.dead_letter_records import is_resent, resent_from
from rollcall.schemas.bounds import fitting
from rollcall.schemas.messages import RolloutRequest


class Requests:
    """Compares each partition of the requests with the starts of its journal partition."""

    def __init__(self, case: AuditState) -> None:
        self.case = case
        self._next_start: dict[int, int] = {}
        self._claimed: list[tuple[Record, Breach]] = []
        self._second = case.journal.starts.second

    def take(self, records: Sequence[Record]) -> None:
        """Take requests, in order within each partition."""
        for record in records:
            self.case.report.checked["I1"] += 1
            partition = self.case.journal.partitions.get(record.partition)
            started = partition.requests if partition else array("q")
            at = self._next_start.get(record.partition, 0)
            while at < len(started) and started[at] < record.offset:
                self._without_request(record.partition, started[at])
                at += 1
            if partition and at < len(started) and started[at] == record.offset:
                self._check_id(record, partition.asked[at])
                at += 1
            else:
                self._not_started(record, started[-1] if started else -1)
            self._next_start[record.partition] = at
            if self._second and (record.partition, record.offset) in self._second:
                self._judge_second(record)

    def _check_id(self, record: Record, started: int) -> None:
        """Check that the rollout started for a request is the one that it asks for."""
        picked = self.case.picked(record, RolloutRequest, "rollout_id")
        if picked is None:
            return  # its worker could read it, or refused it by its key
        name = str(picked[0])
        if started not in {word_of(each.encode()) for each in (name, fitting(name))}:
            text = f"this request asks for rollout {name:.200}, but the journal starts another here"
            self.case.breach("I1", record, text)

    def _judge_second(self, record: Record) -> None:
        """Report a second start of a rollout, unless an operator sent its request again.

        Workers recognise a repeated request by its key; under another key the origin is unknown.
        """
        second = self._second[record.partition, record.offset]
        if not record.key or word_of(record.key) != second.owner:
            return
        text = (
            f"rollout {record.key.decode(errors='replace')} is started a second time here, asked "
            f"for at {record.partition}@{record.offset}; the first start is at "
            f"{second.before[0]}@{second.before[1]}"
        )
        breach = Breach("I1", text, self.case.topics.events, *second.here, "doubled")
        if resent_from(record) is None:
            self.case.report.add(breach)
        else:  # the dead letters, read later, show if an operator sent it
            self._claimed.append((record, breach))

    def _not_started(self, record: Record, last: int) -> None:
        if record.offset < self.case.window.first_request.get(record.partition, 0):
            return
        committed = self.case.commit(
            self.case.topics.group("agents"), self.case.topics.requests, record.partition
        )
        self.case.report.checked["I6"] += record.offset < committed
        if record.offset < last:
            text = "this request was never started, though later ones of its partition were"
            self.case.breach("I1", record, text, "lost")
        elif record.offset < committed:
            text = f"the agents group has committed {committed}, but this request never started"
            self.case.breach("I6", record, text, "lost")
        elif self.case.drained:
            self.case.breach("I1", record, "this request was never started", "lost")
        else:
            self.case.report.pending += 1

    def _without_request(self, partition: int, offset: int) -> None:
        if offset >= self.case.window.starts.get((self.case.topics.requests, partition), 0):
            text = "the journal starts a request that is not there"
            self.case.report.add(Breach("I1", text, self.case.topics.requests, partition, offset))

    def finish(self) -> None:
        """Report starts without a request, and second starts that no operator caused."""
        for record, breach in self._claimed:
            if not is_resent(record, self.case.resends):
                self.case.report.add(breach)
        for number, partition in self.case.journal.partitions.items():
            for offset in partition.requests[self._next_start.get(number, 0) :]:
                self._without_request(number, offset)
        if not self.case.window.until_ms:
            for (topic, number), low in self.case.window.log_starts.items():
                if topic == self.case.topics.requests:
                    self._taken_by_retention(number, low)

    def _taken_by_retention(self, number: int, low: int) -> None:
        """Report requests that retention has deleted before they were started."""
        topics, window = self.case.topics, self.case.window
        known = self.case.commit(topics.group("agents"), topics.requests, number)
        partition = self.case.journal.partitions.get(number)
        if partition is not None and partition.counting_rule.last is not None:
            known = max(known, partition.counting_rule.last + 1)
        elif (topics.events, number) in window.starts and not known:
            return  # its starts may be before the window
        if low > known:
            text = (
                f"requests {known}..{low - 1} of this partition were taken by retention before "
                "anybody had started them"
            )
            self.case.report.add(Breach("I1", text, topics.requests, number, known, "lost"))
