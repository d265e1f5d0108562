"""Which versions of a policy are announced, and which its open rollouts carry: a fold of the log.

A rollout carries the versions that have sampled its tokens, and the one that it is pinned to. It
counts from its request to ten minutes after its end, in which what came of it is scored and read.
Its own time begins with its first command, which a pause or a quota may hold back for as long as it
likes; so once it is answered it counts no longer than its deadline and these ten minutes allow, by
the clock of the log, and a start that did not count is none for ever. Too many may count for a
while; too few never do.
"""

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from math import inf

import numpy as np

from consumers.agents.watermark import read_watermark
from consumers.decode_in_order import decoded
from consumers.history.history import History
from consumers.log.protocols import TopicPartition
from consumers.log.reading import to_the_end
from schemas.bounds import VERSIONS_END
from schemas.messages import (
    AttemptStarted,
    DeadlinePassed,
    Event,
    ModelAnswered,
    PolicyVersion,
    RolloutCancelled,
    RolloutFinished,
    RolloutRequest,
    RolloutStarted,
)
from schemas.packed import ids_of

LINGERS_MS = 600_000
END = (RolloutFinished, RolloutCancelled, DeadlinePassed)


@dataclass(slots=True)
class _Carrying:
    """One rollout that counts as open."""

    lasts_ms: int
    """So long after its last answer it may go on, and what comes of it be read."""
    until_ms: float = inf
    """No bound before its first answer."""
    attempt: int = 0
    ended: bool = False
    versions: set[int] = field(default_factory=set)


@dataclass(eq=False)
class VersionUse:
    """The fold, of one policy; a record's time is when it was appended."""

    policy_id: str
    now_ms: int = 0
    """When anything was announced last. Where the log's clock is set back, it goes back too: what
    was announced since is as young as it is, and what was before stays the longer."""
    announced_ms: dict[int, int] = field(default_factory=dict)
    """When each version was announced last."""
    precisions: dict[int, str] = field(default_factory=dict)
    newest: PolicyVersion | None = None
    """The highest that is announced."""
    _rollouts: dict[str, _Carrying] = field(default_factory=dict)
    _asked: set[tuple[str, int, int]] = field(default_factory=set)
    """Of pinned requests that have not begun: rollout, offset, version."""

    def take_request(self, request: RolloutRequest, offset: int) -> None:
        """One request that nobody is known to have taken up; before the journal that may tell."""
        _, pinned = request.versions_for(self.policy_id)
        if pinned >= 0:
            self._asked.add((request.rollout_id, offset, pinned))

    def take_version(self, version: PolicyVersion, at_ms: int) -> None:
        """One announcement; others' are passed over, and numbers that no version has."""
        if version.policy_id != self.policy_id or not 0 <= version.version < VERSIONS_END:
            return
        self.announced_ms[version.version] = at_ms
        self.precisions[version.version] = version.precision
        if self.newest is None or version.version >= self.newest.version:
            self.newest = version

    def take_event(self, event: Event, at_ms: int) -> None:
        """One entry of the journal, in the order of its partition."""
        body, rollout = event.body, self._rollouts.get(event.rollout_id)
        if isinstance(body, RolloutStarted):
            self._start(event.rollout_id, body)
        elif rollout is None:
            return
        elif isinstance(body, AttemptStarted):
            rollout.attempt = max(rollout.attempt, event.attempt)
        elif isinstance(body, ModelAnswered):
            self._answer(rollout, body, at_ms)
        elif isinstance(body, END) and not rollout.ended:
            # Of an older attempt an end is none.
            rollout.ended = (
                not isinstance(body, RolloutFinished) or event.attempt >= rollout.attempt
            )
            if rollout.ended:
                rollout.until_ms = min(rollout.until_ms, at_ms + LINGERS_MS)

    def _answer(self, rollout: _Carrying, body: ModelAnswered, at_ms: int) -> None:
        if not rollout.ended:  # it may have been held back before its first command
            began_ms = 0 if rollout.until_ms == inf else rollout.until_ms
            rollout.until_ms = max(began_ms, at_ms + rollout.lasts_ms)
        if body.policy_id == self.policy_id:
            rollout.versions.update(np.unique(ids_of(body.versions)).tolist())

    def _start(self, rollout_id: str, body: RolloutStarted) -> None:
        lasts_ms = int(1000 * body.request.limits.rollout_timeout_s) + LINGERS_MS
        rollout = self._rollouts.setdefault(rollout_id, _Carrying(lasts_ms))
        if rollout.ended:  # it was asked for again
            rollout.ended, rollout.attempt, rollout.until_ms = False, 0, inf
        _, pinned = body.request.versions_for(self.policy_id)
        if pinned >= 0:
            rollout.versions.add(pinned)
            self._asked.discard((rollout_id, body.request_offset, pinned))

    def requested(self) -> Counter[int]:
        """By version how many requests are pinned to it that have not begun."""
        return Counter(version for _, _, version in self._asked)

    def open(self) -> Counter[int]:
        """By version how many rollouts carry it that have begun."""
        return Counter(
            version
            for rollout in self._rollouts.values()
            if rollout.until_ms > self.now_ms
            for version in rollout.versions
        )


@dataclass(frozen=True, slots=True)
class VersionsInUse:
    """Reads what the fold needs from the log, as it is when it is asked."""

    history: History
    policy_id: str

    def announced(self) -> VersionUse:
        """What `policy.versions` says, and nothing of the journal. Raises Unavailable."""
        history, use = self.history, VersionUse(self.policy_id)
        with closing(history.log.reader([history.topics.versions])) as reader:
            for record in to_the_end(reader):
                use.now_ms = record.timestamp_ms
                if record.key == self.policy_id.encode() and record.value is not None:
                    version = decoded(history.codec, record, PolicyVersion)
                    if version is not None:
                        use.take_version(version, record.timestamp_ms)
        return use

    def add_open(self, use: VersionUse) -> None:
        """Take in what is asked for, and the journal from where all that is open began.

        Requests first: what its group has committed is in the journal by then. Raises Unavailable.
        """
        self._add_requests(use)
        self._add_journal(use)

    def _add_requests(self, use: VersionUse) -> None:
        """From where its group has committed; all where that is no place of the topic as it is."""
        log, topic = self.history.log, self.history.topics.requests
        commits = log.commits(self.history.topics.group("agents"), topic)
        starts = dict[TopicPartition, int]()
        for number, (low, end) in log.bounds(topic).items():
            begin = commits[number].offset if number in commits else low
            starts[topic, number] = begin if low <= begin <= end else low
        with closing(log.reader([topic], starts)) as reader:
            for record in to_the_end(reader):
                request = decoded(self.history.codec, record, RolloutRequest)
                if request is not None:
                    use.take_request(request, record.offset)

    def _add_journal(self, use: VersionUse) -> None:
        log, topic = self.history.log, self.history.topics.events
        starts = dict[TopicPartition, int]()
        commits = log.commits(self.history.topics.group("agents"), topic)
        for number, (low, end) in log.bounds(topic).items():
            known = read_watermark(commits[number].metadata) if number in commits else None
            starts[topic, number] = min(max(known.low if known else low, low), end)
        with closing(log.reader([topic], starts)) as reader:
            for record in to_the_end(reader):
                event = decoded(self.history.codec, record, Event)
                if event is not None:
                    use.take_event(event, record.timestamp_ms)
