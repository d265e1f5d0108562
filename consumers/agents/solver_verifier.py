"""Two policies in one rollout: one solves, the other says whether it believes the answer."""

import json

from consumers.agents.wishes import (
    Agent,
    CallModel,
    EnvironmentAnswer,
    Finish,
    ModelAnswer,
    Reset,
    Step,
    Task,
    system,
    user,
)
from schemas.errors import ProgramFailed

NO = "no"


def solver_verifier(task: Task) -> Agent:
    """The solver answers; where the verifier says no, it hears so and answers once more.

    The request's policy solves; `agent_config` names the verifier's in `policies`. Its result is
    JSON: the first answer, what the verifier said of it, and the answer that was given.
    """
    verifier = _verifier(task)
    opened: EnvironmentAnswer = yield Reset()
    asked = [*system(task), user(opened.text)]
    answer: ModelAnswer = yield CallModel(asked)
    first = answer.text
    verdict: ModelAnswer = yield CallModel([user(f"{opened.text} {first}")], policy_id=verifier)
    if verdict.text.strip().lower() == NO:
        answer = yield CallModel([*asked, answer.message, user(verdict.text)])
    yield Step(answer.text)
    told = {"first": first, "verdict": verdict.text, "answer": answer.text}
    yield Finish(json.dumps(told))


def _verifier(task: Task) -> str:
    policies = task.config.get("policies")
    named = policies.get("verifier") if isinstance(policies, dict) else None
    if not isinstance(named, str):
        msg = "solver_verifier needs two policies; a recipe names them [policies.solver] and "
        raise ProgramFailed("bad_config", msg + "[policies.verifier]")
    return named
