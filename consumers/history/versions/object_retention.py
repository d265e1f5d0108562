"""Finds objects in the object store that no record needs any more.

Only the log knows which records claim an object, and it deletes by time alone: an object that is
older than any record can be is claimed by none.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rollcall.consumers.history.reading.history import LiveHistory
from rollcall.schemas.claims import HOLDERS, LIGHT
from rollcall.schemas.errors import Refused
from rollcall.schemas.topics import wanted

if TYPE_CHECKING:
    from rollcall.schemas.objects import ObjectStore, StoredObject

DAY_S = 86_400
SEGMENT_S = 7 * DAY_S
"""Kafka deletes a segment when its newest record is old enough, and begins one a week."""
UNFINISHED_S = DAY_S
"""A temporary file of this age is no longer being written."""


def removable(
    history: LiveHistory, store: "ObjectStore", older_than_s: float = 0.0
) -> "list[StoredObject]":
    """Return objects that no record can claim; raises Refused if a record still can at that age,
    and Unavailable.

    An age of 0 stands for the least safe age.
    """
    least_s = needed_s(history)
    if older_than_s and older_than_s < least_s:
        msg = (
            f"objects younger than {least_s / DAY_S:g} days may be claimed: so long do topics and "
            "dead letters keep their records"
        )
        raise Refused(msg)
    return unneeded(store.kept(), older_than_s or least_s)


def needed_s(history: LiveHistory) -> float:
    """Return the age at which no record can claim an object; raises Refused if there is none.

    A record that was buried on its last day stays in the dead letters for as long again.
    """
    names, calls = history.log.topic_names(), history.topics.calls("")
    policies = [name.removeprefix(calls) for name in names if name.startswith(calls)]
    known = wanted(history.topics.prefix, policies)
    bearing = {*LIGHT, *HOLDERS}
    topics = [topic for topic in known if topic.name in names and topic.record in bearing]
    letters = history.topics.dead_letters
    configs = history.admin.configs([*(topic.name for topic in topics), letters])
    kept_ms = {name: int(config["retention.ms"]) for name, config in configs.items()}
    for_ever = sorted(name for name, ms in kept_ms.items() if ms < 0)
    if for_ever:
        msg = f"{', '.join(for_ever)} keeps its records for ever, so what they claim is kept too"
        raise Refused(msg)
    longest_ms = max((ms for name, ms in kept_ms.items() if name != letters), default=0)
    return (longest_ms + kept_ms.get(letters, 0)) / 1000 + SEGMENT_S


def unneeded(objects: "Iterable[StoredObject]", older_than_s: float) -> "list[StoredObject]":
    """Return objects that are older; temporary files of crashes if they are older than a day."""
    return [
        each
        for each in objects
        if each.age_s > (UNFINISHED_S if each.path.endswith(".tmp") else older_than_s)
    ]
