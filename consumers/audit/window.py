"""The stretch of the log that an audit judges."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from consumers.log.protocols import Commit, TopicPartition
from schemas.topics import Topics

FOR_EVER_MS = 1 << 62


@dataclass(frozen=True)
class Window:
    """Which part of the log is read, and how far the groups had come before that was settled."""

    ends: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partitions that are not read from offset 0."""
    horizon_ms: Mapping[str, int] = field(default_factory=dict)
    """Before this a topic may lack records: retention took them, or nobody asked for them."""
    first_request: Mapping[int, int] = field(default_factory=dict)
    """Of journal partitions that are not read from 0: no earlier request is looked for."""
    until_ms: int = 0
    """Later records are not judged; 0 is no limit."""
    commits: Mapping[str, Mapping[TopicPartition, Commit]] = field(default_factory=dict)
    """By group, read before `ends`: so what lies below must have had its effects."""


class Horizons:
    """Since when the topics must hold what the journal implies, in milliseconds."""

    def __init__(self, window: Window, topics: Topics) -> None:
        self.window = window
        self.topics = topics
        self.steps = window.horizon_ms.get(topics.steps, 0)
        self.trajectories = window.horizon_ms.get(topics.trajectories, 0)
        self._calls: dict[str, int] = {}

    def calls(self, policy_id: str) -> int:
        """Of a policy's calls; a topic that was removed, as that of a run that is over is, has none
        of them."""
        if policy_id not in self._calls:
            topic = self.topics.calls(policy_id)
            there = any(topic == name for name, _ in self.window.ends)
            self._calls[policy_id] = self.window.horizon_ms.get(topic, 0) if there else FOR_EVER_MS
        return self._calls[policy_id]
