"""Recipes: a training run as a TOML file; unknown keys are refused with the nearest known one."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, ValidationError

from compose.extras import EXTRAS
from compose.runs.weights_url import check_weights_url
from compose.strict_table import StrictTable, unknown_key
from compose.teacher_scorer import check_named
from consumers.agents.programs import program_of
from producers.curators.curators import curators_of
from sandbox.agents.agent_box import check_agent_box
from sandbox.agents.shipped import check_agent
from sandbox.environment import check_environment
from sandbox.environments.shell_config import check_shell
from schemas import names
from schemas.bounds import check_request
from schemas.errors import Refused
from schemas.messages import Limits, RolloutRequest, Sampling, Task

SHIPPED = (
    "lake-any-start", "syllogisms", "repairs", "solver-verifier", "smol-sums", "smol-long-sums",
    "smol-sums-lora",
)  # fmt: skip
SUITES = ("repairs",)
"""Folders of tasks that ship beside the recipes."""
Count = Annotated[int, Field(ge=1)]


class TaskTable(StrictTable):
    environment: str = ""
    environment_config: dict[str, Any] = {}
    agent: str = "react"
    agent_config: dict[str, Any] = {}
    system: str = ""
    prompt: str = ""
    seeds: tuple[int, int] = (0, 1_000_000)
    """Training draws task seeds from [first, end)."""
    tasks: str = ""
    """A folder of task directories, or the name of one of `SUITES`: a seed stands for one of them,
    in turn, and the config is what `shell` is given for all."""

    def suite(self) -> Path:
        """The folder of its tasks."""
        if self.tasks in SUITES:
            return Path(str(files("compose") / "recipes" / self.tasks))
        return Path(self.tasks).expanduser()


class SamplingTable(StrictTable):
    temperature: Annotated[float, Field(gt=0)] = 1.0
    max_tokens: int = 256
    stop: list[str] = []


class LimitsTable(StrictTable):
    """Their bounds are those of every request."""

    max_turns: int = 64
    max_tokens: int = 0
    max_tries: int = 3
    max_attempts: int = 3
    call_timeout_s: float = 120.0
    step_timeout_s: float = 60.0
    rollout_timeout_s: float = 600.0
    open_timeout_s: float = 0.0
    max_wishes: int = 0


class LoraTable(StrictTable):
    """`trainer.adapters.Lora`."""

    rank: Annotated[int, Field(ge=1)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    targets: list[str] = []


class PolicyTable(StrictTable):
    directory: str = ""
    """A local Hugging Face directory to start from, with its own template or that given here; or
    config, tokens and template."""
    script: str = ""
    """Who answers in its place: a policy that needs no weights. The weights are trained on that."""
    gold_share: float | None = None
    """How often the script `noisy` applies the gold patch."""
    config: dict[str, Any] = {}
    tokens: str | list[str] = []
    template: dict[str, Any] = {}
    publish: Literal["", "float32", "bfloat16"] = ""
    """In which precision servers are given the weights; the trainer's own stay float32."""
    weights: Literal["", "full", "delta", "adapter"] = ""
    """Whether they are given all weights of each version, or mostly what changed since the last, or
    only the adapter of `lora`, which they add to the directory's."""
    full_every: Annotated[int, Field(ge=1)] = 10
    """Among deltas, versions that are divisible by it are full."""
    weights_url: str = ""
    """Where weights are published in place of the run's folder: any fsspec URL that trainer and
    servers reach, s3://bucket/weights or a directory. Credentials come from the surroundings of
    each, never from here."""
    keep_bytes: Annotated[int, Field(ge=0)] = 0
    """Weights and checkpoints take no more than this; 0 is without bound."""
    lora: LoraTable | None = None
    """Adapters that are trained in place of the weights."""


class OneOfSeveralTable(PolicyTable):
    """One of the policies of a run; what it leaves out is the recipe's."""

    learner: dict[str, Any] = {}
    scorers: list[str] = []
    """Whose rewards it is trained on, under a scoring id of its own where they are others."""
    share: float = 1.0
    """What every weight of its scorers is multiplied by."""
    admits: bool = False
    """Whether its trainer asks for the rollouts and evaluates; the first one does if none says."""


class EvaluationTable(StrictTable):
    seeds: tuple[int, int] = (1_000_000, 1_000_128)
    every: Annotated[int, Field(ge=0)] = 10
    success_at: float = 1.0
    goal: float = 2.0


class ProcessTable(StrictTable):
    agents: Count = 1
    models: Count = 1
    environments: Count = 1
    rewards: Count = 1


