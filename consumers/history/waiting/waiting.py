"""Shows who waits for whom: reads the necessary part of the log, and asks the broker for owners.

If the broker reports the owner of a partition, it is named; one without an owner is shown as
held by nobody.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rollcall.consumers.agents.control_state import ControlState
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.watermark import Watermark, read_watermark
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.reading.ranges import SKEW_MS
from rollcall.consumers.history.waiting.open_work import OpenWork, PartitionOwner, ScoringPosition
from rollcall.consumers.history.waiting.user_limits import UserLimits, read_quotas
from rollcall.consumers.history.waiting.waits import REASONS, Wait, waits_of
from rollcall.consumers.log.protocols import Commit, Record
from rollcall.consumers.log.reading import POLL_S, read_all, uninterrupted
from rollcall.consumers.loop.control_reader import ControlReader
from rollcall.consumers.loop.dead_letters import skipped_in_journal
from rollcall.consumers.loop.finished_offsets import finished_above
from rollcall.consumers.loop.poison_detection import split_metadata
from rollcall.consumers.loop.quota_table import UNLIMITED
from rollcall.consumers.loop.scoring_retirement import retired
from rollcall.schemas.errors import Unavailable, WireError
from rollcall.schemas.messages import (
    Event,
    Instance,
    Quota,
    RolloutRequest,
    ScoredTrajectory,
    Trajectory,
)

if TYPE_CHECKING:
    from rollcall.producers.admin import Admin

REASONS_OF_ENDED = ("reward", "group")
"""The reasons for which rollouts wait after their end."""
MOST_TRAJECTORIES = 10_000
"""The most trajectories that are read for a missing score; the newest of each partition."""
NOBODY = "nobody"
TRAINER = "the trainer"

Owners = dict[PartitionOwner, str]
Offsets = dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class OpenWaits:
    """The present waits, the owners of the work, and remarks on the reading."""

    waits: list[Wait]
    control: ControlState
    """The state of `control`."""
    owners: Owners | None
    """None if the broker does not report owners."""
    writers: dict[int, str]
    remarks: list[str]

    def on(self, wait: Wait) -> str:
        """Return the process that has to act; if owners are unknown, the one that last did."""
        if wait.at is None:
            return TRAINER
        if self.owners is not None:
            return self.owners.get(wait.at, NOBODY)
        last = self.writers.get(wait.at.partition, "")
        return f"{last}?" if last and wait.at.group.endswith("agents") else "?"

    def rollouts(self) -> set[str]:
        """Return the ids of rollouts that have not ended."""
        return {wait.rollout_id for wait in self.waits if wait.reason not in REASONS_OF_ENDED}

    def members(self, group_id: str) -> set[str]:
        """Return the ids of a group's rollouts that have not ended."""
        waits = [wait for wait in self.waits if wait.group_id == group_id]
        return {wait.rollout_id for wait in waits if wait.reason not in REASONS_OF_ENDED}

    def totals(self) -> Iterator[tuple[str, int, int]]:
        """Yield reason, number of waits, and the oldest time, in milliseconds since the epoch."""
        for reason in REASONS:
            since = [wait.since_ms for wait in self.waits if wait.reason == reason]
            if since:
                yield reason, len(since), min(since)

    def plain(self, now_ms: int) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "at_ms": now_ms,
            "paused": self.control.paused,
            "paused_runs": sorted(self.control.paused_runs - {""}),
            "totals": {reason: count for reason, count, _ in self.totals()},
            "remarks": self.remarks,
            "waits": [{**asdict(wait), "on": self.on(wait)} for wait in self.waits],
        }


def read_control(history: History) -> ControlState:
    """Return the state of `control` as agents workers read it; raises Unavailable."""
    control = ControlState()
    with closing(ControlReader(history.log, history.codec, history.topics)) as reader:
        while not reader.caught_up():
            with uninterrupted():
                words = list(reader.poll(POLL_S))
            for record, word in words:
                control.apply_order(word, record.key, record.timestamp_ms)
    control.known = True
    return control


