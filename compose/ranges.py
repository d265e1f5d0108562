"""A range of history: how people name one, and how it is read.

Whoever reads a range disturbs nothing that runs: it joins no group, commits nothing, holds one poll
in memory, and gives way while others work, or keeps to its rate (where only keys are looked at
nothing is held back). What is read is settled before the first record: from the start to the end as
it stands then, in the order of each partition. What is written meanwhile is not in it.

A range names offsets, or times (when a record was written to the topic that is read), and of these
the records of one run, one policy or some rollouts. A rollout belongs to a policy that sampled in
it, or that it was asked of when nothing was sampled. It belongs to a version of a policy if that
policy sampled in it and every token that it sampled is of that version: whoever evaluates a version
must not count what another one did. A rollout during which the weights changed is of no version.
"""

import inspect
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from consumers.history.contention import others_at_work
from consumers.history.rate_limit import GivingWay, Pace
from consumers.history.times import time_ms
from consumers.log.protocols import Log, Record, TopicPartition
from consumers.log.reading import read_between
from schemas.errors import Refused, WireError
from schemas.messages import RolloutRequest, ScoredTrajectory, Trajectory
from schemas.names import hint

if TYPE_CHECKING:
    from compose.cluster import Cluster

RATE = 300.0
"""Records a second while others work, unless said otherwise: of 20 kB each they take a tenth of a
core. A run that keeps two cores busy is slower by 5 % beside it (by 8 % at 500 a second)."""
SKEW_MS = 10_000
"""Append times of two partitions may come from two brokers' clocks."""
NAMED = 5
NEAR = 1000
"""Among so many names that were met the nearest is looked for."""
OFFSETS = re.compile(r"(\d+):(\d+)-(\d+)")

M = TypeVar("M")
Extent = tuple[dict[TopicPartition, int], dict[TopicPartition, int]]
"""The first offset of each partition, and the one to end before."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """A stretch of one partition, [first, end)."""

    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Range:
    """Which records; every field that is not given leaves all of them in."""

    since_ms: int = 0
    until_ms: int = 0
    """Before then; 0 is up to the end."""
    run_id: str = ""
    policy_id: str = ""
    version: int | None = None
    ids: frozenset[str] = frozenset()
    offsets: tuple[Offsets, ...] = ()
    """Of the topic that is read; partitions that are not named are left out."""

    def __str__(self) -> str:
        words = [f"{each.partition}:{each.first}-{each.end}" for each in self.offsets]
        words += [f"since {_iso(self.since_ms)}"] if self.since_ms else []
        words += [f"until {_iso(self.until_ms)}"] if self.until_ms else []
        words += [f"run {self.run_id}"] if self.run_id else []
        words += [f"policy {self.policy()}"] if self.policy_id else []
        words += [f"{len(self.ids):,} rollout ids"] if self.ids else []
        return ", ".join(words) or "all that is there"

    def policy(self) -> str:
        """P or P@VERSION, as it was given."""
        return self.policy_id if self.version is None else f"{self.policy_id}@{self.version}"

    def beyond_policy(self) -> bool:
        """Whether anything but a policy is named."""
        return replace(self, policy_id="", version=None) != Range()

    def has(self, rollout: "Rollout") -> bool:
        """Whether a rollout is in the range, as far as that does not hang on its place."""
        request = request_of(rollout)
        if self.ids and rollout.rollout_id not in self.ids:
            return False
        if self.run_id and (request is None or request.run_id != self.run_id):
            return False
        if self.version is not None:
            return versions(rollout, self.policy_id) == {self.version}
        return not self.policy_id or self.policy_id in policies(rollout)


Rollout = Trajectory | RolloutRequest
"""One that has ended, or one that is asked for."""


def request_of(rollout: Rollout) -> RolloutRequest | None:
    return rollout.request if isinstance(rollout, Trajectory) else rollout


def policies(rollout: Rollout) -> tuple[str, ...]:
    """Who sampled in a rollout; where nobody did, whom it was asked of."""
    request = request_of(rollout)
    sampled = rollout.policies if isinstance(rollout, Trajectory) else ()
    return sampled or ((request.policy_id,) if request else ())


def versions(rollout: Rollout, policy_id: str) -> set[int]:
    """The versions of a policy that sampled a token of this rollout."""
    from trainer.samples import versions_of

    if isinstance(rollout, RolloutRequest) or policy_id not in rollout.policies:
        return set()
    return versions_of(rollout.sequences or (), rollout.policies.index(policy_id))


# How people name one

Since = Annotated[
    str,
    typer.Option(help="Written from then on: 30m, 2h, 3d ago, or ISO 8601.", show_default=False),
]
Until = Annotated[str, typer.Option(help="Written before then.", show_default=False)]
RunId = Annotated[str, typer.Option("--run", help="Of this run.", show_default=False)]
PolicyVersion = Annotated[
    str,
    typer.Option(
        "--policy",
        help="Of this policy, P; or P@VERSION, whose every token that version sampled.",
        show_default=False,
    ),
]
Ids = Annotated[
    str,
    typer.Option(
        help="A file of rollout ids, one a line; - is standard input.", show_default=False
    ),
]
Places = Annotated[
    list[str] | None,
    typer.Option(
        "--offsets",
        metavar="PARTITION:FROM-TO",
        help="Of the topic that is read, TO not included; repeatable.",
        show_default=False,
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        min=0,
        help=f"Read so many records a second at most; 0 is without limit. Left out: {RATE:g} while "
        "others are at work, else without limit.",
        show_default=False,
    ),
]
OPTIONS: Mapping[str, tuple[Any, Any]] = {
    "since": (Since, ""),
    "until": (Until, ""),
    "run": (RunId, ""),
    "policy": (PolicyVersion, ""),
    "ids": (Ids, ""),
    "offsets": (Places, None),
}


def takes_range(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name a range; its parameter `chosen` is then that Range."""
    own = inspect.signature(command, eval_str=True).parameters
    kept = [parameter for name, parameter in own.items() if name != "chosen"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in OPTIONS.items()
    ]

    def ranged(**given: Any) -> Any:
        return command(chosen=parse(**{name: given.pop(name) for name in OPTIONS}), **given)

    ranged.__name__, ranged.__doc__ = command.__name__, command.__doc__
    ranged.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]
    return ranged


