"""A run that trains on some groups again: its accounts hold, also across a restart."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.schemas.trajectory_refs import refs_of
from tests.support.changed_config import changed
from tests.support.staged_run import CONFIG, Stage
from tests.support.tiers import examples

REPLAYING = changed(CONFIG, steps=6, replay_ratio=0.5, success_pool=2, max_staleness=0, loss="m2po")


def replayed(stage: Stage) -> list[int]:
    return [int(step.metrics.get("replayed", 0)) for step in stage.steps()]


def test_half_of_each_step_is_replayed_and_half_is_newly_requested(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, REPLAYING)

    stage.drain()

    assert replayed(stage) == [0, 2, 2, 2, 2, 2]
    assert [len(refs_of(step)) for step in stage.steps()] == [2, 4, 4, 4, 4, 4]
    assert stage.trainer.buffer.used == 12


def test_a_restarted_trainer_keeps_its_replay_pool(tmp_path: Path) -> None:
    stage = Stage(tmp_path, REPLAYING)
    stage.train(3)
    before = stage.trainer.buffer.replay.book()

    after = stage.begin().buffer.replay.book()
    stage.drain()

    assert after == before
    assert before.groups
    assert replayed(stage) == [0, 2, 2, 2, 2, 2]


@settings(max_examples=examples(4))
@given(
    st.lists(st.sampled_from(["finished", "finished", "failed", "torn", "restart"]), max_size=14)
)
def test_a_replaying_run_finishes_all_steps_on_every_schedule(
    tmp_path_factory: pytest.TempPathFactory, schedule: list[str]
) -> None:
    stage = Stage(tmp_path_factory.mktemp("run"), REPLAYING)
    for what in schedule:
        air = stage.in_the_air()
        if what == "restart":
            stage.begin()
        elif air:
            stage.end(air[0], what)
        stage.turn()
    stage.drain()

    assert [step.step for step in stage.steps()] == [1, 2, 3, 4, 5, 6]
