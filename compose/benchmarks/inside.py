"""One worker of each group on the in-memory log, for what is counted and not timed."""

from collections.abc import Callable

from compose.benchmarks import load
from consumers.agents.worker import Agents, Capacity
from consumers.environments.environments import Environments
from consumers.log.memory_log import MemoryLog
from consumers.loop.loop import Loop
from consumers.models.server import Models
from consumers.rewards import Rewards
from inference.engine import Engine
from producers.publisher import Publisher
from sandbox.scorers import ScorerSpec, score
from schemas.codec import Codec, LocalRegistry
from schemas.messages import RolloutRequest, ScoredTrajectory, Trajectory
from schemas.topics import Topics, wanted


class Clock:
    """The time inside, in seconds; whoever holds it moves it."""

    now = 1_750_000_000.0

    def __call__(self) -> float:
        return self.now


class Inside:
    """A log, its workers and their clock."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.clock = clock
        self.topics = Topics()
        self.codec = Codec(LocalRegistry(), clock=clock)
        topics = wanted(self.topics.prefix, [load.POLICY], partitions=1)
        self.log = MemoryLog(topics, wall=clock)
        self.agents = self._agents()
        self.workers = [
            self._loop(self.agents, "agents", self.agents.commands, self.agents.trajectories),
            self._work("models", lambda way: Models(
                "models", self.log, self.codec, self.topics, way, engine, wall=clock
            )),
            self._work("environments", lambda way: Environments(
                "environments", self.log, self.codec, self.topics, way, threads=0, wall=clock
            )),
            self._work("rewards", lambda way: Rewards(
                "rewards", self.codec, self.topics, way, judge
            )),
        ]  # fmt: skip
        self._pen = self.log.publisher()

    def _agents(self) -> Agents:
        commands, whole = self.log.publisher(), self.log.publisher(bulk=True)
        return Agents(
            "agents", self.log, self.codec, self.topics, commands, whole,
            capacity=Capacity(0), wall=self.clock,
        )  # fmt: skip

    def _work(
        self, group: str, make: Callable[[Publisher], Models | Environments | Rewards]
    ) -> Loop:
        publisher = self.log.publisher()
        return self._loop(make(publisher), group, publisher)

    def _loop(
        self, role: Agents | Models | Environments | Rewards, group: str, *ways: Publisher
    ) -> Loop:
        name = self.topics.group(group)
        loop = Loop(self.log, role, self.codec, ways, self.topics, name, clock=self.clock)
        role.loop = loop
        return loop

    def ask(self, asked: RolloutRequest) -> None:
        value = self.codec.encode(self.topics.requests, asked)
        self._pen.send(self.topics.requests, asked.rollout_id, value)

    def turn(self) -> None:
        """Let every worker take what there is for it."""
        for worker in self.workers:
            worker.turn(0.0)


def judge(trajectory: Trajectory, topic: str, partition: int, offset: int) -> ScoredTrajectory:
    """The rewards of the environment, added up."""
    return score(
        trajectory, [ScorerSpec("environment_return")], scoring_id="bench",
        source_topic=topic, source_partition=partition, source_offset=offset,
    )  # fmt: skip
