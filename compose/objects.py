"""The store of heavy records, seen from outside: what lies there, and what nobody needs any more.

Nobody knows which records claim an object but the log itself, and that forgets by time alone: an
object that is older than any record can be is claimed by none.
"""

from typing import TYPE_CHECKING

from schemas.claims import HOLDERS, LIGHT
from schemas.errors import Refused
from schemas.topics import WantedTopic, wanted

if TYPE_CHECKING:
    from compose.cluster import Cluster
    from schemas.objects import ObjectStore, StoredObject

DAY_S = 86_400
SEGMENT_S = 7 * DAY_S
"""Kafka removes a segment when its newest record is old enough, and begins one a week."""
UNFINISHED_S = DAY_S
"""A temporary file of this age belongs to nobody who is still writing it."""


def show_list(cluster: "Cluster") -> None:
    """Print how much lies in the store, and how old it is."""
    store = _store(cluster)
    kept = list(store.kept())
    ages = [each.age_s / DAY_S for each in kept]
    print(f"{len(kept):,} objects, {_megabytes(kept)} in {store.url}")
    if ages:
        print(f"from {min(ages):.1f} to {max(ages):.1f} days old")
    try:
        print(f"{len(_old(kept, needed_s(cluster))):,} of them are needed by nobody any more")
    except Refused as error:
        print(error)


def gc(cluster: "Cluster", older_than_s: float, *, yes: bool) -> None:
    """Remove what no record can claim any more; raises Refused for an age at which one can."""
    store, least_s = _store(cluster), needed_s(cluster)
    if older_than_s and older_than_s < least_s:
        msg = (
            f"objects younger than {least_s / DAY_S:g} days may be claimed: so long do topics and "
            "dead letters keep their records"
        )
        raise Refused(msg)
    old = _old(list(store.kept()), older_than_s or least_s)
    what = f"{len(old):,} objects, {_megabytes(old)}"
    if not yes:
        print(f"would remove {what}; nothing was done, --yes does it")
        return
    for kept in old:
        store.remove(kept)
    print(f"removed {what}")


def needed_s(cluster: "Cluster") -> float:
    """The age at which no record can claim an object; raises Refused where there is none.

    A record that was buried on its last day lies in the dead letters as long again.
    """
    there = cluster.admin.partitions()
    prefix = cluster.settings.prefix
    policies = [
        name.removeprefix(cluster.topics.calls(""))
        for name in there
        if name.startswith(cluster.topics.calls(""))
    ]
    topics = [t for t in wanted(prefix, policies) if t.name in there and _bears_claims(t)]
    letters = cluster.topics.dead_letters
    configs = cluster.admin.configs([*(topic.name for topic in topics), letters])
    kept_ms = {name: int(config["retention.ms"]) for name, config in configs.items()}
    for_ever = sorted(name for name, ms in kept_ms.items() if ms < 0)
    if for_ever:
        msg = f"{', '.join(for_ever)} keeps its records for ever, so what they claim is kept too"
        raise Refused(msg)
    longest_ms = max((ms for name, ms in kept_ms.items() if name != letters), default=0)
    return (longest_ms + kept_ms.get(letters, 0)) / 1000 + SEGMENT_S


def _bears_claims(topic: WantedTopic) -> bool:
    return topic.record in LIGHT or topic.record in HOLDERS


def _store(cluster: "Cluster") -> "ObjectStore":
    if cluster.objects is None:
        msg = "no store of objects is named; set ROLLCALL_OBJECTS__URL"
        raise Refused(msg)
    return cluster.objects


def _old(kept: "list[StoredObject]", older_than_s: float) -> "list[StoredObject]":
    return [
        each
        for each in kept
        if each.age_s > (UNFINISHED_S if each.path.endswith(".tmp") else older_than_s)
    ]


def _megabytes(kept: "list[StoredObject]") -> str:
    return f"{sum(each.size_bytes for each in kept) / 1e6:,.1f} MB"
