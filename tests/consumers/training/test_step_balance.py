"""Every step records its rollouts, their outcomes and the trainer's wait."""

from pathlib import Path

import pytest

from rollcall.consumers.training.step_balance import StepBalance
from rollcall.trainer.curation.drops import Tally
from tests.support.changed_config import changed
from tests.support.scored_trajectories import sample, scored
from tests.support.staged_run import CONFIG, Stage


def test_a_step_reports_produced_rollouts_with_lengths_and_wait() -> None:
    now = [100.0]
    balance = StepBalance(lambda: now[0])
    balance.begin({"failed": Tally(3, 30), "redundant": Tally(1, 5)})
    samples = [sample(scored(f"r{n}"), n) for n in range(4)]
    drops = {
        "failed": Tally(4, 50), "redundant": Tally(3, 11), "stale": Tally(1, 10),
        "other_run": Tally(9, 90), "duplicate": Tally(2, 2),
    }  # fmt: skip
    now[0] = 110.0

    told = balance.step(106.0, samples, drops, held=5)

    assert told == pytest.approx({
        "produced": 4 + 2 + 2 + 5, "used": 4, "dropped": 2, "cancelled": 2,
        "length_used": 1, "length_dropped": 15, "length_cancelled": 3,
        "wait_seconds": 6, "cycle_seconds": 10, "wait_share": 0.6,
    })  # fmt: skip
    now[0] = 111.0
    balance.waits()
    now[0] = 114.0
    again = balance.step(112.0, samples, drops, held=1)
    assert (again["produced"], again["wait_seconds"], again["cycle_seconds"]) == (0, 1, 4)


def test_the_steps_of_a_run_count_every_rollout_once_across_restarts(tmp_path: Path) -> None:
    stage = Stage(tmp_path, changed(CONFIG, redundancy=1, max_staleness=1))
    for steps in range(1, 5):
        stage.train(steps)
        stage.begin()
    steps = [step.metrics for step in stage.steps()]

    for told in steps:
        assert told["used"] == CONFIG.groups.per_step * CONFIG.groups.size
        assert told["produced"] >= told["used"] + told["dropped"] + told["cancelled"]
        assert 0 <= told["wait_share"] <= 1
    assert sum(told["used"] for told in steps) == stage.trainer.buffer.used
