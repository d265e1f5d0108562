"""The goodput of an overloaded model server.

The groups run on the in-memory log with a simulated clock. The server has room for a fixed number
of calls at once with a fixed time for each; so many rollouts are live that a call waits for a
multiple of its timeout. The ceiling is the server's capacity in that time; the difference is
wasted work.
"""

from collections import Counter, deque
from itertools import count

from rollcall.compose.benchmarks import load
from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.benchmarks.inside import Inside, MovedClock
from rollcall.compose.settings import Settings
from rollcall.inference.engine import EngineAnswer
from rollcall.inference.scripted import ScriptedEngine
from rollcall.inference.waiting_calls import is_of
from rollcall.schemas.messages import ModelCall, Trajectory

TOKENS = 64
ROWS = 8
SERVICE_S = 4.0
RATE = ROWS / SERVICE_S
"""The server's calls per second: at the default timeout of 120 s it serves 240 live rollouts."""
WARM_S = 600
WINDOW_S = 1800
TURNS_A_SECOND = 3


class PacedEngine(ScriptedEngine):
    """An engine with room for a few calls, each with a fixed time; the others wait in a queue."""

    def __init__(self, clock: MovedClock) -> None:
        super().__init__(load.POLICY, load.script(TOKENS))
        self.clock = clock
        self.rows: deque[tuple[float, ModelCall]] = deque()
        self.answered = 0

    def step(self) -> list[EngineAnswer]:
        answers = []
        while self.rows and self.rows[0][0] <= self.clock.now:
            call = self.rows.popleft()[1]
            answers.append(EngineAnswer(call, self._body(call)))
            self.answered += 1
        waiting = self._waiting.ready
        while waiting and len(self.rows) < ROWS:
            self.rows.append((self.clock.now + SERVICE_S, waiting.popleft()))
        return answers

    def busy(self) -> bool:
        return bool(self.rows) or super().busy()

    def abort(self, rollout_id: str, attempt: int) -> None:
        super().abort(rollout_id, attempt)
        self.rows = deque(row for row in self.rows if not is_of(row[1], rollout_id, attempt))


class Overloaded:
    """The groups, with a constant number of live rollouts."""

    def __init__(self, live: int) -> None:
        self.clock = MovedClock()
        self.engine = PacedEngine(self.clock)
        self.inside = Inside(self.engine, self.clock)
        self.ended: Counter[str] = Counter()
        self._numbers = count()
        self._next = 0
        self._ask(live)

    def _ask(self, rollouts: int) -> None:
        for _ in range(rollouts):
            self.inside.ask(load.request(f"{next(self._numbers):032x}"))

    def pass_by(self, seconds: int) -> Counter[str]:
        """Advance the clock by `seconds`; return the counts of that time."""
        before = self._came_to()
        for _ in range(seconds):
            self.clock.now += 1.0
            for _ in range(TURNS_A_SECOND):
                self.inside.turn()
            self._replace_ended()
        return self._came_to() - before

    def _came_to(self) -> Counter[str]:
        """Return answers written and answers that counted so far, and rollouts by their ends."""
        owned = self.inside.agents.owned.values()
        rollouts = [rollout for held in owned for rollout in held.journal.open.values()]
        conversations = [c for rollout in rollouts for c in rollout.attempt.conversations]
        counting = sum(len(conversation.answers) for conversation in conversations)
        return self.ended + Counter(counted=counting, written=self.engine.answered)

    def _replace_ended(self) -> None:
        """Count the answers of rollouts that have ended, and request as many new ones."""
        topic = self.inside.topics.trajectories
        records, self._next = self.inside.log.read(topic, 0, self._next, 1_000_000)
        for record in records:
            trajectory = self.inside.codec.decode(record.value, Trajectory)
            self.ended[trajectory.status] += 1
            spoken = [
                message
                for sequence in trajectory.sequences or ()
                for message in sequence.messages
                if message.role == "assistant"
            ]
            self.ended["counted"] += len(spoken)
            self.ended["of_finished"] += len(spoken) * (trajectory.status == "finished")
        self._ask(len(records))


def goodput(settings: Settings, times: float, *, window_s: int = WINDOW_S) -> Figure:
    """Measure counted answers per second at `times` the load that is served in time."""
    del settings
    live = round(times * RATE * load.request("").limits.call_timeout_s)
    world = Overloaded(live)
    world.pass_by(WARM_S)
    came_to = world.pass_by(window_s)
    ended = came_to["finished"] + came_to["failed"] + came_to["timed_out"]
    note = (
        f"{live:,} rollouts live; {came_to['counted']:,} of {came_to['written']:,} answers count; "
        f"{came_to['finished']:,} of {ended:,} rollouts finished, with {came_to['of_finished']:,}"
    )
    return Figure(came_to["counted"] / window_s, "answers/s", RATE, notes=(note,))
