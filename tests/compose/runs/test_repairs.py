"""The recipe `repairs`: tasks in boxes, graded patches, and training on their rewards."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pytest

from rollcall.compose.conductor.in_memory import run_in_memory
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import load_recipe, parse_recipe
from rollcall.compose.settings import Settings
from rollcall.compose.workers.run_trainer import run_trainer
from rollcall.compose.workers.served_policy import run_engine
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ModelCall, RolloutRequest, ScoredTrajectory, TrainStep
from rollcall.schemas.objects import ObjectStore
from rollcall.schemas.rules import NoOptions
from rollcall.schemas.topics import Topics, wanted
from rollcall.trainer.rules.advantages import GRPO
from rollcall.trainer.rules.rewards import Rewards
from tests.support.command_line import call
from tests.support.engines import has, left_out
from tests.support.task_directories import write_task
from tests.support.waiting import give_way, until

SHARE = 0.5
SCRIPT = 'script = "noisy"', "gold_share = 0.5"


def text_of(changes: Callable[[str], str] = str) -> str:
    """The shipped recipe, with one step of two groups and one rollout that is held out."""
    text = load_recipe("repairs")[1].replace("steps = 2", "steps = 1")
    text = text.replace("max_staleness = 2", "max_staleness = 0")
    text = text.replace("groups_per_step = 4", "groups_per_step = 2")
    return changes(text.replace("[1_000_000, 1_000_004]", "[1_000_000, 1_000_001]"))


def without_script(text: str) -> str:
    for line in SCRIPT:
        assert line in text
    kept = [line for line in text.splitlines() if not line.startswith(SCRIPT)]
    return "\n".join(kept).replace("max_tokens = 512", "max_tokens = 16")


@dataclass
class Run:
    """A run of the recipe on the in-memory log, every group in this process."""

    state: Path
    text: str
    tasks: Path | None = None
    topics: Topics = field(default_factory=lambda: Topics("m."))

    def __post_init__(self) -> None:
        recipe = parse_recipe(self.text, "repairs")
        self.folder = run_folder.create(self.state, recipe, self.text, seed=3, tasks=self.tasks)
        settings = Settings(state_dir=self.state, cache_dir=self.state / "cache")
        self.log = MemoryLog(wanted("m.", [self.folder.policy_id], partitions=2))
        self.codec = Codec(LocalRegistry(), objects=ObjectStore(f"{self.state}/objects"))
        factory = WorkerFactory(self.log, self.codec, self.topics, settings, watched=False)
        self.trainer = run_trainer(factory, "training", self.folder)
        self.loops = [
            factory.agents("agents"),
            factory.models("models", run_engine(self.folder, settings)),
            factory.environments("environments"),
            factory.rewards("rewards", recipe.scorers, recipe.scoring_id),
        ]

    def go(self) -> None:
        """Play the run to its end."""

        def over() -> bool:
            moved = sum(loop.turn(0.0) for loop in self.loops)
            self.trainer.turn(0.0)
            if not moved:
                give_way()
            return self.trainer.done()

        until(over, 240, lambda: f"{self.trainer.running()} rollouts run")

    def close(self) -> None:
        for loop in self.loops:
            loop.stop(1.0)

    def asked(self) -> list[RolloutRequest]:
        records = self.log.all(self.topics.requests)
        return [self.codec.decode(record.value, RolloutRequest) for record in records]

    def scored(self) -> dict[str, ScoredTrajectory]:
        records = self.log.all(self.topics.scored)
        found = [self.codec.decode(record.value, ScoredTrajectory) for record in records]
        return {each.trajectory.rollout_id: each for each in found}

    def step(self) -> TrainStep:
        records = self.log.all(self.topics.train_steps)
        [step] = [self.codec.decode(record.value, TrainStep) for record in records]
        return step

    def applied_gold(self) -> dict[str, bool]:
        """The decision of `noisy` by the seed of a rollout's first call."""
        records = self.log.all(self.topics.calls(self.folder.policy_id))
        calls = [self.codec.decode(record.value, ModelCall) for record in records]
        first = {each.rollout_id: each.seed for each in calls if each.position == 1}
        return {name: Random(seed).random() < SHARE for name, seed in first.items()}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    if not has("bwrap"):
        left_out("bubblewrap", "the recipe `repairs`, whose commands run in boxes")
    runs: list[Run] = []

    def begin(text: str, tasks: Path | None = None) -> Run:
        runs.append(Run(tmp_path, text, tasks))
        runs[-1].go()
        return runs[-1]

    yield begin
    for each in runs:
        each.close()


