"""What a group's commit counts of a partition and is there no longer, said in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from consumers.log.protocols import Commit, Held, Log
from consumers.loop.suspects import topic_of


@dataclass(frozen=True, slots=True)
class LostTail:
    """Records that a group has counted, or might have had to, and that are gone."""

    topic: str
    partition: int
    committed: int
    goes_on: int
    """The first offset of which the group knows nothing."""
    made_anew: bool
    counted: str = "committed"
    """How the offset counts."""

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
    """What commits count that is gone; raises Unavailable."""
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
    """What is lost of a partition; None where all that was committed is as it was."""
    if held.committed is None:
        return None
    place = held.topic, held.partition, held.committed
    known = topic_of(held.metadata)
    if known and held.topic_id and known != held.topic_id:
        return LostTail(*place, held.log_start, made_anew=True)
    if held.cut is not None:
        return LostTail(*place, max(held.cut, held.log_start), made_anew=False)
    return None
