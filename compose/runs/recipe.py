"""Recipes: training runs as TOML files; unknown keys are refused with the nearest known one."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, ValidationError

from rollcall.compose.extras import EXTRAS
from rollcall.compose.teacher_scorer import check_named
from rollcall.consumers.agents.programs import program_of
from rollcall.producers.curators.curators import curators_of
from rollcall.sandbox.agents.agent_box import check_agent_box
from rollcall.sandbox.agents.shipped import check_agent
from rollcall.sandbox.environment import check_environment
from rollcall.sandbox.environments.shell_config import check_shell
from rollcall.schemas import names
from rollcall.schemas.bounds import check_request
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Limits, RolloutRequest, Sampling, Task
from rollcall.schemas.store_urls import check_weights_url
from rollcall.schemas.strict_table import StrictTable, unknown_key
from rollcall.trainer.config.learner_table import LearnerTable
from rollcall.trainer.config.tables import Lora

SHIPPED = (
    "lake-any-start",
    "syllogisms",
    "repairs",
    "solver-verifier",
    "smol-sums",
    "smol-long-sums",
    "smol-sums-lora",
)
SUITES = ("repairs",)
"""Folders of tasks that are shipped beside the recipes."""
Count = Annotated[int, Field(ge=1)]


class TaskTable(StrictTable):
    environment: str = ""
    environment_config: dict[str, Any] = {}
    agent: str = "react"
    agent_config: dict[str, Any] = {}
    system: str = ""
    prompt: str = ""
    seeds: tuple[int, int] = (0, 1_000_000)
    """The range [first, end) of task seeds for training."""
    tasks: str = ""
    """A folder of task directories, or the name of one of `SUITES`: a seed stands for one of them,
    in turn, and the config is that of `shell` for all."""

    def suite(self) -> Path:
        """Return the folder of its tasks."""
        if self.tasks in SUITES:
            return Path(str(files("rollcall.compose") / "recipes" / self.tasks))
        return Path(self.tasks).expanduser()


class SamplingTable(StrictTable):
    temperature: Annotated[float, Field(gt=0)] = 1.0
    max_tokens: int = 256
    stop: list[str] = []


class LimitsTable(StrictTable):
    """Limits of rollouts, with the bounds of every request."""

    max_turns: int = 64
    max_tokens: int = 0
    max_tries: int = 3
    max_attempts: int = 3
    call_timeout_s: float = 120.0
    step_timeout_s: float = 60.0
    rollout_timeout_s: float = 600.0
    open_timeout_s: float = 0.0
    max_wishes: int = 0


class PolicyTable(StrictTable):
    directory: str = ""
    """A local Hugging Face directory to start from, with its own template or that given here; or
    config, tokens and template."""
    script: str = ""
    """A script that answers in place of the weights, which are trained on its answers."""
    gold_share: float | None = None
    """The share of answers in which the script `noisy` applies the gold patch."""
    config: dict[str, Any] = {}
    tokens: str | list[str] = []
    template: dict[str, Any] = {}
    publish: Literal["", "float32", "bfloat16"] = ""
    """The precision of the weights for servers; the trainer's own stay float32."""
    weights: Literal["", "full", "delta", "adapter"] = ""
    """The form of weights for servers: all of each version, mostly the changes since the last, or
    only the adapter of `lora`, which they add to the directory's."""
    full_every: Annotated[int, Field(ge=1)] = 10
    """The interval of full versions among deltas."""
    weights_url: str = ""
    """The place of published weights, instead of the run's folder: any fsspec URL that trainer and
    servers reach, s3://bucket/weights or a directory. Credentials come from each process's
    environment, never from here."""
    keep_bytes: Annotated[int, Field(ge=0)] = 0
    """The most bytes of weights and checkpoints; 0 is no bound."""
    lora: Lora | None = None
    """The adapters that are trained in place of the weights."""


