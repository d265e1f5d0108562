"""Agent programs that tests name in their requests; in some tests they come and go."""

from rollcall.consumers.agents.effects import (
    Agent,
    CallModel,
    Finish,
    ModelAnswer,
    Reset,
    Step,
    Task,
    user,
)
from rollcall.schemas.messages import Message

ASKS, WALKS = f"{__name__}:asks", f"{__name__}:walks"
TWICE, EXAMPLES = f"{__name__}:asks_twice", f"{__name__}:shows_examples"


def asks(task: Task) -> Agent:
    """One question, one answer."""
    answer: ModelAnswer = yield CallModel([user(task.prompt)])
    yield Finish(answer.text)


def asks_twice(task: Task) -> Agent:
    first: ModelAnswer = yield CallModel([user(task.prompt)])
    second: ModelAnswer = yield CallModel([user(task.prompt), first.message, user("and then?")])
    yield Finish(second.text)


def shows_examples(task: Task) -> Agent:
    """Its prompt holds what an assistant said, which nobody sampled."""
    yield CallModel([user("2 + 2?"), Message("assistant", "4"), user(task.prompt)])


def walks(task: Task) -> Agent:
    """Never comes to an end."""
    yield Reset()
    while True:
        yield Step("on")
