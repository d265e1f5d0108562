"""`rollcall waiting`: reads what is needed of the log, then says what is waited for.

Only the broker and the registry must be up. Where the broker says which process owns a partition
now, that is named; where nobody owns it, that is what one came to learn.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
from rich.table import Table
from rich.text import Text

from compose.terminal import page, quiet_pipes
from consumers.agents.watermark import Watermark, read_watermark
from consumers.agents.worker import Words
from consumers.control_reader import ControlReader
from consumers.history.local_programs import watched_world
from consumers.history.ranges import SKEW_MS
from consumers.history.waits import REASONS, Place, Scoring, Wait, Waits
from consumers.log.protocols import Record
from consumers.log.reading import POLL_S, to_the_end, uninterrupted
from consumers.loop.dead_letters import passed_in_journal
from consumers.loop.finished_offsets import finished_above
from consumers.loop.suspects import parted
from consumers.scoring_retirement import retired
from schemas.as_json import text_of
from schemas.errors import Refused, Unavailable, WireError
from schemas.messages import (
    Event,
    RolloutRequest,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)
from schemas.names import nearest

if TYPE_CHECKING:
    from compose.cluster import Cluster

ROWS = 40
ENDED = ("reward", "group")
"""What rollouts wait for that have ended."""
NOBODY = "nobody"
TRAINER = "the trainer"

Owners = dict[Place, str]
Offsets = dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is waited for now, who has it, and what was found on the way."""

    waits: list[Wait]
    words: Words
    owners: Owners | None
    """None where the broker does not say."""
    writers: dict[int, str]
    remarks: list[str]

    def on(self, wait: Wait) -> str:
        """The process that has to act; where the broker does not say, who last did."""
        if wait.at is None:
            return TRAINER
        if self.owners is not None:
            return self.owners.get(wait.at, NOBODY)
        last = self.writers.get(wait.at.partition, "")
        return f"{last}?" if last and wait.at.group.endswith("agents") else "?"

    def rollouts(self) -> set[str]:
        """Everybody who has not ended."""
        return {wait.rollout_id for wait in self.waits if wait.reason not in ENDED}

    def members(self, group_id: str) -> set[str]:
        """Those of a group who have not ended."""
        waits = [wait for wait in self.waits if wait.group_id == group_id]
        return {wait.rollout_id for wait in waits if wait.reason not in ENDED}


def waiting(
    cluster: "Cluster",
    *,
    rollout_id: str = "",
    group_id: str = "",
    older_than_s: float = 0.0,
    as_json: bool = False,
) -> None:
    """Print who waits for what; raises Refused for an id that nobody knows."""
    found = look(cluster, group_id=group_id)
    now_ms = int(time.time() * 1000)
    waits = [wait for wait in found.waits if not rollout_id or wait.rollout_id == rollout_id]
    waits = [wait for wait in waits if not group_id or wait.group_id == group_id]
    remarks = list(found.remarks)
    if not waits:
        for name in filter(None, (rollout_id, group_id)):
            known(cluster, name)
            remarks.append(f"{name} has ended, and its rewards are there")
    waits = [wait for wait in waits if wait.since_ms <= now_ms - older_than_s * 1000]
    found = replace(found, waits=waits, remarks=remarks)
    if as_json:
        with quiet_pipes():
            print(orjson.dumps(as_plain(found, now_ms), option=orjson.OPT_INDENT_2).decode())
    else:
        show(found, now_ms)


# Reading


def look(cluster: "Cluster", *, group_id: str = "") -> Waiting:
    """Read the log as far as it says something about what is open."""
    return _Look(cluster, group_id).found()


def open_rollouts(cluster: "Cluster", run_id: str, policy_id: str) -> set[str]:
    """Rollouts of a run, or that ask a policy, which are not started or have not ended."""
    reading = _Look(cluster, "")
    reading.read_open()
    return reading.waits.asked_of(run_id, policy_id)


def words_of(cluster: "Cluster") -> Words:
    """What `control` says, as every agents worker reads it."""
    words = Words()
    with closing(ControlReader(cluster.log, cluster.codec, cluster.topics)) as control:
        while not control.caught_up():
            with uninterrupted():
                heard = control.poll(POLL_S)
            for _, word in heard:
                words.take(word)
    return words


@dataclass(frozen=True, slots=True)
class Known:
    """Every id that the journal and the requests still tell of."""

    rollouts: set[str]
    groups: set[str]


