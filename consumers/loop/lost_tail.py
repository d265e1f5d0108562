"""Lost records: those that a group's commit counts but the partition no longer has."""

from collections.abc import Sequence
from dataclasses import dataclass

from rollcall.consumers.log.protocols import Commit, Held, Log
from rollcall.consumers.loop.poison_detection import topic_of


@dataclass(frozen=True, slots=True)
class LostTail:
    """Records that a group has counted, or might have had to, and that are lost."""

    topic: str
    partition: int
    committed: int
    goes_on: int
    """The first offset that the group has not seen; it continues from there."""
    made_anew: bool
    counted: str = "committed"
    """The word for the offset's status in the message."""

    def __str__(self) -> str:
        place = f"{self.topic} {self.partition}"
        if self.made_anew:
            return (
                f"{place} was deleted and made anew: offset {self.committed} was {self.counted} in "
                f"the topic before, and all of that is lost. The new one begins at {self.goes_on}"
            )
        return (
            f"{place} has lost its tail: offset {self.committed} is {self.counted}, but from "
            f"{self.goes_on} on the records that were there are gone (an unclean election, or a "
            "disk that was restored)"
        )


def lost_tails(log: Log, commits: Sequence[Commit]) -> list[LostTail]:
    """Return the losses of several commits; raises Unavailable."""
    cuts = log.cuts(commits)
    topics = {commit.topic for commit in commits}
    ids = {topic: log.topic_id(topic) for topic in topics}
    bounds = {topic: log.bounds(topic) for topic in topics}
    held = [
        Held(
            commit.topic,
            commit.partition,
            commit.offset,
            commit.metadata,
            *bounds[commit.topic][commit.partition],
            cuts.get((commit.topic, commit.partition)),
            ids[commit.topic],
        )
        for commit in commits
    ]
    return [lost for each in held if (lost := lost_tail(each)) is not None]


def lost_tail(held: Held) -> LostTail | None:
    """Return the loss of a partition; None if all committed records are intact."""
    if held.committed is None:
        return None
    place = held.topic, held.partition, held.committed
    known = topic_of(held.metadata)
    if known and held.topic_id and known != held.topic_id:
        return LostTail(*place, held.log_start, made_anew=True)
    if held.cut is not None:
        return LostTail(*place, max(held.cut, held.log_start), made_anew=False)
    return None