def parse(
    since: str = "",
    until: str = "",
    run: str = "",
    policy: str = "",
    ids: str = "",
    offsets: Iterable[str] | None = None,
    *,
    now_s: float | None = None,
) -> Range:
    """The range that the options name; raises Refused."""
    now = time.time() if now_s is None else now_s
    since_ms, until_ms = (time_ms(text, now) if text else 0 for text in (since, until))
    if since and until and until_ms <= since_ms:
        msg = f"--until {until} is not later than --since {since}"
        raise Refused(msg)
    places = tuple(_offsets(text) for text in offsets or ())
    if places and (since or until):
        msg = "--offsets names places and --since and --until times; give one or the other"
        raise Refused(msg)
    if len({each.partition for each in places}) < len(places):
        msg = "--offsets names a partition twice; one stretch of each can be read at once"
        raise Refused(msg)
    policy_id, version = parse_policy(policy) if policy else ("", None)
    chosen = frozenset(_ids(ids)) if ids else frozenset[str]()
    return Range(since_ms, until_ms, run, policy_id, version, chosen, places)


def parse_policy(text: str) -> tuple[str, int | None]:
    """A policy, and its version where one is named, from P or P@VERSION; raises Refused."""
    policy_id, at, version = text.partition("@")
    if not policy_id or (at and not version.isdecimal()):
        msg = f"--policy {text!r} is neither a policy id nor POLICY@VERSION, such as p@12"
        raise Refused(msg)
    return policy_id, int(version) if at else None


def _offsets(text: str) -> Offsets:
    found = OFFSETS.fullmatch(text)
    if found is None:
        msg = f"--offsets {text!r} is not of the form PARTITION:FROM-TO, such as 0:100-200"
        raise Refused(msg)
    places = Offsets(*map(int, found.groups()))
    if places.end <= places.first:
        msg = f"--offsets {text} is empty: TO is not included, and must be above FROM"
        raise Refused(msg)
    return places


def _ids(source: str) -> list[str]:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"rollout ids cannot be read from {source!r}: {error}"
        raise Refused(msg) from error
    found = text.split()
    if not found:
        msg = f"{source!r} holds no rollout id"
        raise Refused(msg)
    return found


# How it is read


def records(
    cluster: "Cluster", topic: str, chosen: Range, *, rate: float | None = None
) -> Iterator[Record]:
    """A topic's records within the offsets and times of a range.

    Raises Refused, before the first record, where there are none or where offsets are gone.
    """
    starts, ends = extent(cluster.log, topic, chosen)
    return paced(cluster, starts, ends, rate)


def trajectories(
    cluster: "Cluster", chosen: Range, *, rate: float | None = None
) -> Iterator[tuple[Record, Trajectory]]:
    """The trajectories of a range, each rollout's first; raises Refused, see `_chosen`."""
    topic = cluster.topics.trajectories
    _require_ids(cluster, topic, chosen)
    return _chosen(
        cluster, topic, Trajectory, chosen, rate, lambda t: t, lambda t: (t.rollout_id, t.attempt)
    )


