"""The public names of Rollcall. Anything else below this package may change between releases.

Your code is in a module of yours; a request, a recipe or the command line names it as
`module:name`. It may be:

- an agent program, a generator that yields effects and is sent their answers: `Agent`, `Task`,
  `Reset`, `CallModel`, `Step`, `Finish`, `EnvironmentAnswer`, `ModelAnswer`, `WishFailed`,
  `Message`, `Sampling`, `system`, `user`; `AsCompleted` and `Completed` for several open effects
- an environment, which opens, steps and closes episodes: `Environment`, `Observation`; with
  `async def` methods, `WaitingEnvironment`, and the services of its worker, `Host`
- a scorer, from a trajectory to a number: `Scorer`, `Trajectory`, and `ids_of`, `logprobs_of`,
  `mask_of` for the bytes in its sequences; an `Explained` number has a reason, a `PerToken` scores
  single tokens; as an `async def`, `WaitingScorer`, with the services of its worker, `ScoringHost`
- a curator, which decides the tasks that a run starts next: `Curator`, `Outcome`
- a filter, which decides if a group of samples is worth training on: `Filter`, `Sample`
- an advantage rule, from the rewards of a batch to the advantages of its tokens: `AdvantageRule`,
  `Rewards`, `Advantages`, `Floats`, `Ints`
- a loss, from log-probabilities to a cost for each token: `Loss`, `Tokens`, `Costs`; these three
  import torch when they are first used
- any of the rules with options: a `Rule` around the function, the `Need`s that it declares, and
  `require` for what its options refuse

Without a shell: `run` runs a recipe, `submit` publishes rollout requests, `trajectories` and
`scored_trajectories` (each a `ScoredTrajectory`) read what the log holds of a run.

Example:

    from rollcall import Agent, CallModel, Finish, ModelAnswer, Task, system, user

    def asks_once(task: Task) -> Agent:
        answer: ModelAnswer = yield CallModel([*system(task), user(task.prompt)])
        yield Finish(answer.text)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollcall.compose.python_api import run, scored_trajectories, submit, trajectories
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
        system,
        user,
    )
    from rollcall.producers.curators.curator import Curator, Outcome
    from rollcall.sandbox.environment import Environment, Observation, WaitingEnvironment
    from rollcall.sandbox.host import Host, ScoringHost
    from rollcall.sandbox.scorers import Explained, Scorer, WaitingScorer
    from rollcall.sandbox.token_scores import PerToken
    from rollcall.schemas.messages import Message, Sampling, ScoredTrajectory, Trajectory
    from rollcall.schemas.packed import ids_of, logprobs_of, mask_of
    from rollcall.schemas.rules import Need, Rule, require
    from rollcall.trainer.rules.filters import Filter
    from rollcall.trainer.rules.rewards import AdvantageRule, Advantages, Floats, Ints, Rewards
    from rollcall.trainer.rules.samples import Sample
    from rollcall.trainer.rules.tokens import Costs, Loss, Tokens

__all__ = [
    "AdvantageRule",
    "Advantages",
    "Agent",
    "AsCompleted",
    "CallModel",
    "Completed",
    "Costs",
    "Curator",
    "Environment",
    "EnvironmentAnswer",
    "Explained",
    "Filter",
    "Finish",
    "Floats",
    "Host",
    "Ints",
    "Loss",
    "Message",
    "ModelAnswer",
    "Need",
    "Observation",
    "Outcome",
    "PerToken",
    "Reset",
    "Rewards",
    "Rule",
    "Sample",
    "Sampling",
    "ScoredTrajectory",
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
    "run",
    "scored_trajectories",
    "submit",
    "system",
    "trajectories",
    "user",
]

_HOMES = (
    "consumers.agents.effects",
    "sandbox.environment",
    "sandbox.host",
    "sandbox.scorers",
    "sandbox.token_scores",
    "schemas.messages",
    "schemas.packed",
    "schemas.rules",
    "trainer.rules.filters",
    "trainer.rules.rewards",
    "trainer.rules.samples",
    "producers.curators.curator",
    "compose.python_api",
    "trainer.rules.tokens",
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
