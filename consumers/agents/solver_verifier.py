"""Two policies in one rollout: one solves, the other says whether it believes the answer."""

import json

from rollcall.consumers.agents.effects import (
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
from rollcall.schemas.errors import FailureCode, ProgramFailed

NO = "no"


def solver_verifier(task: Task) -> Agent:
    """The solver answers; where the verifier says no, it hears so and answers once more.

    The request's policy solves; `agent_config` names the verifier's in `policies`. Where it has
    `decoys`, a list of answers, the verifier is shown one of them in place of the solver's in half
    of the rollouts: an able solver would leave it nothing to say no to. What it says of a decoy
    changes nothing. The result is JSON: the first answer, what the verifier said, the answer that
    was given, and what was `shown` where that was a decoy.
    """
    verifier, decoys = _verifier(task), _decoys(task)
    opened: EnvironmentAnswer = yield Reset()
    asked = [*system(task), user(opened.text)]
    answer: ModelAnswer = yield CallModel(asked)
    first = answer.text
    shown = _shown(task, first, decoys)
    verdict: ModelAnswer = yield CallModel([user(f"{opened.text} {shown}")], policy_id=verifier)
    if shown == first and verdict.text.strip().lower() == NO:
        answer = yield CallModel([*asked, answer.message, user(verdict.text)])
    yield Step(answer.text)
    told = {"first": first, "verdict": verdict.text, "answer": answer.text}
    if shown != first:
        told["shown"] = shown
    yield Finish(json.dumps(told))


def _decoys(task: Task) -> list[str]:
    decoys = task.config.get("decoys", [])
    if isinstance(decoys, list) and all(isinstance(each, str) for each in decoys):
        return decoys
    msg = f"decoys is {decoys!r:.80}; give a list of answers"
    raise ProgramFailed(FailureCode.BAD_CONFIG, msg)


def _shown(task: Task, first: str, decoys: list[str]) -> str:
    """Return the answer to show to the verifier: the first answer, or a
    decoy that differs from it."""
    others = [each for each in decoys if each != first.strip()]
    return task.rng.choice(others) if others and task.rng.random() < 0.5 else first


def _verifier(task: Task) -> str:
    policies = task.config.get("policies")
    named = policies.get("verifier") if isinstance(policies, dict) else None
    if not isinstance(named, str):
        msg = "solver_verifier needs two policies; a recipe names them [policies.solver] and "
        raise ProgramFailed(FailureCode.BAD_CONFIG, msg + "[policies.verifier]")
    return named