def scored(
    cluster: "Cluster", chosen: Range, *, rate: float | None = None
) -> Iterator[tuple[Record, ScoredTrajectory]]:
    """The scored trajectories of a range, the first of each rollout and scoring id."""
    return _chosen(
        cluster,
        cluster.topics.scored,
        ScoredTrajectory,
        chosen,
        rate,
        lambda s: s.trajectory,
        lambda s: (s.trajectory.rollout_id, s.trajectory.attempt, s.scoring_id),
    )


def requests(
    cluster: "Cluster", chosen: Range, *, rate: float | None = None
) -> Iterator[tuple[Record, RolloutRequest]]:
    """The requests of a range, each rollout's first; they have been asked of no version yet."""
    if chosen.version is not None:
        msg = f"a request has no version; name the policy alone: --policy {chosen.policy_id}"
        raise Refused(msg)
    topic = cluster.topics.requests
    _require_ids(cluster, topic, chosen)
    return _chosen(
        cluster, topic, RolloutRequest, chosen, rate, lambda r: r, lambda r: r.rollout_id
    )


def extent(log: Log, topic: str, chosen: Range) -> Extent:
    """Where a range begins and ends in each partition of a topic; raises Refused where it is empty.

    Offsets that are not there are refused, each with what is.
    """
    starts, ends = settled(log, topic, chosen)
    if all(starts[tp] >= end for tp, end in ends.items()):
        when = Range(chosen.since_ms, chosen.until_ms)
        msg = f"nothing in {topic} ({when}); there is {_there(log.bounds(topic))}"
        raise Refused(msg)
    return starts, ends


def behind(since_ms: int) -> Range:
    """Where to look for what was made of records that are no older than that."""
    return Range(since_ms=max(0, since_ms - SKEW_MS))


def settled(log: Log, topic: str, chosen: Range) -> Extent:
    """As `extent`; may be empty."""
    bounds: dict[int, tuple[int, int]] = log.bounds(topic)
    if chosen.offsets:
        _require_offsets(topic, chosen.offsets, bounds)
        starts = {(topic, each.partition): each.first for each in chosen.offsets}
        ends = {(topic, each.partition): each.end for each in chosen.offsets}
        # A reader stands in every partition; where it has nothing to read, at the end.
        others = {(topic, n): end for n, (_, end) in bounds.items() if (topic, n) not in ends}
        return others | starts, others | ends
    starts = {(topic, number): low for number, (low, _) in bounds.items()}
    ends = {(topic, number): end for number, (_, end) in bounds.items()}
    if chosen.until_ms:
        found = log.offsets_for_times([topic], chosen.until_ms)
        ends = {tp: min(end, found[tp]) for tp, end in ends.items()}
    if chosen.since_ms:
        found = log.offsets_for_times([topic], chosen.since_ms)
        starts = {tp: min(found[tp], ends[tp]) for tp in starts}
    return starts, ends


def paced(
    cluster: "Cluster",
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    rate: float | None,
) -> Iterator[Record]:
    """One by one, and on average no more than `rate` a second, in small lots."""
    beside = (
        GivingWay(RATE, lambda: others_at_work(cluster.log, cluster.admin, cluster.topics))
        if rate is None
        else Pace(rate)
    )
    for batch in read_between(cluster.log, starts, ends, beside.lot):
        beside.wait(len(batch))
        yield from batch


def keys(cluster: "Cluster", topic: str, chosen: Range) -> Iterator[str]:
    """The keys within a range's offsets and times, as text; nothing is decoded."""
    for batch in read_between(cluster.log, *settled(cluster.log, topic, chosen)):
        for record in batch:
            yield (record.key or b"").decode(errors="replace")


def _require_offsets(
    topic: str, offsets: Iterable[Offsets], bounds: Mapping[int, tuple[int, int]]
) -> None:
    for each in offsets:
        low, end = bounds.get(each.partition, (0, 0))
        if not low <= each.first < each.end <= end:
            what = "is past retention" if each.first < low else "is not all there"
            msg = (
                f"--offsets {each.partition}:{each.first}-{each.end} of {topic} {what}; "
                f"there is {_there(bounds)}"
            )
            raise Refused(msg)


def _there(bounds: Mapping[int, tuple[int, int]]) -> str:
    """What is left of each partition, as it would be named."""
    held = [f"{n}:{low}-{end}" for n, (low, end) in sorted(bounds.items()) if low < end]
    return ", ".join(held) or "nothing at all"


def _iso(at_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms / 1000))


