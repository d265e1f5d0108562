"""Taking a group past records: one bad stretch of a topic must not stop it for good.

The decision is written to `dead.letters`; the group's workers read it whenever they are given a
partition, and bury what they skip, so that nothing is lost and it can be replayed. A skipped
request ends as refused; a skipped entry of the journal counts for no reader.
"""

from collections import Counter
from collections.abc import Iterator
from getpass import getuser
from typing import TYPE_CHECKING

from compose.letters import range_of
from consumers.history.record_lines import topic_named
from consumers.log.protocols import Record
from consumers.log.reading import read_between
from consumers.loop.dead_letters import Skip
from producers.publisher import flush_all
from schemas.errors import Refused, WireError
from schemas.names import unknown

if TYPE_CHECKING:
    from compose.cluster import Cluster

FLUSH_S = 30.0
NAMED = 5
"""Records that a dry run names one by one."""


def skip(
    cluster: "Cluster", group: str, topic: str, place: str, *, reason: str, by: str, yes: bool
) -> None:
    """Have a group pass over a range of one partition; raises Refused where that cannot be."""
    if not reason.strip():
        msg = "say why with --reason: it is kept beside what is skipped"
        raise Refused(msg)
    partition, first, last = range_of(place)
    decided = Skip(
        _group(cluster, group), topic_named(cluster, topic), partition, first, last, reason, by
    )
    _refuse(cluster, decided)
    where = f"{decided.topic} {partition}@{first}-{last}"
    if not yes:
        _rehearse(cluster, decided)
        print(f"{decided.group} would pass over {where}; nothing was done, --yes does it")
        return
    out = cluster.log.publisher()
    headers = decided.headers()
    out.send(cluster.topics.dead_letters, None, None, partition=0, headers=headers)
    flush_all(out, FLUSH_S, "records", "whether the range is skipped is not known; ask again")
    print(
        f"{decided.group} passes over {where}; its workers learn of it when they start or are "
        "given the partition"
    )


def signature() -> str:
    """Who decides, where nothing else is said."""
    try:
        return getuser()
    except (KeyError, OSError):  # a container without users
        return ""


def _group(cluster: "Cluster", given: str) -> str:
    names = cluster.log.group_names()
    for name in (given, f"{cluster.settings.prefix}{given}"):
        if name in names:
            return name
    raise unknown("group", given, names)


def _refuse(cluster: "Cluster", decided: Skip) -> None:
    """Refuse what is not there, what was read before, and the journal under its readers' eyes."""
    tp = decided.topic, decided.partition
    low, end = cluster.log.bounds(decided.topic).get(decided.partition, (0, 0))
    if not low <= decided.first <= decided.last < end:
        msg = f"{tp[0]} {tp[1]} holds offsets from {low} to {end - 1}; name a range of these"
        raise Refused(msg)
    committed = cluster.log.committed(decided.group, decided.topic).get(decided.partition)
    if committed is not None and decided.last < committed:
        msg = f"{decided.group} has come to {tp[0]} {tp[1]}@{committed}, past all of this, already"
        raise Refused(msg)
    if decided.topic == cluster.topics.events:
        _refuse_journal(cluster, decided, committed or 0)


def _refuse_journal(cluster: "Cluster", decided: Skip, committed: int) -> None:
    """Nobody may have counted what is to count for nobody."""
    if decided.first < committed:
        msg = (
            f"the agents have counted {decided.topic} {decided.partition} up to {committed}; name "
            f"{decided.partition}@{committed}-{decided.last}"
        )
        raise Refused(msg)
    if cluster.admin.members([decided.group]):
        msg = (
            f"{decided.group} has workers, and one of them may have read what another cannot; stop "
            "them all before an entry of the journal is skipped"
        )
        raise Refused(msg)


def _rehearse(cluster: "Cluster", decided: Skip) -> None:
    """Print what lies in the range."""
    counted: Counter[str] = Counter()
    for record in _records(cluster, decided):
        why = _why(cluster, record)
        counted[why.partition(":")[0] or "readable"] += 1
        if counted.total() <= NAMED:
            print(f"{record.partition}@{record.offset}  {why or 'can be read'}")
    print(", ".join(f"{count:,} {what}" for what, count in counted.items()) or "no records")


def _records(cluster: "Cluster", decided: Skip) -> Iterator[Record]:
    bounds = cluster.log.bounds(decided.topic)
    starts = {(decided.topic, number): end for number, (_, end) in bounds.items()}
    ends = dict(starts)
    tp = decided.topic, decided.partition
    starts[tp], ends[tp] = decided.first, decided.last + 1
    for records in read_between(cluster.log, starts, ends):
        yield from records


def _why(cluster: "Cluster", record: Record) -> str:
    """Why a record cannot be read; empty where it can."""
    kind = cluster.topics.record_of(record.topic)
    if kind is None:
        return ""
    try:
        cluster.codec.decode(record.value, kind)
    except WireError as error:
        return f"{type(error).__name__}: {error}"
    return ""
