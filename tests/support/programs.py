"""Agent programs for logs that are harmed; some of them come and go."""

from consumers.agents.wishes import Agent, CallModel, Finish, ModelAnswer, Task, user
from schemas.messages import Message


def asks(task: Task) -> Agent:
    answer: ModelAnswer = yield CallModel([user(task.prompt)])
    yield Finish(answer.text)


def asks_twice(task: Task) -> Agent:
    first: ModelAnswer = yield CallModel([user(task.prompt)])
    second: ModelAnswer = yield CallModel([user(task.prompt), first.message, user("and then?")])
    yield Finish(second.text)


def shows_examples(task: Task) -> Agent:
    """Its prompt holds what an assistant said, which nobody sampled."""
    yield CallModel([user("2 + 2?"), Message("assistant", "4"), user(task.prompt)])
