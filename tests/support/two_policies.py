"""A small real run of two policies on the in-memory log: a solver and its verifier."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcall.consumers.training.trainer import Trainer
from rollcall.sandbox.environment import Observation
from rollcall.schemas.messages import Trajectory
from tests.support.whole_run import WholeRun

POLICY = """
template = { kind = "words", bos = "<bos>", turn = "<a>" }
tokens = ["<bos>", "<a>", "Yes", "No", "Answer", "?", "<unk>"]
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


class Pair(WholeRun):
    """One run of two."""

    def __init__(self, directory: Path, text: str = RECIPE) -> None:
        super().__init__(directory, text, "pair", seed=3)
        [self.other] = self.folder.others()

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
            quiet = 0 if self.turn() else quiet + 1
        self.stop()
