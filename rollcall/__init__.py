"""What your own code imports of Rollcall; whatever else it finds in there may change.

It stands in a module of yours, and a request, a recipe or the command line names it as
`module:name`:

- an agent program, a generator of wishes that is sent their answers: `Agent`, `Task`, `Reset`,
  `CallModel`, `Step`, `Finish`, `EnvironmentAnswer`, `ModelAnswer`, `WishFailed`, `Message`,
  `Sampling`, `system`, `user`; `AsCompleted` and `Completed` for wishes that stay open side by side
- an environment, which opens, steps and closes episodes: `Environment`, `Observation`; one that
  waits, with `async def` methods, and what its worker offers it: `WaitingEnvironment`, `Host`
- a scorer, from a trajectory to a number: `Scorer`, `Trajectory`, and `ids_of`, `logprobs_of`,
  `mask_of` for the bytes in its sequences; one that waits, an `async def`, and what its worker
  offers it: `WaitingScorer`, `ScoringHost`; one that also scores single tokens gives a `PerToken`
- a filter, whether a group of samples is worth training on: `Filter`, `Sample`
- an advantage, from the rewards of a batch to what its tokens are worth: `AdvantageRule`,
  `Floats`, `Ints`
- a loss, from log-probabilities to a cost for each token: `Loss`, `Clip`, `Costs`; these three
  import torch when they are first asked for

Example:

    from rollcall import Agent, CallModel, Finish, ModelAnswer, Task, system, user

    def asks_once(task: Task) -> Agent:
        answer: ModelAnswer = yield CallModel([*system(task), user(task.prompt)])
        yield Finish(answer.text)
"""

from typing import TYPE_CHECKING

from consumers.agents.wishes import (
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
    system,
    user,
)
from sandbox.environment import Environment, Observation, WaitingEnvironment
from sandbox.host import Host, ScoringHost
from sandbox.scorers import Scorer, WaitingScorer
from sandbox.token_scores import PerToken
from schemas.messages import Message, Sampling, Trajectory
from schemas.packed import ids_of, logprobs_of, mask_of
from trainer.advantage import AdvantageRule, Floats, Ints
from trainer.curation import Filter
from trainer.samples import Sample

if TYPE_CHECKING:
    from trainer.loss import Clip, Costs, Loss
else:

    def __getattr__(name: str) -> object:
        if name not in ("Clip", "Costs", "Loss"):
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        from trainer import loss

        return getattr(loss, name)


__all__ = [
    "AdvantageRule",
    "Agent",
    "AsCompleted",
    "CallModel",
    "Clip",
    "Completed",
    "Costs",
    "Environment",
    "EnvironmentAnswer",
    "Filter",
    "Finish",
    "Floats",
    "Host",
    "Ints",
    "Loss",
    "Message",
    "ModelAnswer",
    "Observation",
    "PerToken",
    "Reset",
    "Sample",
    "Sampling",
    "Scorer",
    "ScoringHost",
    "Step",
    "Task",
    "Trajectory",
    "WaitingEnvironment",
    "WaitingScorer",
    "WishFailed",
    "ids_of",
    "logprobs_of",
    "mask_of",
    "system",
    "user",
]
