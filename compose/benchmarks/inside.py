"""One worker of each group on the in-memory log, for benchmarks that count instead of time."""

from collections.abc import Callable

from rollcall.compose.benchmarks import load
from rollcall.consumers.agents.outbox import Outbox
from rollcall.consumers.agents.worker import AgentsRole, Capacity
from rollcall.consumers.environments.environments import EnvironmentsRole
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.loop.answers import AnswerWriter
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.loop.role import Role
from rollcall.consumers.models.server import ModelsRole
from rollcall.consumers.rewards.rewards import RewardsRole
from rollcall.inference.engine import Engine
from rollcall.producers.publisher import Publisher
from rollcall.sandbox.scorers import ScorerSpec, score
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Trajectory
from rollcall.schemas.topics import Topics, wanted


class MovedClock:
    """The simulated time, in seconds; the benchmark moves it."""

    now = 1_750_000_000.0

    def __call__(self) -> float:
        return self.now


class Inside:
    """A log, its workers and their clock."""

    def __init__(self, engine: Engine, clock: MovedClock) -> None:
        self.clock = clock
        self.topics = Topics()
        self.codec = Codec(LocalRegistry(), clock=clock)
        topics = wanted(self.topics.prefix, [load.POLICY], partitions=1)
        self.log = MemoryLog(topics, wall=clock)
        self.agents, agents = self._agents()
        self.workers = [
            agents,
            self._work(
                "models", lambda way, dead: ModelsRole(self._answers("models", way), dead, engine)
            ),
            self._work(
                "environments",
                lambda way, dead: EnvironmentsRole(
                    self._answers("environments", way), dead, threads=0
                ),
            ),
            self._work(
                "rewards",
                lambda way, _: RewardsRole("rewards", self.codec, self.topics, way, judge),
            ),
        ]
        self._pen = self.log.publisher()

    def _answers(self, name: str, way: Publisher) -> AnswerWriter:
        return AnswerWriter(name, self.log, self.codec, self.topics, way, self.clock)

    def _agents(self) -> tuple[AgentsRole, Loop]:
        commands, whole = self.log.publisher(), self.log.publisher(bulk=True)
        dead_letters = self._letters("agents", commands)
        outbox = Outbox("agents", self.codec, self.topics, commands, whole)
        role = AgentsRole(
            self.log,
            self.codec,
            self.topics,
            outbox,
            dead_letters,
            capacity=Capacity(0),
            clock=self.clock,
            wall=self.clock,
        )
        return role, self._loop(role, dead_letters, commands, whole)

    def _work(self, group: str, make: Callable[[Publisher, DeadLetters], Role]) -> Loop:
        publisher = self.log.publisher()
        dead_letters = self._letters(group, publisher)
        return self._loop(make(publisher, dead_letters), dead_letters, publisher)

    def _letters(self, group: str, publisher: Publisher) -> DeadLetters:
        name = self.topics.group(group)
        return DeadLetters(publisher, self.topics, name, self.clock, self.log)

    def _loop(self, role: Role, dead_letters: DeadLetters, *ways: Publisher) -> Loop:
        return Loop(self.log, role, self.codec, ways, dead_letters, clock=self.clock)

    def ask(self, request: RolloutRequest) -> None:
        value = self.codec.encode(self.topics.requests, request)
        self._pen.send(self.topics.requests, request.rollout_id, value)

    def turn(self) -> None:
        """Let every worker process its new records."""
        for worker in self.workers:
            worker.turn(0.0)


def judge(trajectory: Trajectory, topic: str, partition: int, offset: int) -> ScoredTrajectory:
    """Score a trajectory by the sum of the environment's rewards."""
    return score(
        trajectory,
        [ScorerSpec("environment_return")],
        scoring_id="bench",
        source_topic=topic,
        source_partition=partition,
        source_offset=offset,
    )