class OneOfSeveralTable(PolicyTable):
    """One of several policies of a run; keys left out are the recipe's."""

    learner: LearnerTable = LearnerTable()
    scorers: list[str] = []
    """The scorers whose rewards train it; if they differ, they have their own scoring id."""
    share: float = 1.0
    """The factor of every weight of its scorers."""
    admits: bool = False
    """True if its trainer requests the rollouts and evaluates; the first one's by default."""


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
    """A run: its task, its policies, how they learn and how they are scored."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    about: str = ""
    task: TaskTable
    policy: PolicyTable = PolicyTable()
    """The policy; the admitting one if there are several."""
    policies: dict[Annotated[str, Field(pattern=r"^[a-z0-9-]+$")], OneOfSeveralTable] = {}
    """The policies, if several take part in a rollout: each is trained."""
    barrier: bool = False
    """True if new rollouts wait until all policies are at the same step."""
    sampling: SamplingTable = SamplingTable()
    limits: LimitsTable = LimitsTable()
    learner: LearnerTable = LearnerTable()
    curator: str | dict[str, Any] | list[str | dict[str, Any]] = ""
    """The choice of tasks: a rule of `producers/curators/` by name, a table with its name and
    options, or several, each of which must admit a task; empty: uniform draws."""
    scorers: Annotated[list[str], Field(min_length=1)] = ["environment_return"]
    evaluation: EvaluationTable = EvaluationTable()
    processes: ProcessTable = ProcessTable()
    max_running: Count = 4096
    give_up: Annotated[int, Field(ge=0)] = 2000
    """The run ends with the reason when this many groups have ended since the last step; 0 is no
    bound."""

    @property
    def scoring_id(self) -> str:
        """The scoring id, made from its scorers, so that equal ones share a consumer group."""
        return "+".join(re.sub(r"[^A-Za-z0-9_.-]", "-", name) for name in self.scorers)

    def admitting(self) -> str:
        """The name of the policy that requests the rollouts; empty if there is only one."""
        first = next(iter(self.policies), "")
        return next((name for name, each in self.policies.items() if each.admits), first)

    def others(self) -> tuple[str, ...]:
        """The names of a run's policies other than the admitting one."""
        return tuple(name for name in self.policies if name != self.admitting())

    def parts(self) -> "tuple[Recipe, ...]":
        """Itself, for the admitting policy, and its variants for the others."""
        return (self, *map(self.of, self.others()))

    def of(self, name: str) -> "Recipe":
        """Return its variant for one of several policies: weights, learner, scorers."""
        one = self.policies[name]
        policy = PolicyTable(**{key: getattr(one, key) for key in PolicyTable.model_fields})
        scorers = [_scaled(scorer, one.share) for scorer in one.scorers]
        made = {"policy": policy, "scorers": scorers, "learner": one.learner}
        return self.model_copy(update=made)

    def admitting_one(self) -> "Recipe":
        """Return the admitting policy's variant; policies' tables are filled from the recipe's."""
        filled = {
            name: each.model_copy(
                update={
                    "learner": LearnerTable(**self.learner.given() | each.learner.given()),
                    "scorers": each.scorers or self.scorers,
                }
            )
            for name, each in self.policies.items()
        }
        return self.model_copy(update={"policies": filled}).of(self.admitting())

    def libraries(self) -> tuple[str, ...]:
        """The libraries that it needs; our environments have the names of their libraries."""
        environment = self.task.environment
        adapted = any(each.lora for each in (self.policy, *self.policies.values()))
        return (
            "torch",
            "transformers",
            *(("peft",) if adapted else ()),
            *((environment,) if environment in EXTRAS else ()),
        )

    def learner_values(self, seed: int) -> dict[str, Any]:
        """Return its values for `rollcall.trainer.config.learner_config.LearnerConfig.of`."""
        lora: dict[str, Any] = {"lora": self.policy.lora.model_dump()} if self.policy.lora else {}
        if self.policy.weights == "adapter":
            lora["adapter_alone"] = True
        return {"seed": seed, **lora, **self.learner.given()}

    def scorings(self) -> tuple[str, ...]:
        """The scoring ids that its rollouts request, one for each policy's scorers."""
        return tuple(dict.fromkeys(part.scoring_id for part in self.parts()))

    def template(self, run_id: str, policy_id: str) -> RolloutRequest:
        """Return the common part of all training requests of a run."""
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
        """Return the agent's config; several policies' ids are added by name as `policies`."""
        if not self.policies:
            return self.task.agent_config
        ids = {self.admitting(): policy_id}
        ids |= {name: other_policy_id(policy_id, name) for name in self.others()}
        return {**self.task.agent_config, "policies": ids}


def other_policy_id(admitting_id: str, name: str) -> str:
    """Return the id of another policy of a run, made from that of the admitting one."""
    return f"{admitting_id}-{name}"


def _scaled(scorer: str, share: float) -> str:
    name, _, weight = scorer.partition("*")
    try:
        return scorer if share == 1 else f"{name}*{float(weight or 1) * share:g}"
    except ValueError:
        return scorer  # the parser of its weight refuses it


def load_recipe(name: str) -> tuple[Recipe, str]:
    """Load a shipped recipe by name, or a file; return its text too. Raises Refused, one line."""
    if name in SHIPPED:
        text = (files("rollcall.compose") / "recipes" / f"{name}.toml").read_text()
    elif Path(name).is_file():
        text = Path(name).read_text()
    elif name.endswith(".toml"):
        msg = f"recipe {name!r} is not there"
        raise Refused(msg)
    else:
        raise names.unknown_name("recipe", name, SHIPPED)
    recipe = parse_recipe(text, name)
    try:
        _require_known(recipe)
    except Refused as error:
        msg = f"recipe {name!r}: {error}"
        raise Refused(msg) from error
    return recipe, text


def _require_known(recipe: Recipe) -> None:
    """Raise Refused for an unknown name, which would make a worker die."""
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
    except Refused as error:
        msg = f"recipe {name!r}: [learner] {error}"
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
    """Return the admitting policy's recipe if there are several; Refused for both or none."""
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
    """Raise Refused if the run's requests exceed the bounds of every request."""
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
