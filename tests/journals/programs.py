"""The programs of the dice. Recorded journals name them: never change one, add another."""

from consumers.agents.wishes import (
    Agent,
    CallModel,
    Finish,
    Reset,
    Step,
    Task,
    WishFailed,
    user,
)


def side_by_side(task: Task) -> Agent:
    """Two environments and two conversations at once, for as long as they hold."""
    yield [Reset("left"), Reset("right", seed=9)]
    for turn in range(3):
        answers = yield [CallModel([user(f"left {turn}")]), CallModel([user(f"right {turn}")])]
        texts = [getattr(answer, "text", "nothing") for answer in answers]
        seen = yield [Step(texts[0], "left"), Step(texts[1], "right")]
        if any(isinstance(each, WishFailed) or each.done for each in seen):
            break
    yield Finish(",".join(texts))


def stubborn(task: Task) -> Agent:
    """Survives what fails, rewrites its history, and draws from its own generator."""
    messages = [user(task.prompt)]
    try:
        yield Reset()
    except WishFailed as failed:
        messages.append(user(failed.code))
    for turn in range(4):
        try:
            answer = yield CallModel(list(messages))
        except WishFailed:
            messages = [user(f"again {task.rng.randrange(1000)}")]
            continue
        messages = [*messages, answer.message, user(f"turn {turn}")]
        if task.rng.random() < 0.3:
            messages = messages[-1:]
    yield Finish(str(task.rng.random()))


def faller(task: Task) -> Agent:
    """Raises somewhere on its way."""
    yield Reset()
    answer = yield CallModel([user("?")])
    if task.rng.random() < 0.5:
        msg = answer.text
        raise ValueError(msg)
    yield Step(answer.text)


DICED = {"side_by_side": side_by_side, "stubborn": stubborn, "faller": faller}
