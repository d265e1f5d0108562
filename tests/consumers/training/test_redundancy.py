"""Groups with spare members: the first trainable ones win, across restarts."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest
from rollcall.schemas.trajectory_refs import refs_of
from rollcall.trainer.checkpoints.manifest import MANIFEST
from rollcall.trainer.config.learner_config import LearnerConfig
from tests.support.changed_config import changed
from tests.support.staged_run import CONFIG, SIZE, Stage
from tests.support.tiers import examples
from tests.support.tiny_run import RECIPE, World

SPARE = changed(CONFIG, redundancy=1)
STRICT = changed(SPARE, max_staleness=0)
ACTS = st.tuples(st.sampled_from(["finished", "finished", "failed", "torn", "again", "restart"]),
                 st.integers(0, 30))  # fmt: skip


def members(stage: Stage, draw: int) -> list[RolloutRequest]:
    return [request for request in stage.asked() if request.group_id == f"run/{draw}"]


def trained(stage: Stage) -> list[list[str]]:
    return [[ref.rollout_id for ref in refs_of(step)] for step in stage.steps()]


def test_the_first_trainable_members_win_and_a_failed_one_takes_no_place(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, STRICT)
    stage.turn()
    first, second = members(stage, 0), members(stage, 1)

    stage.end(first[2])
    stage.end(first[0], "failed")
    stage.turn()
    before = stage.cancelled()
    stage.end(first[1])
    for request in second[:2]:
        stage.end(request)
    stage.turn()

    assert (before, stage.cancelled()) == ([], [second[2].rollout_id])
    wanted = [first[2], first[1], *second[:2]]
    assert [sorted(step) for step in trained(stage)] == [sorted(r.rollout_id for r in wanted)]
    assert stage.trainer.buffer.drops()["failed"].count == 1


@pytest.mark.parametrize("how", ["finished", "cancelled", "failed"])
def test_a_losing_member_is_always_counted_as_redundant(tmp_path: Path, how: str) -> None:
    stage = Stage(tmp_path, STRICT)
    stage.turn()
    first, second = members(stage, 0), members(stage, 1)
    for request in first[:2]:
        stage.end(request)
    stage.turn()
    stage.end(first[2], how)
    stage.turn()
    early = stage.trainer.buffer.drops()["redundant"].count

    for request in second[:2]:
        stage.end(request)
    stage.turn()
    stage.begin()
    stage.end(second[2], how)
    stage.turn()

    assert (early, len(stage.steps())) == (1, 1)
    assert stage.trainer.buffer.drops()["redundant"].count == 2
    assert list(stage.trainer.buffer.drops()) == ["redundant"]
    stage.drain()


def test_whole_groups_keep_their_redundant_members_places(tmp_path: Path) -> None:
    """Otherwise more would be started than can be trained before it is stale."""
    stage = Stage(tmp_path, changed(STRICT, groups_per_step=4))
    stage.turn()
    for draw in range(3):
        for request in members(stage, draw):
            stage.end(request)
        stage.turn()

    assert stage.trainer.ledger.held() == 3 * SIZE
    assert {request.group_id for request in stage.asked()} == {f"run/{n}" for n in range(4)}
    stage.begin()
    stage.turn()
    assert {request.group_id for request in stage.asked()} == {f"run/{n}" for n in range(4)}
    stage.drain()


def test_a_restarted_trainer_cancels_outstanding_losing_members_again(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, STRICT)
    stage.turn()
    for draw in range(2):
        for request in members(stage, draw)[:SIZE]:
            stage.end(request)
    stage.turn()
    losers = [members(stage, draw)[SIZE].rollout_id for draw in range(2)]
    assert sorted(stage.cancelled()) == sorted(losers)

    stage.begin()

    assert sorted(stage.cancelled()) == sorted(2 * losers)
    stage.drain()


def test_a_group_with_too_few_trainable_members_is_dropped_once_complete(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, STRICT)
    stage.turn()
    first = members(stage, 0)

    stage.end(first[0])
    for request in first[1:]:
        stage.end(request, "failed")
    stage.turn()

    counts = {reason: tally.count for reason, tally in stage.trainer.buffer.drops().items()}
    assert counts == {"incomplete": 1, "failed": 2}
    assert stage.cancelled() == []
    stage.drain()


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2), st.sampled_from(["drop", "train_partial"]), st.lists(ACTS, max_size=50))
def test_the_run_ends_with_whole_groups_on_every_schedule(
    staleness: int, missing: str, schedule: list[tuple[str, int]]
) -> None:
    config = changed(SPARE, max_staleness=staleness, missing=missing)
    with TemporaryDirectory() as directory:
        stage = Stage(Path(directory), config)
        for what, number in schedule:
            air = stage.in_the_air()
            if what == "restart":
                stage.begin()
            elif what == "again":
                stage.again(number)
            elif air:
                stage.end(air[number % len(air)], what)
            stage.turn()
            assert stage.trainer.running() == len(stage.in_the_air())
        stage.drain()

        assert [step.step for step in stage.steps()] == [1, 2, 3, 4]
        group_of = {r.rollout_id: r.group_id for r in stage.asked()}
        for step in trained(stage):
            sizes = [
                sum(group_of[r] == group for r in step) for group in {group_of[r] for r in step}
            ]
            assert sizes == [SIZE, SIZE] or missing == "train_partial"


def test_a_checkpoint_without_losers_is_readable_by_older_trainers(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.train(1)

    (newest, *_) = sorted((tmp_path / "checkpoints").glob("v*"), reverse=True)

    assert b'"won"' not in (newest / MANIFEST).read_bytes()


def test_a_negative_redundancy_is_refused_and_zero_changes_no_digest() -> None:
    with pytest.raises(Refused, match="redundancy is -1; give 0"):
        LearnerConfig(redundancy=-1)
    assert LearnerConfig(redundancy=0).digest() == LearnerConfig().digest()
    assert LearnerConfig(redundancy=1).digest() != LearnerConfig().digest()


def test_a_recipe_with_redundancy_trains_and_cancels_its_losers(tmp_path: Path) -> None:
    text = RECIPE.replace("group_size = 4", "group_size = 3\nredundancy = 1")
    world = World(tmp_path, text)

    world.train(world.trainer(), steps=2)
    world.train(world.trainer())

    steps = world.steps()
    assert [len(step.trajectories) for step in steps] == [6, 6, 6, 6]
    assert sum(step.dropped.get("redundant", 0) for step in steps) > 0
    world.close()
