"""A rollout of 128,000 tokens in 100 turns, from its request to its export and display.

The policy that is trained is one whose cost grows with the length, not with its square: a table of
which token follows which. All else is what any run has.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Reset, Step, user
from rollcall.consumers.agents.effects import Task as Given
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.history.reading.local_programs import watched_world
from rollcall.consumers.history.reading.ranges import Range
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.history.replay.export import export
from rollcall.consumers.history.versions.versions_in_use import VersionsInUse
from rollcall.consumers.history.waiting.waiting import WaitReader
from rollcall.consumers.tables.query import open_tables
from rollcall.consumers.training.trainer import Trainer
from rollcall.consumers.training.trainer_setup import TrainerSetup
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.admission import AdmissionRule, Draws
from rollcall.sandbox.environment import Observation
from rollcall.schemas.messages import (
    Limits,
    RolloutRequest,
    Sampling,
    ScoredTrajectory,
    Task,
    TrainStep,
    Trajectory,
)
from rollcall.schemas.objects import ObjectStore
from rollcall.schemas.trajectory_refs import refs_of
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.step import Learner
from tests.support.command_line import call
from tests.support.memory_cluster import POLICY, MemoryCluster

TURNS = 100
SEEN, SAID = 1024, 256
"""Tokens, and bytes: what a turn shows, and what is answered."""
TOKENS = TURNS * (SEEN + SAID)
SIZE = 2
VOCABULARY = 256
RECORD_BYTES = 1_000_000
"""What a topic takes at most."""


def reads(task: Given) -> Agent:
    """Reads a page, says something about it, turns over."""
    seen = yield Reset()
    messages = [user(seen.text)]
    for _ in range(TURNS):
        answer = yield CallModel(messages)
        messages = [*messages, answer.message]
        seen = yield Step(answer.text)
        messages = [*messages, user(seen.text)]
    yield Finish("read")


class Book:
    """Pages of the same length; their reward depends on the seed."""

    replayable = True

    def open(self, seed: int) -> Observation:
        self.page = 0
        return self._show()

    def step(self, action: str) -> Observation:
        self.page += 1
        return replace(self._show(), reward=float(len(set(action))))

    def close(self) -> None:
        pass

    def _show(self) -> Observation:
        return Observation(f"page {self.page} ".ljust(SEEN, "."))


class FollowsConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "follows-for-tests"

    def __init__(self, **given: Any) -> None:
        self.vocab_size = VOCABULARY
        self.max_position_embeddings = 140_000
        super().__init__(**given)


class Follows(PreTrainedModel):  # type: ignore[misc]
    """Says of every token which one follows it."""

    config_class = FollowsConfig

    def __init__(self, config: FollowsConfig) -> None:
        super().__init__(config)
        self.table = torch.nn.Embedding(config.vocab_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.table(input_ids))


AutoConfig.register(FollowsConfig.model_type, FollowsConfig)
AutoModelForCausalLM.register(FollowsConfig, Follows)


@pytest.fixture
def cluster(tmp_path: Path) -> MemoryCluster:
    made = MemoryCluster(objects=ObjectStore(f"{tmp_path}/objects"))
    made.hire(lambda call: f"{call.seed % 1000:03} {call.position:03} ".ljust(SAID, "x"))
    return made


def trainer_of(cluster: MemoryCluster, directory: Path) -> Trainer:
    """A trainer that trains a single step on one group."""
    Follows(FollowsConfig()).save_pretrained(directory / "policy")
    config = LearnerConfig.of({
        "advantage": "grpo", "steps": 1, "groups_per_step": 1, "group_size": SIZE, "entropy": 0.0,
    })  # fmt: skip
    template = RolloutRequest(
        "",
        Task(f"{__name__}:Book"),
        agent=f"{__name__}:reads",
        policy_id=POLICY,
        run_id="long",
        purpose="train",
        sampling=Sampling(max_tokens=SAID),
        limits=Limits(max_turns=TURNS),
    )
    rule = AdmissionRule(0, SIZE, SIZE, SIZE)
    run = TrainingRun("long", POLICY, directory, {}, "default", rule, config.steps)
    return TrainerSetup(
        "training-1",
        cluster.log,
        cluster.codec,
        cluster.topics,
        cluster.log.publisher(),
        Learner(str(directory / "policy"), config),
        config,
        run,
        Draws(template, 7, SIZE, (0, 100)),
        in_use=VersionsInUse(cluster, POLICY),
    ).open()


def read(cluster: MemoryCluster, topic: str, kind: type) -> list[Any]:
    return [cluster.codec.decode(record.value, kind) for record in cluster.log.all(topic)]


def largest(cluster: MemoryCluster, topic: str) -> int:
    """Bytes of the largest value."""
    return max((len(record.value or b"") for record in cluster.log.all(topic)), default=0)


def test_rollout_of_128k_tokens_passes_the_whole_pipeline(
    cluster: MemoryCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = trainer_of(cluster, tmp_path / "run")
    topics = cluster.topics

    # It runs, and is scored
    for _ in range(10_000):
        if trainer.done():
            break
        cluster.log.work()
        trainer.turn(0.0)
    cluster.finish()
    ended: list[Trajectory] = read(cluster, topics.trajectories, Trajectory)
    assert [(t.status, t.code, t.result) for t in ended] == [("finished", "", "read")] * SIZE
    assert [len(s.loss_mask) for t in ended for s in t.sequences or ()] == [TOKENS] * SIZE
    assert [t.sampled_tokens for t in ended] == [TURNS * SAID] * SIZE
    scored: list[ScoredTrajectory] = read(cluster, topics.scored, ScoredTrajectory)
    assert {s.trajectory.rollout_id for s in scored} == {t.rollout_id for t in ended}
    assert all(s.total is not None for s in scored)
    sizes = {name: largest(cluster, name) for name in cluster.log.topics}
    assert max(sizes.values()) < RECORD_BYTES, sizes
    assert isinstance(cluster.objects, ObjectStore)
    assert sum(kept.size_bytes for kept in cluster.objects.kept()) > SIZE * TOKENS

    # It is trained on, all of it
    (step,) = read(cluster, topics.train_steps, TrainStep)
    assert {ref.rollout_id for ref in refs_of(step)} == {t.rollout_id for t in ended}
    assert step.metrics["tokens"] == SIZE * TURNS * SAID
    assert step.metrics["skipped"] == 0.0

    # It is exported
    export(Selection(cluster, Range()), tmp_path / "out")
    with open_tables([tmp_path / "out"]) as opened:
        rows = list(opened.ask("select tokens, sampled_tokens, total from trajectories").rows)
        turns = list(opened.ask("select count(*), count(action) from turns").rows)
    assert [row[:2] for row in rows] == [(TOKENS, TURNS * SAID)] * SIZE
    assert turns == [(SIZE * (2 * TURNS + 1), SIZE * TURNS)]

    # It is shown
    capsys.readouterr()
    call(cluster, "trajectory", ended[0].rollout_id, "--tokens")
    shown = capsys.readouterr().out
    assert f"{TURNS} turns, {TURNS * SAID} tokens, 0 failures in attempt 1" in shown
    assert shown.count("reward +") >= TURNS
    call(cluster, "tail", "trajectories")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(len(line["value"]["sequences"]) == 1 for line in lines)
    reader = WaitReader(cluster, cluster.admin, watched_world(5.0), "default")
    assert reader.waiting().waits == []

    # And it is judged
    report = audit(cluster, drained=True)
    assert report.ok, report.breaches
    assert (report.ended, report.unreadable) == (SIZE, {})
