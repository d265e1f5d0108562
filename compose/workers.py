"""How each group's process is put together: by hand, in code that one can read.

A group's module is imported when it is built, so only model servers and trainers pay for torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.guard import Guard
from consumers.log import Log
from consumers.loop import Loop, Role
from schemas.codec import Codec
from schemas.messages import Event, ScoredTrajectory, Trajectory
from schemas.topics import Topics

if TYPE_CHECKING:
    from compose.settings import Settings
    from inference.engine import Engine


class Workshop:
    """What every worker of one process shares: the log, the codec, the names."""

    def __init__(
        self, log: Log, codec: Codec, topics: Topics, settings: "Settings", *, watched: bool = True
    ) -> None:
        self.log = log
        self.codec = codec
        self.topics = topics
        self.settings = settings
        self.watched = watched
        """Whether this is the main thread of a process of its own."""

    def agents(self, name: str, *, accept: bool = False) -> Loop:
        from consumers.agents.worker import Agents, Capacity

        given = self.settings.agents
        self.codec.prepare(self.topics.events, Event)
        self.codec.prepare(self.topics.trajectories, Trajectory)
        publisher = self.log.publisher()
        role = Agents(
            name,
            self.log,
            self.codec,
            self.topics,
            publisher,
            self.log.publisher(bulk=True),
            capacity=Capacity(given.max_live, given.max_running_per_user),
            guard=self._guard("the program", given.program_timeout_s),
            accept_skipped=accept,
        )
        return self._loop(role, publisher, self.topics.group("agents"), accept=accept)

    def models(self, name: str, engine: "Engine") -> Loop:
        from consumers.models import Models

        self.codec.prepare(self.topics.events, Event)
        publisher = self.log.publisher()
        role = Models(name, self.log, self.codec, self.topics, publisher, engine)
        return self._loop(role, publisher, self.topics.group("models", engine.policy_id))

    def environments(self, name: str) -> Loop:
        from consumers.environments import Environments

        self.codec.prepare(self.topics.events, Event)
        publisher = self.log.publisher()
        threads = self.settings.environments.threads if self.watched else 0
        role = Environments(name, self.codec, self.topics, publisher, threads=threads)
        return self._loop(role, publisher, self.topics.group("environments"))

    def rewards(
        self, name: str, scorers: Sequence[str] | None = None, scoring_id: str | None = None
    ) -> Loop:
        from consumers.rewards import Rewards
        from sandbox.scorers import check_scorer, score

        given = self.settings.rewards
        scoring_id = scoring_id or given.scoring_id
        specs = [_spec(text) for text in scorers or given.scorers]
        for spec in specs:
            check_scorer(spec.name)
        self.codec.prepare(self.topics.scored, ScoredTrajectory)
        publisher = self.log.publisher(bulk=True)
        role = Rewards(
            name,
            self.codec,
            self.topics,
            publisher,
            lambda trajectory, topic, partition, offset: score(
                trajectory,
                specs,
                scoring_id=scoring_id,
                source_topic=topic,
                source_partition=partition,
                source_offset=offset,
            ),
            guard=self._guard("the scorer", given.scorer_timeout_s),
        )
        return self._loop(role, publisher, self.topics.group("rewards", scoring_id))

    def _guard(self, what: str, timeout_s: float) -> Guard:
        guard = Guard(what, timeout_s)
        if self.watched:
            guard.watch()
        return guard

    def _loop(self, role: Role, publisher: object, group: str, *, accept: bool = False) -> Loop:
        loop = Loop(
            self.log,
            role,
            self.codec,
            publisher,  # type: ignore[arg-type]
            self.topics,
            group,
            accept_truncation=accept,
        )
        role.loop = loop  # type: ignore[attr-defined]
        return loop


def _spec(text: str):  # type: ignore[no-untyped-def]
    """A scorer as `name` or `name*weight`."""
    from sandbox.scorers import ScorerSpec

    name, _, weight = text.partition("*")
    return ScorerSpec(name, float(weight or 1.0))


def transformers_engine(policy_id: str, directory: Path, settings: "Settings") -> "Engine":
    """The default engine on a policy directory."""
    from inference.transformers_engine import TransformersEngine

    given = settings.models
    return TransformersEngine(
        policy_id,
        directory,
        device=given.device,
        max_batch=given.max_batch,
        threads=given.threads,
    )
