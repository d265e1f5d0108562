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
  `Rewards`, `Advantages`, `Floats`, `Ints`
- a loss, from log-probabilities to a cost for each token: `Loss`, `Tokens`, `Costs`; these three
  import torch when they are first asked for
- any of them with options: a `Rule` around the function, and `require` for what its options
  refuse

Example:

    from rollcall import Agent, CallModel, Finish, ModelAnswer, Task, system, user

    def asks_once(task: Task) -> Agent:
        answer: ModelAnswer = yield CallModel([*system(task), user(task.prompt)])
        yield Finish(answer.text)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollcall.consumers.agents.wishes import (
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
    from rollcall.sandbox.environment import Environment, Observation, WaitingEnvironment
    from rollcall.sandbox.host import Host, ScoringHost
    from rollcall.sandbox.scorers import Scorer, WaitingScorer
    from rollcall.sandbox.token_scores import PerToken
    from rollcall.schemas.messages import Message, Sampling, Trajectory
    from rollcall.schemas.packed import ids_of, logprobs_of, mask_of
    from rollcall.schemas.rules import Rule, require
    from rollcall.trainer.filters.group_filter import Filter
    from rollcall.trainer.rewards import AdvantageRule, Advantages, Floats, Ints, Rewards
    from rollcall.trainer.samples import Sample
    from rollcall.trainer.tokens import Costs, Loss, Tokens

__all__ = [
    "AdvantageRule",
    "Advantages",
    "Agent",
    "AsCompleted",
    "CallModel",
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
    "Rewards",
    "Rule",
    "Sample",
    "Sampling",
    "Scorer",
    "ScoringHost",
    "Step",
    "Task",
    "Tokens",
    "Trajectory",
    "WaitingEnvironment",
    "WaitingScorer",
    "WishFailed",
    "ids_of",
    "logprobs_of",
    "mask_of",
    "require",
    "system",
    "user",
]

_HOMES = (
    "consumers.agents.wishes",
    "sandbox.environment",
    "sandbox.host",
    "sandbox.scorers",
    "sandbox.token_scores",
    "schemas.messages",
    "schemas.packed",
    "schemas.rules",
    "trainer.filters.group_filter",
    "trainer.rewards",
    "trainer.samples",
    "trainer.tokens",
)
"""The modules that define the public names; the last one imports torch.

They are imported when a name is first asked for: all of Rollcall lies below this package, and most
of its processes need few of them."""

if not TYPE_CHECKING:  # a type checker is to know the names above and no others

    def __getattr__(name: str) -> object:
        if name in __all__:
            for home in _HOMES:
                module = import_module(f"{__name__}.{home}")
                if hasattr(module, name):
                    globals()[name] = value = getattr(module, name)
                    return value
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
