"""Reads the versions in use from the log, as of the time of the call.

Rollouts move on while this reads, so the topics are read in the order in which a rollout passes
through them: requests, journal, trajectories, scored. Each is read from a position below which all
has been passed on, so a rollout that leaves one topic meanwhile is found in the next.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rollcall.consumers.agents.watermark import read_watermark
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.versions.version_use import VersionUse
from rollcall.consumers.log.protocols import Commit, Record, TopicPartition
from rollcall.consumers.log.reading import read_all
from rollcall.consumers.loop.decode_in_order import decoded
from rollcall.consumers.loop.finished_offsets import finished_above
from rollcall.consumers.loop.poison_detection import split_metadata
from rollcall.consumers.loop.scoring_retirement import retired
from rollcall.schemas.messages import (
    Event,
    PolicyVersion,
    RolloutRequest,
    ScoredTrajectory,
    Trajectory,
)
from rollcall.trainer.checkpoints.resume_points import ResumePoint

M = TypeVar("M")
Starts = Mapping[TopicPartition, int]


class RunOfPolicy(Protocol):
    """The part of `rollcall.consumers.training.training_run.TrainingRun` that is needed."""

    @property
    def run_id(self) -> str: ...

    @property
    def scoring_id(self) -> str: ...

    @property
    def starts(self) -> Starts: ...


@dataclass(frozen=True, slots=True)
class VersionsInUse:
    """The versions in use of one policy."""

    history: History
    policy_id: str

    def announced(self) -> VersionUse:
        """Read `policy.versions` only, no rollouts. Raises Unavailable."""
        use, topic = VersionUse(self.policy_id), self.history.topics.versions
        for record in read_all(self.history.log, [topic]):
            use.now_ms = record.timestamp_ms
            if record.key == self.policy_id.encode() and record.value is not None:
                version = decoded(self.history.codec, record, PolicyVersion)
                if version is not None:
                    use.take_version(version, record.timestamp_ms)
        return use

    def add_rollouts(
        self, use: VersionUse, run: RunOfPolicy, points: Sequence[ResumePoint]
    ) -> None:
        """Add requested, open and unscored rollouts, and those that may be trained on.

        `points` are the places where training may resume, the newest first. Raises Unavailable.
        """
        self._add_requests(use)
        self._add_journal(use)
        self._add_trajectories(use, run.scoring_id)
        self._add_scored(use, run, points)

    def _add_requests(self, use: VersionUse) -> None:
        """Add the requests that the agents have not committed."""
        topic = self.history.topics.requests
        starts = self._starts(topic, _offsets(self._commits(topic, "agents")))
        for record, request in self._read(topic, starts, RolloutRequest):
            use.take_request(request, record.offset)

    def _add_journal(self, use: VersionUse) -> None:
        """Add the journal from the low watermark; ends below the commit have been written."""
        topic = self.history.topics.events
        commits = self._commits(topic, "agents")
        known = {
            n: read_watermark(split_metadata(commit.metadata)[0]) for n, commit in commits.items()
        }
        starts = self._starts(topic, {n: word.low for n, word in known.items() if word})
        below = _offsets(commits)
        for record, event in self._read(topic, starts, Event):
            is_out = record.offset < below.get(record.partition, 0)
            use.take_event(event, record.timestamp_ms, is_out=is_out)

    def _add_trajectories(self, use: VersionUse, scoring_id: str) -> None:
        """Add trajectories that the run's scorers have not finished; none
        if the scoring is retired."""
        topic = self.history.topics.trajectories
        commits = self._commits(topic, "rewards", scoring_id)
        if retired(commits.values()) is not None:
            return
        done = {
            number: finished_above(split_metadata(commit.metadata)[0], commit.offset)
            for number, commit in commits.items()
        }
        starts = self._starts(topic, _offsets(commits))
        for record, trajectory in self._read(topic, starts, Trajectory):
            if record.offset not in done.get(record.partition, ()):
                use.take_trajectory(trajectory)

    def _add_scored(self, use: VersionUse, run: RunOfPolicy, points: Sequence[ResumePoint]) -> None:
        """Add scored trajectories that are read again at some resume point."""
        topic = self.history.topics.scored
        starts = self._starts(topic, self._first_wanted(topic, run, points))
        for record in read_all(self.history.log, [topic], starts):
            place = record.partition, record.offset
            if points and not any(point.wants(*place) for point in points):
                continue
            scored = decoded(self.history.codec, record, ScoredTrajectory)
            if scored is not None and _is_of(run, scored):
                is_read = bool(points) and not points[0].is_unread(*place)
                use.take_scored(scored, is_read=is_read)

    def _first_wanted(
        self, topic: str, run: RunOfPolicy, points: Sequence[ResumePoint]
    ) -> dict[int, int]:
        """Return by partition the lowest offset that any of them needs."""
        firsts = {}
        for number, (low, _) in self.history.log.bounds(topic).items():
            begun = run.starts.get((topic, number), low)
            firsts[number] = min((point.first(number, begun) for point in points), default=begun)
        return firsts

    def _commits(self, topic: str, *group: str) -> dict[int, Commit]:
        """Return a group's commits, without those beyond the present end of the topic."""
        commits = self.history.log.commits(self.history.topics.group(*group), topic)
        ends = {number: end for number, (_, end) in self.history.log.bounds(topic).items()}
        return {n: commit for n, commit in commits.items() if commit.offset <= ends.get(n, -1)}

    def _starts(self, topic: str, known: Mapping[int, int]) -> Starts:
        """Return where to begin; at the first record if the known position is not in the topic."""
        starts = {}
        for number, (low, end) in self.history.log.bounds(topic).items():
            begin = known.get(number, low)
            starts[topic, number] = begin if low <= begin <= end else low
        return starts

    def _read(self, topic: str, starts: Starts, kind: type[M]) -> Iterator[tuple[Record, M]]:
        for record in read_all(self.history.log, [topic], starts):
            message = decoded(self.history.codec, record, kind)
            if message is not None:
                yield record, message


def _offsets(commits: Mapping[int, Commit]) -> dict[int, int]:
    return {number: commit.offset for number, commit in commits.items()}


def _is_of(run: RunOfPolicy, scored: ScoredTrajectory) -> bool:
    """Return True if the run trains on it."""
    request = scored.trajectory.request
    if request is None or scored.scoring_id != run.scoring_id:
        return False
    return request.run_id == run.run_id and request.purpose == "train"