def known(cluster: "Cluster", name: str) -> Known:
    """Read who there ever was; raises Refused where `name` is neither a rollout nor a group."""
    rollouts: set[str] = set()
    groups: set[str] = set()
    for topic, kind in ((cluster.topics.events, Event), (cluster.topics.requests, RolloutRequest)):
        with closing(cluster.log.reader([topic])) as reader:
            for record in to_the_end(reader):
                if text_of(record.key) in rollouts:
                    continue
                try:
                    found: Any = cluster.codec.decode(record.value, kind)
                except WireError:  # whoever reads it as a group buries it
                    continue
                rollouts.add(found.rollout_id)
                told = found.body if kind is Event else None
                request = told.request if isinstance(told, RolloutStarted) else found
                groups.add(getattr(request, "group_id", ""))
    if name not in rollouts | groups - {""}:
        near = nearest(name, rollouts | groups)
        mean = f"did you mean {near!r}?" if near else f"it holds {len(rollouts):,} rollouts"
        msg = f"no rollout and no group {name!r} in the log; {mean}"
        raise Refused(msg)
    return Known(rollouts, groups)


class _Look:
    """One reading; each stage begins where the one before says that it matters."""

    def __init__(self, cluster: "Cluster", group_id: str) -> None:
        world = watched_world(cluster.settings.agents.program_timeout_s)
        self.cluster = cluster
        self.topics = cluster.topics
        self.remarks: list[str] = []
        self.unreadable: Counter[str] = Counter()
        self.waits = Waits(self.topics, world, self._scorings(), group_id=group_id)

    def read_open(self) -> None:
        """Read who is asked for and has not ended."""
        self._journal()
        self._requests()

    def found(self) -> Waiting:
        self.read_open()
        self._trajectories()
        self._scored()
        self._commands()
        words = words_of(self.cluster)
        waits = self.waits.told()
        for topic, count in self.unreadable.items():
            self.remarks.append(f"{count} records of {topic} cannot be read; they were passed over")
        return Waiting(waits, words, self._owners(waits), self.waits.writers, self.remarks)

    def _journal(self) -> None:
        """From the agents' low watermark on; from the start where they left no word."""
        topic, group = self.topics.events, self.topics.group("agents")
        held = self.cluster.log.commits(group, topic)
        begins = self._starts(topic)
        starts = {}
        for (_, number), first in begins.items():
            commit = held.get(number)
            begin = read_watermark(parted(commit.metadata)[0]) if commit else None
            if begin is not None and begin.low < first:
                self.remarks.append(
                    f"{topic} {number} begins at {first}, retention has passed {begin.low}: "
                    "rollouts that began before are not shown"
                )
            if begin is None or begin.low < first:
                begin = Watermark(first)
            starts[topic, number] = begin.low
            self.waits.begin(number, begin, commit.offset if commit else 0)
        for record, event in self._read(topic, starts, Event, self.waits.needs):
            self.waits.take_event(event, record.partition, record.offset, record.timestamp_ms)

    def _requests(self) -> None:
        topic = self.topics.requests
        wanted = self.waits.first_requests()
        starts = {tp: max(at, wanted.get(tp[1], at)) for tp, at in self._starts(topic).items()}
        for record, request in self._read(topic, starts, RolloutRequest):
            self.waits.take_request(request, record.partition, record.offset, record.timestamp_ms)

    def _scorings(self) -> list[Scoring]:
        """Every scoring that has a group and owes scores; else the one of the settings."""
        log, topic, prefix = (
            self.cluster.log,
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
            for name in names or [self.cluster.settings.rewards.scoring_id]
        }
        owing = {name: held for name, held in known.items() if retired(held.values()) is None}
        for name, held in (owing or known).items():
            above = {n: finished_above(parted(c.metadata)[0], c.offset) for n, c in held.items()}
            scorings.append(Scoring(name, {n: c.offset for n, c in held.items()}, above))
        return scorings

    def _trajectories(self) -> None:
        """From the first on that some scoring has not finished."""
        topic = self.topics.trajectories
        starts = {
            tp: max(at, min(s.commits.get(tp[1], 0) for s in self.waits.scorings))
            for tp, at in self._starts(topic).items()
        }
        for record, trajectory in self._read(topic, starts, Trajectory):
            self.waits.take_trajectory(trajectory, record.partition, record.offset)

    def _scored(self) -> None:
        topic, keys = self.topics.scored, self.waits.scored_keys()
        if not keys:
            return
        starts = (
            self._starts(topic)
            if self.waits.group_id
            else self._since(topic, self.waits.oldest_ms or 0)
        )
        for record, scored in self._read(topic, starts, ScoredTrajectory, lambda r: r.key in keys):
            self.waits.take_scored(scored, record.timestamp_ms)

    def _commands(self) -> None:
        """Which commands were sent, by their names; their values are not read."""
        keys = self.waits.wanted_keys()
        there = self.cluster.admin.partitions()
        for (group, topic), since_ms in self.waits.wanted_commands().items():
            if topic not in there:
                continue
            for record in self._records(topic, self._since(topic, since_ms)):
                if record.key in keys:
                    name = dict(record.headers or []).get("ce_id", b"")
                    place = Place(group, topic, record.partition)
                    self.waits.take_command(name, place)

    def _owners(self, waits: Sequence[Wait]) -> Owners | None:
        groups = sorted({wait.at.group for wait in waits if wait.at})
        try:
            members = self.cluster.admin.members(groups)
        except Unavailable as error:
            self.remarks.append(str(error))
            return None
        return {Place(m.group, *tp): m.client_id for m in members for tp in m.partitions}

    # Records

    def _starts(self, topic: str) -> Offsets:
        bounds = self.cluster.log.bounds(topic)
        return {(topic, number): first for number, (first, _) in bounds.items()}

    def _since(self, topic: str, at_ms: int) -> Offsets:
        found: Offsets = self.cluster.log.offsets_for_times([topic], max(0, at_ms - SKEW_MS))
        return found

    def _records(self, topic: str, starts: Offsets) -> Iterator[Record]:
        passed = passed_in_journal(self.cluster.log, self.topics)
        with closing(self.cluster.log.reader([topic], starts)) as reader:
            for record in to_the_end(reader):
                yield from passed.counted([record])

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
                yield record, self.cluster.codec.decode(record.value, kind)
            except WireError:
                self.unreadable[topic] += 1


