"""A run on the in-memory log whose rollouts end as a test says, and whose learner only counts."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rollcall.consumers.heldout import HeldOut, HeldOutPlan
from rollcall.consumers.history.versions.versions_in_use import VersionsInUse
from rollcall.consumers.log.memory_log import MemoryLog, MemoryPublisher
from rollcall.consumers.loop.inline_executor import InlineExecutor
from rollcall.consumers.training.trainer import Trainer
from rollcall.consumers.training.trainer_setup import TrainerSetup
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.admission import AdmissionRule, Draws
from rollcall.producers.curators.curators import curators_of
from rollcall.schemas.claims import Objects
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.headers import full_headers
from rollcall.schemas.ids import scored_id
from rollcall.schemas.messages import (
    Control,
    RolloutRequest,
    ScoredTrajectory,
    Task,
    TrainStep,
    Trajectory,
)
from rollcall.schemas.topics import Topics, wanted
from rollcall.schemas.trajectory_refs import refs_of
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.canary import Canary
from rollcall.trainer.learner.snapshot import Snapshot
from rollcall.trainer.rules.samples import Sample
from rollcall.trainer.weights.publication import Publishing
from tests.support.scored_trajectories import scored

SIZE = 2
CONFIG = LearnerConfig(steps=4, groups_per_step=2, group_size=SIZE)
SCORING = "scoring"
REFUSED = {"request_gone": (1, "killed_worker"), "repeated": (0, FailureCode.REPEATED)}
"""How a request may be refused that the refusal does not hold: attempt and code."""


class Counting:
    """A learner without a model."""

    vocabulary = 0
    context = 0
    device = "cpu"

    def __init__(self) -> None:
        self.version = 0
        self.steps_done = 0

    def step(self, samples: Sequence[Sample], *, version: int) -> dict[str, float]:
        self.steps_done += 1
        stale = self.version - min(sample.min_version for sample in samples)
        self.version = version
        return {"reward_mean": 0.0, "staleness_mean": 0.0, "loss": 0.0, "staleness_max": stale}

    def cache_logprobs(self, samples: Sequence[Sample]) -> None:
        """There is nothing to score."""

    def canary(self) -> Canary:
        return Canary(bytes(4), b"")

    def tensors(self) -> dict[str, RawTensor]:
        return {"w": RawTensor("U8", (1,), bytes([self.version % 256]))}

    def state(self) -> LearnerState:
        none = {"n": RawTensor("U8", (1,), b"\0")}
        return LearnerState(self.steps_done, self.version, 0, self.tensors(), none, none)

    def snapshot(self) -> Snapshot[LearnerState]:
        taken = self.state()
        return Snapshot(lambda: taken)

    def load(self, state: LearnerState) -> None:
        self.steps_done, self.version = state.step, state.version


def begun_again(ended: Sequence[Trajectory]) -> list[RolloutRequest]:
    """How cancelled rollouts go on that have no journal."""
    return [each.request for each in ended if each.request is not None]


@dataclass
class Stage:
    """A run whose rollouts end as a test says."""

    directory: Path
    config: LearnerConfig = CONFIG
    seeds: tuple[int, int] = (0, 0)
    """Of the held-out evaluation; none where there are none."""
    goal: float = 2.0
    max_running: int = 64
    objects: Objects | None = None
    agent_config: str = ""
    curator: object = ""
    tasks: int = 100
    rewards: Callable[[RolloutRequest], float] | None = None
    """What a rollout earns; every second one where nothing is said."""
    executor: Callable[[], Executor] = InlineExecutor
    """Of each trainer, for steps that are saved while others are trained."""
    publishing: Publishing = field(default_factory=Publishing)
    accept_truncation: bool = False
    learner: Callable[[], Any] = Counting
    nameless: int = 0
    ended: list[str] = field(default_factory=list)
    written: list[tuple[bytes, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics = Topics("m.")
        self.log = MemoryLog(wanted("m.", ["policy"], partitions=2))
        self.codec = Codec(LocalRegistry(), objects=self.objects, clock=count(0, 60).__next__)
        template = RolloutRequest(
            "",
            Task(),
            policy_id="policy",
            run_id="run",
            purpose="train",
            agent_config=self.agent_config,
        )
        self.draws = Draws(template, 7, self.config.members, (0, self.tasks))
        self.plan = HeldOutPlan(template, self.seeds, 2, 0.5, self.goal)
        self.trainer = self.begin()

    def begin(self) -> Trainer:
        """Another trainer goes on; the one before is gone without a word."""
        config = self.config
        batch = config.fresh_groups * config.members
        rule = AdmissionRule(
            config.staleness.bound, batch, self.max_running, config.members,
            config.groups.over_provision, config.refills,
        )  # fmt: skip
        run = TrainingRun(
            "run", "policy", self.directory, {}, SCORING, rule, config.steps,
            publishing=self.publishing,
        )  # fmt: skip
        learner = self.learner()
        heldout = HeldOut(self.plan) if self.seeds[1] else None
        arguments = (MemoryPublisher(self.log), learner, self.config, run, self.draws, heldout)
        curators = curators_of(self.curator, self.tasks)
        self.trainer = TrainerSetup(
            "t", self.log, self.codec, self.topics, *arguments, curators, continue_=begun_again,
            executor=self.executor(), accept_truncation=self.accept_truncation,
            in_use=VersionsInUse(self, "policy"),
        ).open()  # fmt: skip
        return self.trainer

    def asked(self) -> list[RolloutRequest]:
        records = self.log.all(self.topics.requests)
        return [self.codec.decode(record.value, RolloutRequest) for record in records]

    def in_the_air(self) -> list[RolloutRequest]:
        return [request for request in self.asked() if request.rollout_id not in self.ended]

    def cancelled(self) -> list[str]:
        """Rollouts whose end was asked for, in order."""
        records = self.log.all(self.topics.control)
        words = [record.value for record in records if record.value is not None]
        return [self.codec.decode(word, Control).rollout_id for word in words]

    def steps(self) -> list[TrainStep]:
        records = self.log.all(self.topics.train_steps)
        return [self.codec.decode(record.value, TrainStep) for record in records]

    def kept_steps(self) -> list[TrainStep]:
        """Those that were not abandoned, each once."""
        gone = self.trainer.saver.abandoned
        steps = {step.version: step for step in self.steps()}
        return [s for v, s in steps.items() if not any(a <= v <= b for a, b in gone)]

    def end(
        self, request: RolloutRequest, how: str = "finished", reward: float | None = None
    ) -> None:
        """One rollout ends: finished, failed without a token, torn, or torn without a name."""
        self.ended.append(request.rollout_id)
        if how == "nameless":
            self.nameless += 1
            self.log.append(self.topics.scored, b"x", b"torn")
            return
        if how in REFUSED:
            self._refuse(request, *REFUSED[how])
            return
        record = self._scored(request, "finished" if how == "torn" else how, reward)
        key = request.group_id
        name = scored_id(request.rollout_id, record.trajectory.attempt, SCORING)
        headers = full_headers("ScoredTrajectory", name, "rewards", key, request.rollout_id)
        value = b"torn" if how == "torn" else self.codec.encode(self.topics.scored, record)
        self.log.append(self.topics.scored, key.encode(), value, headers=headers)
        if how != "torn":
            self.written.append((key.encode(), value))

    def _refuse(self, request: RolloutRequest, attempt: int, code: str) -> None:
        """Write what a refusal that does not hold the request comes to."""
        made = self._scored(request, "refused", None)
        bare = replace(made.trajectory, attempt=attempt, code=code, request=None)
        value = self.codec.encode(self.topics.scored, replace(made, total=None, trajectory=bare))
        self.log.append(self.topics.scored, request.rollout_id.encode(), value)

    def _scored(
        self, request: RolloutRequest, status: str, reward: float | None
    ) -> ScoredTrajectory:
        newest = self.trainer.learner.version
        version = request.policy_version if request.purpose == "evaluate" else newest
        tokens: Any = {"sequences": ()} if status != "finished" else {"version": version}
        total = float(len(self.ended) % 2) if reward is None else reward
        if self.rewards and reward is None:
            total = self.rewards(request)
        made = scored(request.rollout_id, total, status=status, **tokens)
        return replace(made, trajectory=replace(made.trajectory, request=request))

    def again(self, number: int) -> None:
        """A record that was written is written once more."""
        if self.written:
            key, value = self.written[number % len(self.written)]
            self.log.append(self.topics.scored, key, value)

    def turn(self) -> None:
        self.trainer.turn(0.0)
        self.check()

    def check(self) -> None:
        """The rule, and that nothing is asked for or trained on twice."""
        trainer, rule = self.trainer, self.trainer.run.rule
        in_use = trainer.ledger.running() + trainer.ledger.held()
        assert trainer.ledger.running() <= rule.max_running
        # What was given up before a crash is waited for again, beside the group in its place.
        given_up = self.nameless * rule.group_size
        bound = max(rule.staleness + 1, rule.over_provision) * rule.batch
        # Those of a group that was trained on without them have their places there, and end soon.
        assert in_use <= bound + given_up + len(list(trainer.ledger.losers()))
        assert max(Counter(request.rollout_id for request in self.asked()).values(), default=1) == 1
        steps = self.kept_steps()
        trained = [ref.rollout_id for step in steps for ref in refs_of(step)]
        again = sum(int(step.metrics.get("replayed", 0)) for step in steps)
        assert len(trained) - again == len(set(trained))

    def train(self, steps: int) -> None:
        """What is for training finishes until so many steps are done; evaluations hang."""
        for _ in range(200):
            if self.trainer.learner.steps_done >= steps:
                return
            for request in self.in_the_air():
                if request.purpose == "train" or not self.trainer.learner.steps_done:
                    self.end(request, reward=None if request.purpose == "train" else 0.0)
            self.turn()
        pytest.fail(f"stands still after step {self.trainer.learner.steps_done}")

    def drain(self) -> None:
        """Everything in the air finishes, again and again, until the run is done."""
        for _ in range(200):
            for request in self.in_the_air():
                self.end(request)
            self.turn()
            if self.trainer.done():
                return
        pytest.fail(f"stands still after step {self.trainer.learner.steps_done}")
