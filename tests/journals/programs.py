"""The programs of the dice. Recorded journals name them: never change one, add another."""

from rollcall.consumers.agents.effects import (
    Agent,
    AsCompleted,
    CallModel,
    Completed,
    EnvironmentAnswer,
    Finish,
    ModelAnswer,
    Reset,
    Step,
    Task,
    WishFailed,
    user,
)
from rollcall.schemas.messages import Sampling


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
    """Survives failures, rewrites its history, and draws from its own generator."""
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


def as_they_come(task: Task) -> Agent:
    """Two environments at their own pace, with a conversation each, and tokens that are counted."""
    counting = Sampling(max_tokens=0)
    wishes: list[Reset | CallModel | Step] = [Reset("left"), Reset("right", seed=9)]
    talks = {"left": [user("left")], "right": [user("right")]}
    told, going, counted = [], len(wishes), 0
    while going:
        done: Completed = yield AsCompleted(wishes)
        wish, outcome, going = done.wish, done.outcome, going - 1
        told.append(f"{type(wish).__name__} {getattr(outcome, 'text', 'nothing')}")
        wishes = []
        if isinstance(wish, CallModel):
            if wish.sampling:
                counted += getattr(outcome, "prompt_tokens", 0)
                continue
            side = wish.messages[0].content
            if isinstance(outcome, ModelAnswer):
                talks[side].append(outcome.message)
                wishes = [Step(outcome.text, side)]
        elif isinstance(outcome, EnvironmentAnswer) and not outcome.done:
            talk = talks[wish.session]
            talk.append(user(outcome.text))
            if len(talk) < 6:
                wishes = [CallModel(list(talk)), CallModel(list(talk), sampling=counting)]
        if len(told) == 4 and going and task.rng.random() < 0.5:
            asked = yield [CallModel([user("both?")]), CallModel([user("really?")])]
            told += [str(isinstance(each, WishFailed)) for each in asked]
        if len(told) > 9 and going and task.rng.random() < 0.2:
            break  # and leaves what is open
        going += len(wishes)
    yield Finish(f"{counted}: {told}")


DICED = {
    "side_by_side": side_by_side,
    "stubborn": stubborn,
    "faller": faller,
    "as_they_come": as_they_come,
}
