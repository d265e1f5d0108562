"""Recipes: a training run as a TOML file; unknown keys are refused with the nearest known one."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field, ValidationError

from compose.extras import EXTRAS
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

SHIPPED = ("lake-any-start", "syllogisms", "repairs")
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
    policy: PolicyTable
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

    @property
    def scoring_id(self) -> str:
        """Named after its scorers, so that equal ones share a group and its progress."""
        return "+".join(re.sub(r"[^A-Za-z0-9_.-]", "-", name) for name in self.scorers)

    def libraries(self) -> tuple[str, ...]:
        """What must be installed here to run it; our environments are named as their libraries."""
        environment = self.task.environment
        return ("torch", "transformers", *((environment,) if environment in EXTRAS else ()))

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
            agent_config=orjson.dumps(task.agent_config).decode(),
            policy_id=policy_id,
            run_id=run_id,
            purpose="train",
            sampling=Sampling(
                self.sampling.temperature,
                max_tokens=self.sampling.max_tokens,
                stop=tuple(self.sampling.stop),
            ),
            limits=Limits(**self.limits.model_dump()),
        )


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
    for scorer in recipe.scorers:
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
    _check_requests(recipe, name)
    first, end = recipe.evaluation.seeds
    if max(first, recipe.task.seeds[0]) < min(end, recipe.task.seeds[1]):
        msg = (
            f"recipe {name!r}: evaluation.seeds {first}-{end} overlap task.seeds "
            f"{recipe.task.seeds[0]}-{recipe.task.seeds[1]}; held-out seeds must not be trained on"
        )
        raise Refused(msg)
    return recipe


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
