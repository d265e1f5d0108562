"""A program of a user's that samples otherwise than its request says."""

from rollcall.consumers.agents.effects import (
    Agent,
    CallModel,
    Finish,
    Reset,
    Step,
    Task,
    system,
    user,
)
from rollcall.schemas.messages import Sampling

COLD = Sampling(temperature=0.05, top_p=0.5, top_k=2, max_tokens=1)


def cold(task: Task) -> Agent:
    """Plays as `react` does, but nearly greedily at every second turn."""
    seen = yield Reset()
    messages = [*system(task), user(seen.text)]
    for turn in range(task.max_turns):
        answer = yield CallModel(messages, sampling=COLD if turn % 2 else None)
        messages.append(answer.message)
        seen = yield Step(answer.text)
        if seen.done:
            break
        messages.append(user(seen.text))
    yield Finish()
