"""What a model server that is asked for more than it can do still does that counts.

The three groups on the in-memory log and a clock that only the benchmark moves. The server has room
for so many calls at once and takes so long for each; so many rollouts are live that a call waits
for a multiple of its timeout. The ceiling is what the server can do in that time: whatever it does
beside what is counted was done for nobody.
"""

from collections import Counter, deque
from itertools import count

from compose.benchmarks import workload
from compose.benchmarks.figure import Figure
from compose.settings import Settings
from consumers.agents.worker import Agents, Capacity
from consumers.environments import Environments
from consumers.log import Publisher
from consumers.loop import Loop
from consumers.memory import MemoryLog
from consumers.models import Models
from inference.engine import Answer
from inference.scripted import ScriptedEngine
from schemas.codec import Codec, LocalRegistry
from schemas.messages import ModelCall, Trajectory
from schemas.topics import Topics, wanted

TOKENS = 64
ROWS = 8
SERVICE_S = 4.0
RATE = ROWS / SERVICE_S
"""Calls a second: with the default timeout of 120 s, 240 live rollouts are served in time."""
WARM_S = 600
WINDOW_S = 1800
TURNS_A_SECOND = 3


class Clock:
    """The time of this benchmark, in seconds."""

    now = 1_750_000_000.0

    def __call__(self) -> float:
        return self.now


class PacedEngine(ScriptedEngine):
    """Has room for a few calls; each takes its time, and the others wait in line."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(workload.POLICY, workload.script(TOKENS))
        self.clock = clock
        self.rows: deque[tuple[float, ModelCall]] = deque()
        self.answered = 0

    def step(self) -> list[Answer]:
        answers = []
        while self.rows and self.rows[0][0] <= self.clock.now:
            call = self.rows.popleft()[1]
            answers.append(Answer(call, self._body(call)))
            self.answered += 1
        while self._waiting and len(self.rows) < ROWS:
            self.rows.append((self.clock.now + SERVICE_S, self._waiting.popleft()))
        return answers

    def busy(self) -> bool:
        return bool(self.rows) or super().busy()

    def abort(self, rollout_id: str, attempt: int) -> None:
        super().abort(rollout_id, attempt)
        stay = ((at, c) for at, c in self.rows if (c.rollout_id, c.attempt) > (rollout_id, attempt)
                or c.rollout_id != rollout_id)  # fmt: skip
        self.rows = deque(stay)


class Overloaded:
    """A log with one worker of each group, kept at so many live rollouts."""

    def __init__(self, live: int) -> None:
        self.clock = Clock()
        self.topics = Topics()
        self.codec = Codec(LocalRegistry())
        topics = wanted(self.topics.prefix, [workload.POLICY], partitions=1)
        self.log = MemoryLog(topics, wall=self.clock)
        self.pen = self.log.publisher()
        self.numbers = count()
        self.ended: Counter[str] = Counter()
        self._next = 0
        self.engine = PacedEngine(self.clock)
        self.workers = [self._agents(), self._models(), self._environments()]
        self._ask(live)

    def _agents(self) -> Loop:
        publisher, whole = self.log.publisher(), self.log.publisher(bulk=True)
        self.agents = Agents(
            "agents", self.log, self.codec, self.topics, publisher, whole,
            capacity=Capacity(0), wall=self.clock,
        )  # fmt: skip
        return self._loop(self.agents, "agents", publisher, whole)

    def _models(self) -> Loop:
        publisher = self.log.publisher()
        role = Models(
            "models", self.log, self.codec, self.topics, publisher, self.engine, wall=self.clock
        )
        return self._loop(role, "models", publisher)

    def _environments(self) -> Loop:
        publisher = self.log.publisher()
        role = Environments(
            "environments", self.log, self.codec, self.topics, publisher, threads=0,
            wall=self.clock,
        )  # fmt: skip
        return self._loop(role, "environments", publisher)

    def _loop(self, role: Agents | Models | Environments, group: str, *ways: Publisher) -> Loop:
        name = self.topics.group(group)
        loop = Loop(self.log, role, self.codec, ways, self.topics, name, clock=self.clock)
        role.loop = loop
        return loop

    def _ask(self, rollouts: int) -> None:
        for _ in range(rollouts):
            asked = workload.request(f"{next(self.numbers):032x}")
            value = self.codec.encode(self.topics.requests, asked)
            self.pen.send(self.topics.requests, asked.rollout_id, value)

    def pass_by(self, seconds: int) -> Counter[str]:
        """Let so much time pass; return what came of it."""
        before = self._came_to()
        for _ in range(seconds):
            self.clock.now += 1.0
            for _ in range(TURNS_A_SECOND):
                for worker in self.workers:
                    worker.turn(0.0)
            self._replace_ended()
        return self._came_to() - before

    def _came_to(self) -> Counter[str]:
        """Answers written and answers that counted so far, and rollouts by how they ended."""
        conversations = [c for r in self.agents.owned[0].journal.open.values()
                         for c in r.conversations] if self.agents.owned else []  # fmt: skip
        counting = sum(len(conversation.answers) for conversation in conversations)
        return self.ended + Counter(counted=counting, written=self.engine.answered)

    def _replace_ended(self) -> None:
        """Count the answers of rollouts that have ended, and ask for as many new ones."""
        topic = self.topics.trajectories
        records, self._next = self.log.read(topic, 0, self._next, 1_000_000)
        for record in records:
            trajectory = self.codec.decode(record.value, Trajectory)
            self.ended[trajectory.status] += 1
            said = [message for sequence in trajectory.sequences or ()
                    for message in sequence.messages if message.role == "assistant"]  # fmt: skip
            self.ended["counted"] += len(said)
            self.ended["of_finished"] += len(said) * (trajectory.status == "finished")
        self._ask(len(records))


def goodput(settings: Settings, times: float, *, window_s: int = WINDOW_S) -> Figure:
    """Answers a second that count, where live rollouts want `times` what is served in time."""
    del settings
    live = round(times * RATE * workload.request("").limits.call_timeout_s)
    world = Overloaded(live)
    world.pass_by(WARM_S)
    came_to = world.pass_by(window_s)
    ended = came_to["finished"] + came_to["failed"] + came_to["timed_out"]
    note = (
        f"{live:,} rollouts live; {came_to['counted']:,} of {came_to['written']:,} answers count; "
        f"{came_to['finished']:,} of {ended:,} rollouts finished, with {came_to['of_finished']:,}"
    )
    return Figure(came_to["counted"] / window_s, "answers/s", RATE, notes=(note,))
