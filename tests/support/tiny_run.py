"""A small real run on the in-memory log: a tiny policy on the lake, every group in one process."""

from pathlib import Path
from typing import Any

import pytest

from compose.runs import run_folder
from compose.runs.recipe import parse_recipe
from compose.settings import Settings
from compose.workers.build import Workshop
from compose.workers.engines import weights_engine
from consumers.log.memory_log import MemoryLog
from consumers.training.trainer import Trainer
from schemas.codec import Codec, LocalRegistry
from schemas.messages import PolicyVersion, RolloutRequest, TrainStep
from schemas.topics import Topics, wanted

RECIPE = """
name = "tiny"
[task]
environment = "gymnasium"
seeds = [0, 1000]
[task.environment_config]
id = "FrozenLake-v1"
observation = "s{observation}"
actions = ["L", "D", "R", "U"]
max_turns = 4
[limits]
max_turns = 4
[sampling]
max_tokens = 1
[policy]
tokens = "lake"
template = { kind = "words", bos = "<bos>", turn = "<a>" }
[policy.config]
model_type = "gpt2"
vocab_size = 32
n_positions = 32
n_embd = 16
n_layer = 1
n_head = 2
bos_token_id = 0
eos_token_id = 0
[learner]
steps = 4
groups_per_step = 2
group_size = 4
[evaluation]
seeds = [5000, 5006]
every = 2
"""


class World:
    """One run on one in-memory log, whose trainer may be replaced."""

    def __init__(self, directory: Path, text: str = "") -> None:
        text = text or RECIPE
        recipe = parse_recipe(text, "tiny")
        self.folder = run_folder.create(directory, recipe, text, seed=3)
        self.topics = Topics("m.")
        self.log = MemoryLog(wanted("m.", [self.folder.policy_id], partitions=2))
        self.settings = Settings(state_dir=directory, cache_dir=directory / "cache")
        self.codec = Codec(LocalRegistry())
        self.shop = Workshop(self.log, self.codec, self.topics, self.settings, watched=False)
        engine = weights_engine(self.folder.policy_id, self.folder.policy, self.settings.models)
        self.loops = [
            self.shop.agents("agents"),
            self.shop.models("models", engine),
            self.shop.environments("environments"),
            self.shop.rewards("rewards", recipe.scorers, recipe.scoring_id),
        ]

    def ask(self, request: RolloutRequest) -> None:
        value = self.codec.encode(self.topics.requests, request)
        self.log.append(self.topics.requests, request.rollout_id.encode(), value)

    def close(self) -> None:
        """Let everybody leave, with the processes that they have started."""
        for loop in self.loops:
            loop.stop(1.0)

    def trainer(self) -> Trainer:
        return self.shop.trainer("training", self.folder)

    def train(self, trainer: Trainer, steps: int | None = None) -> None:
        """Let everybody take turns until so many steps are done, or the run is."""
        for _ in range(20_000):
            if trainer.done() or (steps is not None and trainer.learner.steps_done >= steps):
                return
            for loop in self.loops:
                loop.turn(0.0)
            trainer.turn(0.0)
        pytest.fail(f"{trainer.learner.steps_done} steps, {trainer.running()} running")

    def read(self, topic: str, kind: type) -> list[Any]:
        return [self.codec.decode(record.value, kind) for record in self.log.all(topic)]

    def steps(self) -> list[TrainStep]:
        return self.read(self.topics.train_steps, TrainStep)

    def versions(self) -> list[PolicyVersion]:
        return self.read(self.topics.versions, PolicyVersion)