def _require_ids(cluster: "Cluster", topic: str, chosen: Range) -> None:
    """Look for the ids among a topic's keys, before anybody acts on the first that is there."""
    if not chosen.ids:
        return
    extent(cluster.log, topic, chosen)
    met = _Met(chosen)
    for key in keys(cluster, topic, chosen):
        met.note_id(key)
    met.require_ids(topic)


def _chosen(
    cluster: "Cluster",
    topic: str,
    kind: type[M],
    chosen: Range,
    rate: float | None,
    rollout_of: Callable[[M], Rollout],
    identity: Callable[[M], Any],
) -> Iterator[tuple[Record, M]]:
    """What of a topic belongs to a range, the first under each identity; skips what is unreadable.

    Raises Refused before the first record as `records` does, and after the last where an id was
    not found, or nothing was found of the run or the policy.
    """
    found = records(cluster, topic, chosen, rate=rate)
    decode = partial(_decoded, cluster.codec, kind)
    return _filtered(found, decode, topic, _Met(chosen), rollout_of, identity)


def _filtered(
    found: Iterable[Record],
    decode: Callable[[Record], M | None],
    topic: str,
    met: "_Met",
    rollout_of: Callable[[M], Rollout],
    identity: Callable[[M], Any],
) -> Iterator[tuple[Record, M]]:
    seen: set[int] = set()
    for record in found:
        message = decode(record)
        if message is None or not met.takes(rollout_of(message)):
            continue
        # Eight bytes stand for a name: one in 40,000 readings of ten million rollouts loses one.
        name = hash(identity(message))
        if name not in seen:
            seen.add(name)
            yield record, message
    met.require(topic)


def _decoded(codec: Any, kind: type[M], record: Record) -> M | None:
    try:
        message: M = codec.decode(record.value, kind)
    except WireError as error:
        import structlog  # a tenth of a second that no `--help` should pay

        structlog.get_logger().warning(
            "record_unreadable",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            error=type(error).__name__,
        )
        return None
    return message


@dataclass
class _Met:
    """What was met on the way, so that a name that nothing bears can be told from a near one."""

    chosen: Range
    taken: int = 0
    ids: set[str] = field(default_factory=set)
    near: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    policies: set[str] = field(default_factory=set)
    versions: set[int] = field(default_factory=set)

    def takes(self, rollout: Rollout) -> bool:
        """Whether it is in the range; notes whose it is."""
        chosen, request = self.chosen, request_of(rollout)
        if chosen.ids:
            self.note_id(rollout.rollout_id)
        if chosen.run_id and request is not None:
            self.runs.add(request.run_id)
        if chosen.policy_id:
            self.policies.update(policies(rollout))
        taken = chosen.has(rollout)
        self.taken += taken
        if not taken and chosen.version is not None:
            self.versions |= versions(rollout, chosen.policy_id)
        return taken

    def note_id(self, rollout_id: str) -> None:
        if rollout_id in self.chosen.ids:
            self.ids.add(rollout_id)
        elif len(self.near) < NEAR:
            self.near.add(rollout_id)

    def require(self, topic: str) -> None:
        """Raises Refused where what was named is not in what was read."""
        chosen = self.chosen
        self.require_ids(topic)
        if self.taken:
            return
        if chosen.run_id and chosen.run_id not in self.runs:
            msg = (
                f"no rollout of run {chosen.run_id!r} in {topic}; {_hint(chosen.run_id, self.runs)}"
            )
        elif chosen.policy_id and chosen.policy_id not in self.policies:
            near = _hint(chosen.policy_id, self.policies)
            msg = f"no rollout of policy {chosen.policy_id!r} in {topic}; {near}"
        elif chosen.version is not None:
            others = ", ".join(map(str, sorted(self.versions))) or "no version at all"
            msg = (
                f"no rollout in {topic} whose every token version {chosen.version} of "
                f"{chosen.policy_id!r} sampled; there is {others}"
            )
        else:
            msg = f"no rollout in {topic} is all of this: {chosen}"
        raise Refused(msg)

    def require_ids(self, topic: str) -> None:
        missing = sorted(self.chosen.ids - self.ids)
        if missing:
            named = ", ".join(map(repr, missing[:NAMED]))
            more = f" and {len(missing) - NAMED:,} more" if len(missing) > NAMED else ""
            msg = (
                f"{len(missing):,} of {len(self.chosen.ids):,} rollout ids are not in {topic}: "
                f"{named}{more}; {_hint(missing[0], self.near)}"
            )
            raise Refused(msg)


def _hint(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant: one that begins so, else a similar one."""
    names = sorted(filter(None, known))
    begins = next((each for each in names if each.startswith(name)), None)
    if begins:
        return f"did you mean {begins!r}?"
    return hint(name, names) if names else "there is none"
