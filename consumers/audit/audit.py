"""The audit of a log, Kafka's or the one in memory.

It only reads: it joins no group, commits nothing and writes nothing.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.audit.audit_state import AuditState
from rollcall.consumers.audit.columns import find_one, unpack_place
from rollcall.consumers.audit.journal_facts import JournalFacts
from rollcall.consumers.audit.quota_use import QuotaUse
from rollcall.consumers.audit.report import Breach, Report
from rollcall.consumers.audit.requests import Requests
from rollcall.consumers.audit.sent_commands import SentCommands
from rollcall.consumers.audit.train_steps import Lineage
from rollcall.consumers.audit.trajectories import OutcomeChecks
from rollcall.consumers.audit.window import AuditRange, AuditWindow
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.reading.local_programs import runs_as_recorded
from rollcall.consumers.history.waiting.user_limits import read_quotas
from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.loop.dead_letter_records import (
    BuriedRecord,
    ResendOrder,
    SkipOrder,
    parse_dead_letter_record,
)
from rollcall.consumers.loop.dead_letters import skipped_in_journal
from rollcall.consumers.loop.loop import GC_THRESHOLDS
from rollcall.consumers.loop.quota_table import UNLIMITED
from rollcall.schemas.codec import Codec
from rollcall.schemas.messages import RolloutStarted
from rollcall.schemas.topics import Topics

HELD_S = 60.0
"""A transaction that is open for longer is no passing state."""
OnRead = Callable[[int, int], None]
"""Called with the number of records read, and the most that there are."""


def audit(
    history: History,
    world: FoldContext | None = None,
    *,
    since_ms: int = 0,
    until_ms: int = 0,
    drained: bool = False,
    most_repeated: int | None = None,
    most_rewritten: int | None = None,
    scorings: Sequence[str] | None = None,
    run_programs: bool = True,
    on_read: OnRead = lambda done, total: None,
) -> Report:
    """Read the log and check it, with the programs that can be loaded here.

    Raises Unavailable.
    """
    began = time.monotonic()
    world = world or FoldContext(program_of, Random)
    log, topics = history.log, history.topics
    names = [name for name in log.topic_names() if name.startswith(topics.prefix)]
    stretch = AuditRange(log, topics, names, since_ms, until_ms)
    case = Audit(
        history.codec.writing_whole(),
        topics,
        world,
        stretch.window,
        runnable=runs_as_recorded(world) if run_programs else lambda body: False,
        quotas=_quotas(history, names),
        drained=drained,
        most_repeated=most_repeated,
        most_rewritten=most_rewritten,
        scorings=scorings,
    )
    _take_all(case, log, stretch, names, on_read)
    report = case.finish()
    report.seconds = time.monotonic() - began
    return report


@dataclass(eq=False)
class Audit:
    """Takes records, topic by topic in the order of `stages`; `finish` returns the report."""

    codec: Codec
    topics: Topics
    world: FoldContext
    window: AuditWindow
    runnable: Callable[[RolloutStarted], bool]
    quotas: QuotaUse
    drained: bool
    most_repeated: int | None
    most_rewritten: int | None
    scorings: Sequence[str] | None

    def __post_init__(self) -> None:
        what = self.codec, self.topics
        self.report = Report()
        self.journal = JournalFacts(
            *what, self.world, self.runnable, self.window, self.report, self.quotas
        )
        given = self.drained, self.scorings
        self.case = AuditState(*what, self.window, self.journal, self.report, *given)
        self.lineage = Lineage(self.case)
        self._lost_tails()  # first of all: they explain many of the later findings
        self._held_back()

    def stages(self, there: Sequence[str]) -> list[list[str]]:
        """Return the topics in stages that are read in order; within a stage the order is free."""
        topics = self.topics
        last = (
            topics.requests,
            topics.steps,
            topics.trajectories,
            topics.scored,
            topics.dead_letters,
        )
        rest = [name for name in there if name.startswith(topics.calls("")) or name in last]
        return [[topics.events], [topics.train_steps], [topics.versions], rest]

    def take(self, records: Sequence[Record]) -> None:
        """Take records of the current stage, in order within each partition."""
        self.report.records += len(records)
        by_topic: dict[str, list[Record]] = {}
        for record in records:
            by_topic.setdefault(record.topic, []).append(record)
        for topic, own in by_topic.items():
            self._take(topic, own)

    def _take(self, topic: str, records: Sequence[Record]) -> None:
        if topic == self.topics.events:
            self.journal.take(records)
        elif topic == self.topics.train_steps:
            self.lineage.take(records)
        elif topic == self.topics.versions:
            self.lineage.versions(records)
        elif topic == self.topics.requests:
            self.requests.take(records)
        elif topic == self.topics.trajectories:
            self.outcomes.trajectories(records)
        elif topic == self.topics.scored:
            self.outcomes.scored(records)
        elif topic == self.topics.dead_letters:
            self._letters(records)
        else:
            self.commands.take(topic, records)

    def _letters(self, records: Sequence[Record]) -> None:
        self.report.dead_letters += len(records)
        for record in records:
            said = parse_dead_letter_record(record)
            if isinstance(said, BuriedRecord):
                self.case.buried.add(said.origin)
            elif isinstance(said, SkipOrder):
                self.case.skips.append(said)
            elif isinstance(said, ResendOrder):
                self.case.resends[said.letter] = said.sha256

    def stage_ended(self, stage: Sequence[str]) -> None:
        """Note that the topics of a stage have been read to their ends."""
        if self.topics.events in stage:
            self.journal.close()
            self.requests = Requests(self.case)
            self.commands = SentCommands(self.case)
            self.outcomes = OutcomeChecks(self.case, self.lineage)
        elif self.topics.train_steps in stage:
            self.lineage.close()

    def finish(self) -> Report:
        """Check for missing records, and return the report."""
        self.requests.finish()
        self.commands.finish()
        self.outcomes.finish()
        self.lineage.finish()
        self._open()
        self._forgotten()
        self._unburied()
        self._repeated()
        self._before_window()
        self.report.quotas = self.quotas.figures()
        return self.report

    def _open(self) -> None:
        self.report.checked["I1"] += self.report.accepted
        for number, partition in sorted(self.journal.partitions.items()):
            if self.drained:
                for rollout_id in partition.open:
                    text = f"rollout {rollout_id} began here and has not ended"
                    offset = partition.journal.open[rollout_id].first_offset
                    self._lost("I1", text, number, offset)
                continue
            for rollout_id, offset, minutes in partition.overdue():
                text = (
                    f"rollout {rollout_id} began here and is open {minutes} minutes past its own "
                    "deadline, though agents were at work"
                )
                self._lost("I1", text, number, offset)

    def _lost(self, invariant: str, text: str, partition: int, offset: int) -> None:
        """Report a breach at an entry of the journal."""
        self.report.add(Breach(invariant, text, self.topics.events, partition, offset, "lost"))

    def _forgotten(self) -> None:
        """Check that the agents' commit covers every open rollout and the last start."""
        for number, partition in sorted(self.journal.partitions.items()):
            low = partition.low.watermark
            if low is None:
                continue
            self.report.checked["I6"] += 1 + len(partition.open)
            for rollout_id, offset in partition.forgotten():
                text = (
                    f"rollout {rollout_id} began here and is open, but the agents' commit says "
                    f"that nothing below {low.bulk_low} is, its {len(low.stragglers)} stragglers "
                    "aside: whoever goes on from it will never know of this one"
                )
                self._lost("I6", text, number, offset)
            self._check_chain(number, low.bulk_low, low.last, partition.low.last)

    def _lost_tails(self) -> None:
        """Report committed offsets whose records are gone."""
        for group, tails in sorted(self.window.lost.items()):
            for lost in tails:
                place = lost.topic, lost.partition, lost.goes_on
                self.report.add(Breach("I6", f"group {group}: {lost}", *place, "lost"))

    def _held_back(self) -> None:
        """Report records behind open transactions, which are accepted but cannot be read."""
        for opened in self.window.held_back:
            self.report.held_back.append(str(opened))
            if self.drained or time.time() - opened.since_ms / 1000 > HELD_S:
                place = opened.topic, opened.partition, opened.first
                self.report.add(Breach("I1", str(opened), *place, "lost"))

    def _check_chain(
        self, partition: int, low: int, committed: int | None, last: int | None
    ) -> None:
        if (
            committed is None
            or committed == last
            or (self.topics.events, partition) in self.window.starts
        ):
            return
        text = (
            f"the agents' commit says that request {committed} was the last one started below this "
            f"offset, the journal says {last}: whoever goes on from it counts other starts"
        )
        kind = "doubled" if last is not None and committed < last else "lost"
        self.report.add(Breach("I6", text, self.topics.events, partition, low, kind))

    def _unburied(self) -> None:
        """Check that unreadable records were buried as dead letters, or skipped on request."""
        if any(topic == self.topics.dead_letters for topic, _ in self.window.starts):
            return
        for topic, partition, offset in self.report.unread:
            group = self.case.group_of(topic)
            if topic == self.topics.requests:
                group = self.topics.group("agents")
            here = topic, partition, offset
            if not group or here in self.case.buried or not self.case.finished(group, *here):
                continue
            text = f"nobody can read this record, and {group} has come past it and not buried it"
            self.report.add(Breach("I6", text, *here, "lost"))

    def _repeated(self) -> None:
        most, seen = self.most_repeated, self.report.repeated
        if most is not None and seen > most:
            text = f"{seen} answers repeat work done before, {most} are allowed; the last is here"
            place = self.topics.events, *unpack_place(self.journal.implied.last_repeated)
            self.report.add(Breach("I9", text, *place, "doubled"))
        most, seen, last = self.most_rewritten, self.report.duplicates, self.report.last_duplicate
        if most is not None and seen > most and last is not None:
            text = f"{seen} records say again what others had said, {most} may; the last is here"
            self.report.add(Breach("I9", text, *last, "doubled"))

    def _before_window(self) -> None:
        """Count rollouts that the journal mentions and that began before the window."""
        for owner, first in self.journal.strays.items():
            cut = (self.topics.events, unpack_place(first)[0]) in self.window.starts
            if cut and find_one(self.journal.starts.owners, owner) < 0:
                self.report.before_window += 1


def _quotas(history: History, names: Sequence[str]) -> QuotaUse:
    """Return the present quotas, however old their records are."""
    if history.topics.quotas not in names:
        return QuotaUse({}, {})
    table = read_quotas(history, UNLIMITED)
    return QuotaUse(table.records, table.since_ms)


def _take_all(
    case: Audit, log: Log, stretch: AuditRange, names: Sequence[str], on_read: OnRead
) -> None:
    skipped = skipped_in_journal(log, case.topics)
    done = 0
    with _seldom_collected():
        for stage in case.stages(names):
            for records in stretch.read(stage):
                case.take(skipped.counted(records))
                done += len(records)
                on_read(done, stretch.total)
            case.stage_ended(stage)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Run the garbage collector over live rollouts as seldom as a worker does."""
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