class Recipe(StrictTable):
    """A run: what is done, by which policy, how it learns, how it is judged."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    about: str = ""
    task: TaskTable
    policy: PolicyTable = PolicyTable()
    """The one that admits, where there are several."""
    policies: dict[Annotated[str, Field(pattern=r"^[a-z0-9-]+$")], OneOfSeveralTable] = {}
    """In place of it, where several policies take part in a rollout: each is trained."""
    barrier: bool = False
    """Whether new rollouts wait until all policies stand at the same step."""
    sampling: SamplingTable = SamplingTable()
    limits: LimitsTable = LimitsTable()
    learner: dict[str, Any] = {}
    """`trainer.config.LearnerConfig`; checked before anything is started."""
    curator: str | dict[str, Any] | list[str | dict[str, Any]] = ""
    """Which tasks come next: a rule of `producers/curators/` by name, a table with its name and
    options, or several, of which each has to admit a task; empty: uniform draws."""
    scorers: Annotated[list[str], Field(min_length=1)] = ["environment_return"]
    evaluation: EvaluationTable = EvaluationTable()
    processes: ProcessTable = ProcessTable()
    max_running: Count = 4096
    give_up: Annotated[int, Field(ge=0)] = 2000
    """The run ends, and says why, when this many groups have ended since the last step; 0 is no
    bound."""

    @property
    def scoring_id(self) -> str:
        """Named after its scorers, so that equal ones share a group and its progress."""
        return "+".join(re.sub(r"[^A-Za-z0-9_.-]", "-", name) for name in self.scorers)

    def admitting(self) -> str:
        """Which of several policies asks for the rollouts; empty where there is one."""
        first = next(iter(self.policies), "")
        return next((name for name, each in self.policies.items() if each.admits), first)

    def others(self) -> tuple[str, ...]:
        """The policies of a run beside the one that admits."""
        return tuple(name for name in self.policies if name != self.admitting())

    def parts(self) -> "tuple[Recipe, ...]":
        """Itself, which is for the policy that admits, and what it is for each of the others."""
        return (self, *map(self.of, self.others()))

    def of(self, name: str) -> "Recipe":
        """What it is for one of several policies: its weights, its learner, its scorers."""
        one = self.policies[name]
        policy = PolicyTable(**{key: getattr(one, key) for key in PolicyTable.model_fields})
        scorers = [_scaled(scorer, one.share) for scorer in one.scorers]
        made = {"policy": policy, "scorers": scorers, "learner": one.learner}
        return self.model_copy(update=made)

    def admitting_one(self) -> "Recipe":
        """That of the policy that admits; each table of a policy is filled from the recipe's."""
        filled = {
            name: each.model_copy(
                update={
                    "learner": {**self.learner, **each.learner},
                    "scorers": each.scorers or self.scorers,
                }
            )
            for name, each in self.policies.items()
        }
        return self.model_copy(update={"policies": filled}).of(self.admitting())

    def libraries(self) -> tuple[str, ...]:
        """What must be installed here to run it; our environments are named as their libraries."""
        environment = self.task.environment
        adapted = any(each.lora for each in (self.policy, *self.policies.values()))
        return (
            "torch", "transformers",
            *(("peft",) if adapted else ()),
            *((environment,) if environment in EXTRAS else ()),
        )  # fmt: skip

    def learner_values(self, seed: int) -> dict[str, Any]:
        """What `trainer.config.LearnerConfig.of` is given of it."""
        lora: dict[str, Any] = {"lora": self.policy.lora.model_dump()} if self.policy.lora else {}
        if self.policy.weights == "adapter":
            lora["adapter_alone"] = True
        return {"seed": seed, **lora, **self.learner}

    def scorings(self) -> tuple[str, ...]:
        """The scorings that its rollouts ask for, one for each policy's scorers."""
        return tuple(dict.fromkeys(part.scoring_id for part in self.parts()))

    def template(self, run_id: str, policy_id: str) -> RolloutRequest:
        """What all training requests of a run share."""
        task = self.task
        return RolloutRequest(
            rollout_id="",
            task=Task(
                environment=task.environment,
                environment_config=orjson.dumps(task.environment_config).decode(),
                prompt=task.prompt,
                system=task.system,
            ),
            agent=task.agent,
            agent_config=orjson.dumps(self._agent_config(policy_id)).decode(),
            policy_id=policy_id,
            run_id=run_id,
            purpose="train",
            sampling=Sampling(
                self.sampling.temperature,
                max_tokens=self.sampling.max_tokens,
                stop=tuple(self.sampling.stop),
            ),
            limits=Limits(**self.limits.model_dump()),
            scorings=self.scorings(),
        )

    def _agent_config(self, policy_id: str) -> dict[str, Any]:
        """A program that asks several policies is told their ids, by name, as `policies`."""
        if not self.policies:
            return self.task.agent_config
        ids = {self.admitting(): policy_id}
        ids |= {name: other_policy_id(policy_id, name) for name in self.others()}
        return {**self.task.agent_config, "policies": ids}


