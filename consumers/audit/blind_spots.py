"""The blind spots of the audit: damaged records that it cannot detect, and why.

The sweep of `tests/consumers/audit/test_sweep.py` removes, doubles, swaps and replaces each single
record of small runs of every kind. Damage about which `verify` reports nothing is listed here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class BlindSpot:
    """One kind of damage to one kind of record."""

    harm: str
    """removed, doubled, swapped (with its neighbour) or replaced (by another record's bytes)."""
    topic: str
    """A pattern of the topic's name, without the prefix."""
    record: str
    """A pattern: the message type, or of entries of the journal their body; `:` and its kind."""
    why: str
    who: str
    """The part that detects the damage, or makes it harmless."""
    run: str = "*"
    """A pattern: the only kind of run that has such records."""

    def covers(self, harm: str, topic: str, record: str, run: str) -> bool:
        """Return True if damage to a run of this kind is covered by this blind spot."""
        here = self.harm == harm and fnmatchcase(topic, self.topic)
        return here and fnmatchcase(record, self.record) and fnmatchcase(run, self.run)


BLIND_SPOTS = (
    BlindSpot(
        "doubled",
        "rollout.events",
        "*",
        "every writer writes at least once",
        "the law of counting: the first answer in the log wins, and readers ignore the second",
    ),
    BlindSpot(
        "doubled",
        "model.calls.*",
        "*",
        "every writer writes at least once",
        "the law of counting; `verify --most-repeated` bounds answers that repeat work",
    ),
    BlindSpot(
        "doubled",
        "env.steps",
        "*",
        "every writer writes at least once",
        "the index of a step: a session answers the last one again and takes none twice",
    ),
    BlindSpot(
        "doubled",
        "policy.versions",
        "*",
        "every trainer that begins again announces its newest version again",
        "model servers: a version that they know, with the same weights, is no news",
    ),
    BlindSpot(
        "doubled",
        "dead.letters",
        "*",
        "two workers may bury one record",
        "`rollcall dlq list`, which reads two letters of one record as one",
    ),
    BlindSpot(
        "swapped",
        "model.calls.*",
        "*",
        "commands of different places have no order among themselves",
        "their ids: each command names its place in its rollout",
    ),
    BlindSpot(
        "swapped",
        "env.steps",
        "*",
        "commands of different places have no order among themselves",
        "the index of a step: a session refuses one that is not next",
    ),
    BlindSpot(
        "swapped",
        "rollout.events",
        "*",
        "answers that a program waits for together come in any order",
        "the fold: whatever the order, the trajectory is the same",
    ),
    BlindSpot(
        "swapped",
        "trajectories*",
        "*",
        "rollouts end, and are scored, in any order",
        "train.steps, which name each scored record by its offset: those that were used are named",
    ),
    BlindSpot(
        "swapped",
        "policy.versions",
        "*",
        "a version is known by its number, wherever it stands",
        "model servers, which go by the number alone",
    ),
    BlindSpot(
        "removed",
        "policy.versions",
        "*",
        "the topic is compacted: all but the newest of a policy may be gone",
        "train.steps, which hold the digest of every version",
    ),
    BlindSpot(
        "replaced",
        "policy.versions",
        "*",
        "the topic is compacted: all but the newest of a policy may be gone",
        "train.steps, which hold the digest of every version",
    ),
    *(
        spot
        for harm in ("removed", "replaced")
        for spot in (
            BlindSpot(
                harm,
                "model.calls.*",
                "ModelCall:sample",
                "a command that the end of its rollout overtook need never have been sent",
                "nobody waits for it",
                "cancelled",
            ),
            BlindSpot(
                harm,
                "model.calls.*",
                "ModelCall:abort",
                "a courtesy saves work, and is never needed for history",
                "a model server finishes the call, and its answer is ignored",
                "cancelled",
            ),
        )
    ),
    BlindSpot(
        "removed",
        "rollout.events",
        "ModelAnswered",
        "an answer that came after the end of its rollout counts for nobody",
        "nobody waits for it",
        "cancelled",
    ),
    *(
        BlindSpot(
            harm,
            "control",
            "*",
            "what people ask for follows from no other record",
            "the journal: a cancel that was heard is there as RolloutCancelled, with its reason",
        )
        for harm in ("removed", "doubled", "swapped", "replaced")
    ),
    *(
        BlindSpot(
            harm,
            "instances",
            "*",
            "nobody waits for it, and no history follows from it",
            "leases on the hosts; `rollcall boxes` shows which box is there",
        )
        for harm in ("removed", "doubled", "swapped", "replaced")
    ),
)


def spots_of(harm: str, topic: str, record: str, run: str) -> Iterator[BlindSpot]:
    """Return the blind spots that cover damage to a run of some kind."""
    return (spot for spot in BLIND_SPOTS if spot.covers(harm, topic, record, run))
