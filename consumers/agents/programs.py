"""The agent programs that ship. A program of one's own is named `module:function`."""

from consumers.agents.wishes import (
    Agent,
    CallModel,
    Finish,
    ModelAnswer,
    Observation,
    Reset,
    Step,
    Task,
    system,
    user,
)


def react(task: Task) -> Agent:
    """Observe, ask the policy, act, until the environment is done or the turns are used up."""
    observation: Observation = yield Reset()
    messages = [*system(task), user(observation.text)]
    for _ in range(task.max_turns):
        answer: ModelAnswer = yield CallModel(messages)
        messages.append(answer.message)
        observation = yield Step(answer.text)
        if observation.done:
            break
        messages.append(user(observation.text))
    yield Finish(observation.text)


def single_turn(task: Task) -> Agent:
    """One question, one answer. The question is the environment's where there is one."""
    question = task.prompt
    if task.environment:
        opened: Observation = yield Reset()
        question = opened.text
    answer: ModelAnswer = yield CallModel([*system(task), user(question)])
    if task.environment:
        yield Step(answer.text)
    yield Finish(answer.text)


SHIPPED = {"react": react, "single_turn": single_turn}
