"""A small real run of two policies on the in-memory log: a solver and its verifier."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compose.runs import run_folder
from compose.runs.recipe import parse_recipe
from compose.settings import Settings
from compose.workers.build import Workshop
from compose.workers.run_trainer import run_trainer
from compose.workers.served_policy import run_engine
from consumers.log.memory_log import MemoryLog
from consumers.loop.loop import Loop
from consumers.training.trainer import Trainer
from sandbox.environment import Observation
from schemas.codec import Codec, LocalRegistry
from schemas.messages import TrainStep, Trajectory
from schemas.topics import Topics, wanted

POLICY = """
template = { kind = "words", bos = "<bos>", turn = "<a>" }
tokens = ["<bos>", "<a>", "Yes", "No", "Answer", "?"]
[policies.NAME.config]
model_type = "gpt2"
vocab_size = 8
n_positions = 64
n_embd = 16
n_layer = 1
n_head = 2
bos_token_id = 0
eos_token_id = 0
"""
RECIPE = f"""
name = "pair"
barrier = true
[task]
environment = "tests.support.two_policies:Riddle"
agent = "solver_verifier"
seeds = [0, 1000]
[limits]
max_turns = 3
[sampling]
max_tokens = 1
[policies.verifier]
scorers = ["tests.support.two_policies:agrees"]
learner = {{ lr = 2e-3 }}
{POLICY.replace("NAME", "verifier")}
[policies.solver]
admits = true
{POLICY.replace("NAME", "solver")}
[learner]
steps = 2
groups_per_step = 2
group_size = 2
[evaluation]
seeds = [5000, 5001]
every = 0
"""


class Riddle:
    """Asks whether; the seed says so. Even ones are answered with Yes."""

    replayable = True

    def open(self, seed: int) -> Observation:
        self.right = "No" if seed % 2 else "Yes"
        return Observation(f"Answer {self.right} ?")

    def step(self, action: str) -> Observation:
        return Observation("", reward=float(action == self.right), terminated=True)

    def close(self) -> None:
        pass


def agrees(trajectory: Trajectory) -> float:
    """Whether the verifier said of the first answer what is true of it."""
    told = json.loads(trajectory.result)
    assert trajectory.request is not None
    right = "No" if trajectory.request.task.seed % 2 else "Yes"
    return float(told["verdict"] == ("Yes" if told["first"] == right else "No"))


class Pair:
    """One run on one in-memory log, whose workers take turns; any of them may be replaced."""

    def __init__(self, directory: Path, text: str = RECIPE) -> None:
        self.folder = run_folder.create(directory, parse_recipe(text, "pair"), text, seed=3)
        [self.other] = self.folder.others()
        self.parts = (self.folder, self.other)
        self.topics = Topics("m.")
        ids = [part.policy_id for part in self.parts]
        self.log = MemoryLog(wanted("m.", ids, partitions=2))
        self.settings = Settings(state_dir=directory, cache_dir=directory / "cache")
        self.codec = Codec(LocalRegistry())
        self.shop = Workshop(self.log, self.codec, self.topics, self.settings, watched=False)
        self.loops = {
            "agents": self.shop.agents("agents"),
            "environments": self.shop.environments("environments"),
            **{part.name: self.server(part) for part in self.parts},
            **{f"by-{p.name}": self._rewards(p) for p in self.parts},
        }

    def server(self, part: run_folder.RunFolder) -> Loop:
        return self.shop.models(f"models-{part.name}", run_engine(part, self.settings))

    def _rewards(self, part: run_folder.RunFolder) -> Loop:
        recipe = part.recipe
        return self.shop.rewards(f"rewards-{part.name}", recipe.scorers, recipe.scoring_id)

    def trainer(self, part: run_folder.RunFolder) -> Trainer:
        return run_trainer(self.shop, f"training-{part.name}", part)

    def turn(self, *trainers: Trainer) -> None:
        for loop in self.loops.values():
            loop.turn(0.0)
        for trainer in trainers:
            if not trainer.done():
                trainer.turn(0.0)

    def train(self, *trainers: Trainer, until: Callable[[], bool]) -> None:
        """Let everybody take turns."""
        for _ in range(20_000):
            if until():
                return
            self.turn(*trainers)
        pytest.fail(f"{[t.learner.steps_done for t in trainers]} steps")

    def close(self) -> None:
        """Let what is in the air come down, and everybody leave."""
        quiet = 0
        while quiet < 5:
            quiet = 0 if sum(loop.turn(0.0) for loop in self.loops.values()) else quiet + 1
        for loop in self.loops.values():
            loop.stop(1.0)

    def read(self, topic: str, kind: type) -> list[Any]:
        return [self.codec.decode(record.value, kind) for record in self.log.all(topic)]

    def steps(self, part: run_folder.RunFolder) -> list[TrainStep]:
        found = self.read(self.topics.train_steps, TrainStep)
        return [step for step in found if step.policy_id == part.policy_id]