def other_policy_id(admitting_id: str, name: str) -> str:
    """The id of another policy of a run, beside that of the one that admits."""
    return f"{admitting_id}-{name}"


def _scaled(scorer: str, share: float) -> str:
    name, _, weight = scorer.partition("*")
    try:
        return scorer if share == 1 else f"{name}*{float(weight or 1) * share:g}"
    except ValueError:
        return scorer  # who reads its weight refuses it


def load_recipe(name: str) -> tuple[Recipe, str]:
    """A shipped recipe by name, or a file; its text comes along. Raises Refused, one line."""
    if name in SHIPPED:
        text = (files("compose") / "recipes" / f"{name}.toml").read_text()
    elif Path(name).is_file():
        text = Path(name).read_text()
    elif name.endswith(".toml"):
        msg = f"recipe {name!r} is not there"
        raise Refused(msg)
    else:
        raise names.unknown("recipe", name, SHIPPED)
    recipe = parse_recipe(text, name)
    try:
        _require_known(recipe)
    except Refused as error:
        msg = f"recipe {name!r}: {error}"
        raise Refused(msg) from error
    return recipe, text


def _require_known(recipe: Recipe) -> None:
    """Raise Refused for a name behind which there is nothing; a worker would die of it."""
    for part in recipe.parts():
        check_weights_url(part.policy.weights_url)
        for scorer in part.scorers:
            check_named(scorer.partition("*")[0])
    if recipe.task.environment:
        check_environment(recipe.task.environment)
    if recipe.task.environment == "shell":
        check_shell(recipe.task.environment_config)
    program_of(recipe.task.agent)
    curators_of(recipe.curator, 1)
    if recipe.task.agent == "hosted":
        check_agent(recipe.task.agent_config)
        task = recipe.task
        check_agent_box(task.agent_config, task.environment, task.environment_config)


def parse_recipe(text: str, name: str) -> Recipe:
    try:
        recipe = Recipe(**tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        msg = f"recipe {name!r} is not TOML: {error}"
        raise Refused(msg) from error
    except ValidationError as error:
        complaints = "; ".join(_complaint(dict(item)) for item in error.errors())
        msg = f"recipe {name!r}: {complaints}"
        raise Refused(msg) from error
    recipe = _one_or_several(recipe, name)
    _check_requests(recipe, name)
    first, end = recipe.evaluation.seeds
    if max(first, recipe.task.seeds[0]) < min(end, recipe.task.seeds[1]):
        msg = (
            f"recipe {name!r}: evaluation.seeds {first}-{end} overlap task.seeds "
            f"{recipe.task.seeds[0]}-{recipe.task.seeds[1]}; held-out seeds must not be trained on"
        )
        raise Refused(msg)
    return recipe


def _one_or_several(recipe: Recipe, name: str) -> Recipe:
    """With several policies the recipe of the one that admits; raises Refused for both or none."""
    if not recipe.policies:
        if "policy" in recipe.model_fields_set:
            return recipe
        msg = f"recipe {name!r}: policy is missing; give [policy], or [policies.NAME] for several"
        raise Refused(msg)
    if "policy" in recipe.model_fields_set or len(recipe.policies) < 2:
        msg = f"recipe {name!r}: give either [policy] or at least two [policies.NAME]"
        raise Refused(msg)
    admit = [each for each, table in recipe.policies.items() if table.admits]
    if len(admit) > 1:
        msg = f"recipe {name!r}: policies {', '.join(admit)} admit rollouts; one of them may"
        raise Refused(msg)
    return recipe.admitting_one()


def _check_requests(recipe: Recipe, name: str) -> None:
    """What the run will ask for has to be within the bounds of every request."""
    template = replace(recipe.template("run", "policy"), rollout_id="rollout")
    try:
        for first, end in (recipe.task.seeds, recipe.evaluation.seeds):
            for seed in (first, end):
                check_request(replace(template, task=replace(template.task, seed=seed)))
    except Refused as error:
        msg = f"recipe {name!r}: {error}"
        raise Refused(msg) from error


def _complaint(error: Mapping[str, Any]) -> str:
    place = [str(part) for part in error["loc"]]
    if error["type"] != "extra_forbidden":
        return f"{'.'.join(place)}: {error['msg']}, found {error['input']!r:.80}"
    return str(unknown_key(Recipe, "key", place))
