"""A small real run on the in-memory log: a tiny policy on the lake, every group in one process."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.compose.settings import Settings
from rollcall.compose.workers.run_trainer import run_trainer
from rollcall.compose.workers.served_policy import run_engine
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.history.runs.retraining import RetrainedStep, plan, train
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.training.trainer import Trainer
from rollcall.inference.engine import Engine
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.messages import PolicyVersion, RolloutRequest, TrainStep
from rollcall.schemas.topics import Topics, wanted
from tests.support.rig import source_of

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
    """One run on one in-memory log, whose trainer may be replaced; or another run `beside` one."""

    def __init__(
        self, directory: Path, text: str = "", *, run_id: str = "", beside: "World | None" = None
    ) -> None:
        text = text or RECIPE
        recipe = parse_recipe(text, "tiny")
        folder = run_folder.create(directory, recipe, text, seed=3, run_id=run_id)
        log = beside.log if beside else MemoryLog()
        codec = beside.codec if beside else Codec(LocalRegistry())
        self.open(directory, folder, log, codec)
        self.loops = [self.factory.models(f"models-{run_id}", run_engine(folder, self.settings))]
        self.loops += beside.loops if beside else self.crew()

    def open(self, directory: Path, folder: RunFolder, log: MemoryLog, codec: Codec) -> None:
        """Take up a run on a log; nobody works yet."""
        self.folder, self.log, self.codec = folder, log, codec
        self.topics = Topics("m.")
        for topic in wanted("m.", [folder.policy_id], partitions=2):
            log.create(topic.name, topic.partitions)
        self.settings = Settings(state_dir=directory, cache_dir=directory / "cache")
        self.factory = WorkerFactory(log, codec, self.topics, self.settings, watched=False)

    def crew(self) -> list[Loop]:
        """One worker of each group that has nothing to do with a policy."""
        recipe = self.folder.recipe
        return [
            self.factory.agents("agents"),
            self.factory.environments("environments"),
            self.factory.rewards("rewards", recipe.scorers, recipe.scoring_id),
        ]

    def serve_by(self, engine: Engine) -> Loop:
        """Kill the run's model server, and let another serve in its place."""
        source_of(self.loops[0]).kill()
        self.loops[0] = self.factory.models("heir", engine)
        return self.loops[0]

    def begin(self) -> None:
        """Note where topics end now, as a run does that others are to find."""
        names = self.topics.requests, self.topics.scored
        starts = {(name, n): end for name in names for n, (_, end) in self.log.bounds(name).items()}
        self.folder = replace(self.folder, starts=starts)
        body = {
            "run_id": self.folder.run_id, "policy_id": self.folder.policy_id, "seed": 3,
            "starts": [[*tp, at] for tp, at in starts.items()],
        }  # fmt: skip
        text = self.folder.directory / run_folder.RECIPE_FILE
        assert text.is_file()
        (self.folder.directory / run_folder.RUN_FILE).write_text(json.dumps(body))

    def ask(self, request: RolloutRequest) -> None:
        value = self.codec.encode(self.topics.requests, request)
        self.log.append(self.topics.requests, request.rollout_id.encode(), value)

    def close(self) -> None:
        """Let everybody leave, with the processes that they have started."""
        for loop in self.loops:
            loop.stop(1.0)

    def trainer(self) -> Trainer:
        return run_trainer(self.factory, "training", self.folder)

    def train(self, trainer: Trainer, steps: int | None = None) -> None:
        """Let everybody take turns until so many steps are done, or the run is."""
        for _ in range(20_000):
            if trainer.done() or (steps is not None and trainer.learner.steps_done >= steps):
                return
            for loop in self.loops:
                loop.turn(0.0)
            trainer.turn(0.0)
        pytest.fail(f"{trainer.learner.steps_done} steps, {trainer.running()} running")

    def trained_again(self, first: int, last: int) -> list[RetrainedStep]:
        """The run's steps again from the record, by one process."""
        ahead = plan(self.factory, self.folder.trained(), first, last)
        return list(train(ahead, self.codec, ahead.learner(ahead.run.config)))

    def read(self, topic: str, kind: type) -> list[Any]:
        values = [record.value for record in self.log.all(topic) if record.value is not None]
        return [self.codec.decode(value, kind) for value in values]

    def steps(self) -> list[TrainStep]:
        return self.read(self.topics.train_steps, TrainStep)

    def versions(self) -> list[PolicyVersion]:
        return self.read(self.topics.versions, PolicyVersion)
