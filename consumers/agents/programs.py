"""The agent programs that ship. A user's own program is named `module:function`."""

from functools import cache
from hashlib import blake2b
from inspect import getsource
from typing import cast

from rollcall.consumers.agents.effects import (
    Agent,
    CallModel,
    Finish,
    ModelAnswer,
    Program,
    Reset,
    Step,
    Task,
    system,
    user,
)

# The digest of a program's source is recorded in the journal; react and single_turn use this name.
from rollcall.consumers.agents.effects import EnvironmentAnswer as Observation
from rollcall.consumers.agents.fork import forking
from rollcall.consumers.agents.hosted import hosted
from rollcall.consumers.agents.solver_verifier import solver_verifier
from rollcall.schemas import names


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


def program_of(name: str) -> Program:
    """Return a shipped program, or the user's `module:function`; raises Refused."""
    if name in SHIPPED:
        return SHIPPED[name]
    if ":" not in name:
        raise names.unknown_name("program", name, SHIPPED)
    return cast(Program, names.load("program", name))


SHIPPED: dict[str, Program] = {
    "react": react,
    "single_turn": single_turn,
    "fork": forking(program_of),
    "hosted": hosted,
    "solver_verifier": solver_verifier,
}


@cache
def program_digest(program: Program) -> str:
    """Return the digest of a program's source; empty if the source is not available."""
    try:
        return blake2b(getsource(program).encode(), digest_size=8).hexdigest()
    except (OSError, TypeError):
        return ""
