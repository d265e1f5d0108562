"""Ranges of history: a selection of records, and their offsets.

A range consists of offsets, or of times (append times in the topic that is read), and within these
of the records of one run, one policy or some rollouts. A rollout belongs to a policy that sampled
in it, or to the requested policy if nothing was sampled. It belongs to a version of a policy if
that policy sampled in it and all of its tokens are of that version, so that an evaluation of a
version excludes tokens of others. A rollout during which the weights changed belongs to no version.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from rollcall.consumers.log.protocols import Log, TopicPartition
from rollcall.schemas.bounded import whole_number
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, Trajectory

SKEW_MS = 10_000
"""Tolerance for append times of two partitions, which may come from two brokers' clocks."""

RolloutRecord = Trajectory | RolloutRequest
"""The record of a rollout that has ended, or of one that is requested."""


class Extent(NamedTuple):
    """The first offset of each partition, and its end (exclusive)."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, [first, end)."""

    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.first}-{self.end}"


@dataclass(frozen=True, slots=True)
class Range:
    """A selection of records; fields that are not given do not restrict it."""

    since_ms: int = 0
    until_ms: int = 0
    """The end of the range, exclusive; 0 is no end."""
    run_id: str = ""
    policy_id: str = ""
    version: int | None = None
    ids: frozenset[str] = frozenset()
    offsets: tuple[OffsetRange, ...] = ()
    """Offsets of the topic that is read; partitions that are not listed are left out."""

    def __str__(self) -> str:
        words = [str(stretch) for stretch in self.offsets]
        words += [f"since {_iso(self.since_ms)}"] if self.since_ms else []
        words += [f"until {_iso(self.until_ms)}"] if self.until_ms else []
        words += [f"run {self.run_id}"] if self.run_id else []
        words += [f"policy {self.policy()}"] if self.policy_id else []
        words += [f"{len(self.ids):,} rollout ids"] if self.ids else []
        return ", ".join(words) or "all that is there"

    def policy(self) -> str:
        """Return P or P@VERSION, as it was given."""
        return self.policy_id if self.version is None else f"{self.policy_id}@{self.version}"

    def beyond_policy(self) -> bool:
        """Return True if anything besides a policy is given."""
        return replace(self, policy_id="", version=None) != Range()

    def has(self, rollout: RolloutRecord) -> bool:
        """Return True if a rollout is in the range, apart from offsets and times."""
        request = request_of(rollout)
        if self.ids and rollout.rollout_id not in self.ids:
            return False
        if self.run_id and (request is None or request.run_id != self.run_id):
            return False
        if self.version is not None:
            return versions_of_policy(rollout, self.policy_id) == {self.version}
        return not self.policy_id or self.policy_id in policies_of(rollout)


def parse_policy(text: str) -> tuple[str, int | None]:
    """Parse P or P@VERSION into policy and optional version; raises Refused."""
    policy_id, at, version = text.partition("@")
    number = whole_number(version)
    if not policy_id or (at and number is None):
        msg = f"--policy {text!r} is neither a policy id nor POLICY@VERSION, such as p@12"
        raise Refused(msg)
    return policy_id, number if at else None


def request_of(rollout: RolloutRecord) -> RolloutRequest | None:
    """Return the request of a rollout; None if its trajectory has none."""
    return rollout.request if isinstance(rollout, Trajectory) else rollout


def policies_of(rollout: RolloutRecord) -> tuple[str, ...]:
    """Return the policies that sampled in a rollout, or the requested one if none did."""
    request = request_of(rollout)
    sampled = rollout.policies if isinstance(rollout, Trajectory) else ()
    return sampled or ((request.policy_id,) if request else ())


def versions_of_policy(rollout: RolloutRecord, policy_id: str) -> set[int]:
    """Return the versions of a policy that sampled tokens of this rollout."""
    from rollcall.trainer.rules.samples import (
        versions_of,  # imports numpy, which `--help` does not need
    )

    if isinstance(rollout, RolloutRequest) or policy_id not in rollout.policies:
        return set()
    return versions_of(rollout.sequences or (), rollout.policies.index(policy_id))


def range_behind(since_ms: int) -> Range:
    """Return the range for records that were derived from records of that time or later."""
    return Range(since_ms=max(0, since_ms - SKEW_MS))


def filled_extent(log: Log, topic: str, span: Range) -> Extent:
    """Return the extent of a range in each partition of a topic; raises Refused if it is empty.

    Offsets that do not exist are refused, with the existing ones.
    """
    starts, ends = extent = extent_of(log, topic, span)
    if all(starts[tp] >= end for tp, end in ends.items()):
        when = Range(span.since_ms, span.until_ms)
        msg = f"nothing in {topic} ({when}); there is {_left(log.bounds(topic))}"
        raise Refused(msg)
    return extent


def extent_of(log: Log, topic: str, span: Range) -> Extent:
    """Like `filled_extent`, but may be empty. Raises Refused for offsets that do not exist."""
    bounds = log.bounds(topic)
    if span.offsets:
        _require_offsets(topic, span.offsets, bounds)
        # A reader has a position in every partition; at the end if it has nothing to read there.
        rest = {(topic, number): end for number, (_, end) in bounds.items()}
        starts = rest | {(topic, stretch.partition): stretch.first for stretch in span.offsets}
        return Extent(
            starts, rest | {(topic, stretch.partition): stretch.end for stretch in span.offsets}
        )
    starts = {(topic, number): low for number, (low, _) in bounds.items()}
    ends = {(topic, number): end for number, (_, end) in bounds.items()}
    if span.until_ms:
        at = log.offsets_for_times([topic], span.until_ms)
        ends = {tp: min(end, at[tp]) for tp, end in ends.items()}
    if span.since_ms:
        at = log.offsets_for_times([topic], span.since_ms)
        starts = {tp: min(at[tp], ends[tp]) for tp in starts}
    return Extent(starts, ends)


def _require_offsets(
    topic: str, stretches: Iterable[OffsetRange], bounds: Mapping[int, tuple[int, int]]
) -> None:
    for stretch in stretches:
        low, end = bounds.get(stretch.partition, (0, 0))
        if not low <= stretch.first < stretch.end <= end:
            what = "is past retention" if stretch.first < low else "is not all there"
            msg = f"--offsets {stretch} of {topic} {what}; there is {_left(bounds)}"
            raise Refused(msg)


def _left(bounds: Mapping[int, tuple[int, int]]) -> str:
    """Describe the existing offsets of each partition, in the syntax of `--offsets`."""
    stretches = [OffsetRange(n, low, end) for n, (low, end) in sorted(bounds.items()) if low < end]
    return ", ".join(map(str, stretches)) or "nothing at all"


def _iso(at_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms / 1000))
