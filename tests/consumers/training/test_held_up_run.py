"""A run with only filtered groups, or with steps that wait for stragglers, progresses."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rollcall.consumers.training.stall_detector import NO_BATCH_S
from tests.support.changed_config import changed
from tests.support.staged_run import CONFIG, Stage
from tests.support.tiers import cases


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_filtered_group_is_trained_after_ten_minutes_without_a_batch(
    tmp_path: Path,
) -> None:
    config = changed(
        CONFIG, filters=("zero_variance",), groups_per_step=1, advantage="grpo", steps=1
    )
    stage = Stage(tmp_path, config, rewards=lambda request: 0.0)
    clock = Clock()
    stage.trainer.stall_detector.clock = clock
    stage.trainer.stall_detector.begin()

    def groups(count: int) -> None:
        for _ in range(count):
            group_id = stage.in_the_air()[0].group_id
            for request in [r for r in stage.in_the_air() if r.group_id == group_id]:
                stage.end(request)
            stage.turn()

    stage.turn()
    groups(3)
    before = stage.trainer.learner.steps_done
    clock.now = NO_BATCH_S + 1
    stage.turn()
    with capture_logs() as logs:
        groups(1)

    (said,) = [each for each in logs if each["event"] == "group_forced_through"]
    assert (before, stage.trainer.learner.steps_done) == (0, 1)
    assert said["dropped_zero_variance"] == 6
    assert "10 minutes" in said["why"]


@pytest.mark.parametrize("restart", cases([False, True], {True}))
def test_a_step_waits_for_a_straggler_even_after_a_restart(tmp_path: Path, restart: bool) -> None:
    # Given a run at version 1 in which one member of the first groups has not ended
    config = changed(
        CONFIG, on_stale="wait", max_staleness=1, groups_per_step=1, advantage="grpo", steps=5
    )
    stage = Stage(tmp_path, config)
    stage.turn()
    straggler = stage.asked()[0]

    def others(turns: int) -> None:
        for _ in range(turns):
            for request in stage.in_the_air():
                if request.rollout_id != straggler.rollout_id:
                    stage.end(request)
            stage.turn()
            if restart:
                stage.begin()

    # When all others end, again and again
    others(6)
    held_up = stage.trainer.learner.steps_done
    stage.end(straggler)
    others(3)

    # Then nothing made the straggler's group stale, and it was trained on
    assert held_up == 1
    assert stage.trainer.learner.steps_done > held_up
    assert "stale" not in {reason for step in stage.steps() for reason in step.dropped}