class WaitReader:
    """One reading; each stage begins at the position that the earlier ones determine.

    If no scoring has a group, `scoring_id` is assumed.
    """

    def __init__(
        self,
        history: History,
        admin: "Admin",
        world: FoldContext,
        scoring_id: str,
        *,
        group_id: str = "",
        quota: Quota = UNLIMITED,
    ) -> None:
        """`quota` is that of users without one of their own."""
        self.history = history
        self.quota = quota
        self.admin = admin
        self.topics = history.topics
        self.scoring_id = scoring_id
        self.remarks: list[str] = []
        self.unreadable: Counter[str] = Counter()
        self.work = OpenWork(self.topics, world, self._scorings(), group_id=group_id)

    def open_rollouts(self, run_id: str, policy_id: str) -> set[str]:
        """Return unstarted or open rollouts that are of the run, or that use the policy."""
        self._open()
        return self.work.asked_of(run_id, policy_id)

    def waiting(self) -> OpenWaits:
        """Read the part of the log that concerns open work; raises Unavailable."""
        self._open()
        self._trajectories()
        self._scored()
        self._commands()
        self._lines()
        control = read_control(self.history)
        self._held_back()
        waits = waits_of(self.work, self._limits())
        for topic, count in self.unreadable.items():
            self.remarks.append(f"{count} records of {topic} cannot be read; they were passed over")
        return OpenWaits(waits, control, self._owners(waits), self.work.writers, self.remarks)

    def _held_back(self) -> None:
        """Add remarks on open transactions: the records behind them cannot be read yet."""
        log, prefix = self.history.log, self.topics.prefix
        names = [name for name in log.topic_names() if name.startswith(prefix)]
        self.remarks += [str(opened) for opened in log.open_transactions(names)]

    def _open(self) -> None:
        """Read the requested and open rollouts."""
        self._journal()
        self._requests()

    def _journal(self) -> None:
        """Read from the agents' low watermark on; from the start if there is none."""
        topic, group = self.topics.events, self.topics.group("agents")
        commits = self.history.log.commits(group, topic)
        begins = self._starts(topic)
        ends = {number: end for number, (_, end) in self.history.log.bounds(topic).items()}
        starts = {}
        for (_, number), first in begins.items():
            commit = commits.get(number)
            begin = read_watermark(split_metadata(commit.metadata)[0]) if commit else None
            if begin is not None and begin.low < first:
                self.remarks.append(
                    f"{topic} {number} begins at {first}, retention has passed {begin.low}: "
                    "rollouts that began before are not shown"
                )
            if begin is None or not first <= begin.low <= ends[number]:
                begin = Watermark(first)
            starts[topic, number] = begin.low
            self.work.begin(number, begin, commit.offset if commit else 0)
        for record, event in self._read(topic, starts, Event, self.work.needs):
            self.work.take_event(event, record.partition, record.offset, record.timestamp_ms)

    def _requests(self) -> None:
        topic = self.topics.requests
        wanted, topic_id = self.work.first_requests(), self.history.log.topic_id(topic)
        # The records that the journal has started may be lost: then read their replacements.
        started = [
            Commit(topic, number, journal.last + 1, "", journal.chain.epoch)
            for number, journal in self.work.journals.items()
            if journal.last is not None
        ]
        cuts = self.history.log.cuts(started)
        starts = {
            tp: cuts.get(tp, max(at, wanted.get(tp[1], at)))
            for tp, at in self._starts(topic).items()
        }
        for record, request in self._read(topic, starts, RolloutRequest):
            place = record.partition, record.offset, record.timestamp_ms
            self.work.take_request(request, *place, record.leader_epoch, topic_id)

    def _scorings(self) -> list[ScoringPosition]:
        """Return every scoring that has a group; else the one of the settings."""
        log, topic, prefix = (
            self.history.log,
            self.topics.trajectories,
            self.topics.group("rewards", ""),
        )
        try:
            groups = [name for name in log.group_names() if name.startswith(prefix)]
        except Unavailable as error:
            self.remarks.append(str(error))
            groups = []
        scorings = []
        names = [name.removeprefix(prefix) for name in groups]
        known = {
            name: log.commits(self.topics.group("rewards", name), topic)
            for name in names or [self.scoring_id]
        }
        live = self._live(groups)
        for name, held in known.items():
            above = {
                n: finished_above(split_metadata(c.metadata)[0], c.offset) for n, c in held.items()
            }
            is_retired = retired(held.values()) is not None
            offsets = {n: c.offset for n, c in held.items()}
            scorings.append(
                ScoringPosition(name, offsets, above, prefix + name in live, is_retired)
            )
        return scorings

    def _live(self, groups: Sequence[str]) -> set[str]:
        """Return the groups that have members, if the broker answers."""
        try:
            return {member.group for member in self.admin.members(list(groups))}
        except Unavailable as error:
            self.remarks.append(str(error))
            return set()

    def _trajectories(self) -> None:
        """Read from the first trajectory that some scoring has not finished, within a bound."""
        topic, scorings = self.topics.trajectories, self.work.scorings
        owing = [scoring for scoring in scorings if not scoring.retired] or scorings
        bounds = self.history.log.bounds(topic)
        most = MOST_TRAJECTORIES // max(1, len(bounds))
        starts, left_out = {}, 0
        for number, (first, end) in bounds.items():
            begin = max(first, min(scoring.commits.get(number, 0) for scoring in owing))
            starts[topic, number] = max(begin, end - most)
            left_out += starts[topic, number] - begin
        if left_out:
            self.remarks.append(
                f"{left_out:,} older trajectories that some scoring has not come past are "
                "left out; `rollcall scorings list` says which, `verify --drained` reads them all"
            )
        for record, trajectory in self._read(topic, starts, Trajectory):
            self.work.take_trajectory(trajectory, record.partition, record.offset)

    def _scored(self) -> None:
        topic, keys = self.topics.scored, self.work.scored_keys()
        if not keys:
            return
        starts = (
            self._starts(topic)
            if self.work.group_id
            else self._since(topic, self.work.oldest_ms or 0)
        )
        for record, scored in self._read(topic, starts, ScoredTrajectory, lambda r: r.key in keys):
            self.work.take_scored(scored, record.timestamp_ms)

    def _commands(self) -> None:
        """Find the commands that were sent, by their ids; their values are not read."""
        keys = self.work.wanted_keys()
        names = self.history.log.topic_names()
        for (group, topic), since_ms in self.work.wanted_commands().items():
            if topic not in names:
                continue
            for record in self._records(topic, self._since(topic, since_ms)):
                if record.key in keys:
                    name = dict(record.headers or []).get("ce_id", b"")
                    place = PartitionOwner(group, topic, record.partition)
                    self.work.take_command(name, place)

    def _lines(self) -> None:
        """Find the environments that wait for a slot; waits of a dead worker are still listed."""
        topic, since_ms = self.topics.instances, self.work.first_opening_ms()
        if since_ms is None or topic not in self.history.log.topic_names():
            return
        for record, instance in self._read(topic, self._since(topic, since_ms), Instance):
            self.work.take_instance(instance, record.timestamp_ms)

    def _limits(self) -> UserLimits:
        """Return the limits of the users of open rollouts, and their present use."""
        return UserLimits(read_quotas(self.history, self.quota))

    def _owners(self, waits: Sequence[Wait]) -> Owners | None:
        groups = sorted({wait.at.group for wait in waits if wait.at})
        try:
            members = self.admin.members(groups)
        except Unavailable as error:
            self.remarks.append(str(error))
            return None
        return {PartitionOwner(m.group, *tp): m.client_id for m in members for tp in m.partitions}

    # Records

    def _starts(self, topic: str) -> Offsets:
        bounds = self.history.log.bounds(topic)
        return {(topic, number): first for number, (first, _) in bounds.items()}

    def _since(self, topic: str, at_ms: int) -> Offsets:
        return self.history.log.offsets_for_times([topic], max(0, at_ms - SKEW_MS))

    def _records(self, topic: str, starts: Offsets) -> Iterator[Record]:
        ends = self.history.log.bounds(topic)  # the tail of a commit may be lost
        starts = {tp: min(at, ends[tp[1]][1]) for tp, at in starts.items()}
        skipped = skipped_in_journal(self.history.log, self.topics)
        for record in read_all(self.history.log, [topic], starts):
            yield from skipped.counted([record])

    def _read(
        self,
        topic: str,
        starts: Offsets,
        kind: type,
        needed: Callable[[Record], bool] = lambda record: True,
    ) -> Iterator[tuple[Record, Any]]:
        for record in self._records(topic, starts):
            if not needed(record):
                continue
            try:
                yield record, self.history.codec.decode(record.value, kind)
            except WireError:
                self.unreadable[topic] += 1
