"""What if: the recorded batches under another rule, compared with the original."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall.compose.runs.retraining import changed_learner, what_if
from rollcall.consumers.heldout import HeldOut
from rollcall.inference.policy_dir import load_policy
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.schemas.weights import weights_digest
from rollcall.trainer.weights.tensors import tensors_of
from tests.support.tiny_run import World


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four steps; kept are the checkpoints of 0, 2, 3 and 4."""
    world = World(tmp_path_factory.mktemp("run"))
    world.train(world.trainer())
    return world


def ask(world: World, steps: tuple[int, int], *changes: str, **named: Any) -> tuple[Any, list[str]]:
    told: list[str] = []
    given = {"version": None, "out": None, "without_task": ""} | named
    without = given.pop("without_task")
    threads = torch.get_num_threads()
    report = what_if(
        world, world.folder, steps, changes, without, threads=threads, tell=told.append, **given
    )
    return report, told


def test_another_rule_diverges_step_by_step_from_exact_old_steps(
    finished: World, tmp_path: Path
) -> None:
    changes = "learner.loss.name=gspo", "learner.aggregate=token_mean"
    report, told = ask(finished, (2, 4), *changes, out=tmp_path / "policy")

    steps = report["steps"]
    assert [step["step"] for step in steps] == [2, 3, 4]
    assert all(step["exact"] for step in steps)
    assert 0 < steps[0]["distance"] < steps[0]["moved"] * 10
    assert any("->" in line for line in told)
    assert "not exact" in told[1]
    made = load_policy(tmp_path / "policy").model
    newest = finished.versions()[-1].weights_digest
    assert weights_digest(tensors_of(made)) != newest


def test_both_policies_play_the_held_out_seeds_and_nothing_is_written(
    finished: World,
) -> None:
    before = {topic: len(list(finished.log.all(topic))) for topic in finished.log.topics}
    run = retrained_success(finished)

    same, told = ask(finished, (1, 4), "learner.lr=1e-3", playing=finished.settings)
    wild, _ = ask(finished, (1, 4), "learner.lr=1.0", playing=finished.settings)

    assert same["held_out"] == {"then": run, "now": run}
    assert any(line.startswith("held-out success, 6 seeds, greedy:") for line in told)
    assert wild["held_out"]["then"] == run
    after = {topic: len(list(finished.log.all(topic))) for topic in finished.log.topics}
    assert after == before


def retrained_success(world: World) -> float:
    """The run's own held-out success of its newest version."""
    plan = world.folder.heldout()
    results = HeldOut(plan)
    for scored in world.read(world.topics.scored, ScoredTrajectory):
        results.take(scored)
    version = world.versions()[-1].version
    assert results.complete(version)
    return sum(each.success for each in results.results[version].values()) / len(
        results.results[version]
    )


def test_the_same_rule_has_no_distance_from_the_run(finished: World, tmp_path: Path) -> None:
    report, _ = ask(finished, (1, 4), "learner.lr=1e-3", out=tmp_path / "policy")

    assert [step["distance"] for step in report["steps"]] == [0, 0, 0, 0]
    assert all(step["then"] == step["now"] for step in report["steps"])


def test_a_rule_with_snapshot_logprobs_uses_the_weights_still_held(
    finished: World,
) -> None:
    report, _ = ask(finished, (4, 4), "learner.old_logprobs=snapshot", "learner.correction=tis")

    assert 0 < report["steps"][0]["now"]["old_exact"] <= 1


def test_some_tasks_can_be_left_out_but_not_all(finished: World) -> None:
    scored = finished.read(finished.topics.scored, ScoredTrajectory)
    tasks = {each.trajectory.rollout_id: each.trajectory.request.task.task_id for each in scored}
    trained = [tasks[ref.rollout_id] for ref in finished.steps()[2].trajectories]
    assert len(set(trained)) == 2

    report, _ = ask(finished, (3, 3), without_task=trained[0])

    assert report["steps"][0]["left_out"] == trained.count(trained[0])
    with pytest.raises(Refused, match="nothing of it is left"):
        ask(finished, (4, 4), without_task="*")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("learner.group_size=8", "decided what was collected"),
        ("learner.loss.name=m3po", "m3po"),
        ("learner.losss=m2po", "losss"),
        ("task.prompt=x", "no setting of the learner"),
        ("learner.lr", "no setting of the learner"),
        ("learner.lr=-1", "lr is -1"),
    ],
)
def test_an_impossible_change_is_refused_in_one_line(
    finished: World, change: str, complaint: str
) -> None:
    with pytest.raises(Refused, match=complaint):
        ask(finished, (1, 2), change)


def test_a_changed_loss_name_keeps_only_its_own_options(finished: World) -> None:
    config = changed_learner(
        finished.folder, ["learner.loss.name=clip_higher", "learner.loss.high=0.5"]
    )

    assert dict(getattr(config.loss, "options", ())) == {"high": 0.5}
    with pytest.raises(Refused, match="is there already and not empty"):
        ask(finished, (1, 1), "learner.lr=2e-3", out=finished.folder.directory)