def test_rewards_groups_and_advantages_match_the_seeds_of_noisy(
    run: Callable[..., Run],
) -> None:
    done = run(text_of())

    gold, scored = done.applied_gold(), done.scored()
    found = {name: each.total for name, each in scored.items()}
    assert found == {name: float(gold[name]) for name in scored}
    trained = done.step().trajectories
    names = [ref.rollout_id for ref in trained]
    groups = [scored[name].trajectory.request.group_id for name in names]  # type: ignore[union-attr]
    assert sorted(map(groups.count, set(groups))) == [4, 4]
    rewards = np.array([float(gold[name]) for name in names])
    numbers = np.array([sorted(set(groups)).index(group) for group in groups])
    seen = Rewards(rewards, numbers, np.ones(len(names), dtype=np.int64))
    advantages = GRPO(seen, NoOptions())
    metrics = done.step().metrics
    assert metrics["reward_mean"] == pytest.approx(rewards.mean())
    assert metrics["advantage_mean"] == pytest.approx(advantages.mean(), abs=1e-9)
    assert metrics["advantage_std"] == pytest.approx(advantages.std())
    assert metrics["advantage_abs_max"] == pytest.approx(abs(advantages).max())
    assert 0 < rewards.mean() < 1, "a seed by which nothing is shown"


def test_random_policy_earns_no_reward(run: Callable[..., Run]) -> None:
    done = run(text_of(without_script))

    rewards = [
        {each.scorer: each.value for each in scored.rewards} for scored in done.scored().values()
    ]
    assert rewards
    assert all(each == {"resolved": 0.0, "no_submission": 1.0} for each in rewards)
    assert {scored.total for scored in done.scored().values()} == {-0.5}
    assert done.step().metrics["advantage_abs_max"] == 0


# Before anything runs


def test_seeds_select_tasks_in_turn_for_training_and_evaluation(tmp_path: Path) -> None:
    text = text_of()
    folder = run_folder.create(tmp_path, parse_recipe(text, "repairs"), text, seed=3)

    groups = [folder.draws().group(draw) for draw in range(40)]
    asked = {group[0].task.task_id.rpartition("-")[0] for group in groups}
    assert asked == {"clamps", "counts", "ranges", "sums"}
    for group in groups:
        assert len({each.task for each in group}) == 1
        assert group[0].task.prompt.startswith("Mend ")
    held_out = [each.task.task_id for each in folder.heldout().requests(0)]
    assert held_out == ["clamps-1000000"]


def test_given_tasks_replace_the_tasks_of_the_recipe(tmp_path: Path) -> None:
    text, tasks = text_of(), tmp_path / "tasks"
    write_task(tasks / "adds")
    recipe = parse_recipe(text, "repairs")
    folder = run_folder.create(tmp_path, recipe, text, seed=3, tasks=tasks)

    [task] = folder.tasks()
    assert task.task_id == "adds"
    assert str(tasks / "adds") in task.environment_config
    write_task(tasks / "adds", {"instruction.md": "Mend it otherwise.\n"})
    with pytest.raises(Refused, match="were changed since this run began"):
        folder.tasks()


def test_invalid_task_folder_is_refused_before_a_run_exists(tmp_path: Path) -> None:
    text = text_of()
    with pytest.raises(Refused, match="is no directory"):
        run_folder.create(
            tmp_path, parse_recipe(text, "repairs"), text, seed=3, tasks=tmp_path / "none"
        )
    write_task(tmp_path / "tasks" / "adds", {"task.toml": None})
    assert not (tmp_path / "runs").exists()


def test_tasks_option_is_refused_for_unsuitable_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match="the seeds of 'syllogisms' are none"):
        run_in_memory("syllogisms", Settings(), seed=1, summary=None, tasks=tmp_path)
    with pytest.raises(Refused, match="with the tasks that it began with"):
        call(None, "run", "repairs", "--tasks", ".", "--resume", "--log", "memory")