# Saying


def _totals(found: Waiting) -> Iterator[tuple[str, int, int]]:
    """Reason, how many waits, and since when the oldest."""
    for reason in REASONS:
        since = [wait.since_ms for wait in found.waits if wait.reason == reason]
        if since:
            yield reason, len(since), min(since)


def as_plain(found: Waiting, now_ms: int) -> dict[str, Any]:
    return {
        "at_ms": now_ms,
        "paused": found.words.paused,
        "totals": {reason: count for reason, count, _ in _totals(found)},
        "remarks": found.remarks,
        "waits": [{**asdict(wait), "on": found.on(wait)} for wait in found.waits],
    }


def show(found: Waiting, now_ms: int) -> None:
    with page() as terminal:
        for remark in found.remarks:
            terminal.print(Text(f"note: {remark}", style="yellow"), soft_wrap=True)
        terminal.print(_headline(found, now_ms), soft_wrap=True)
        if found.waits:
            terminal.print(_table(found, now_ms))
        if len(found.waits) > ROWS:
            terminal.print(
                f"{len(found.waits) - ROWS:,} more waits, none of them older; --json has all of "
                "them, --rollout, --group and --older-than choose",
                soft_wrap=True,
            )


def _headline(found: Waiting, now_ms: int) -> Text:
    paused = "agents are paused: no request is started until `rollcall resume`\n"
    text = Text(paused if found.words.paused else "", style="bold red")
    rollouts = len({wait.rollout_id for wait in found.waits})
    words = [
        f"{count:,} {reason} (oldest {_ago(now_ms - since)})"
        for reason, count, since in _totals(found)
    ]
    who = "1 rollout waits" if rollouts == 1 else f"{rollouts:,} rollouts wait"
    text.append(f"{who}: {', '.join(words)}" if words else "nothing is waited for", "bold")
    return text


def _table(found: Waiting, now_ms: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("rollout", "group", "for", "on", "since", "deadline"):
        table.add_column(name, no_wrap=True)
    table.add_column("what", overflow="fold")
    for wait in found.waits[:ROWS]:
        on = found.on(wait)
        left = None if wait.deadline_ms is None else wait.deadline_ms - now_ms
        deadline = "" if left is None else f"in {_ago(left)}" if left > 0 else f"{_ago(-left)} ago"
        table.add_row(
            wait.rollout_id,
            wait.group_id,
            wait.reason,
            Text(on, style="red" if on == NOBODY else ""),
            f"{_ago(now_ms - wait.since_ms)}",
            Text(deadline, style="red" if left is not None and left <= 0 else ""),
            _asked_to_end(wait, found.words) + wait.what,
        )
    return table


def _asked_to_end(wait: Wait, words: Words) -> str:
    """A cancel that no agents worker has carried out yet."""
    reason = words.rollouts.get(wait.rollout_id, words.groups.get(wait.group_id))
    return "" if reason is None or wait.reason in ENDED else "(cancel was asked) "


def _ago(ms: int) -> str:
    """A length of time, as short as can be."""
    seconds = max(0, ms) / 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
