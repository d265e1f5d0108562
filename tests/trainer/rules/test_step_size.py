"""Steps are smaller if few trajectories still count; the schedule is unaffected."""

import numpy as np
import pytest

from rollcall.schemas.rules import NoOptions
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.step_sizes import (
    Pace,
    SampleSize,
    StepStart,
    effective_share,
    ess,
    scheduled,
)
from tests.support.changed_config import changed
from tests.support.golden import golden
from tests.support.scored_trajectories import some_samples


def start(weights: list[float], lengths: list[int] | None = None) -> StepStart:
    return StepStart(np.log(weights), np.array(lengths or [1] * len(weights)))


@golden("step_size", "ess")
@pytest.mark.parametrize(
    ("options", "factor"),
    [
        (SampleSize(), 0.813489),
        (SampleSize(base=0.9), 0.857493),
        (SampleSize(linear=True), 0.661765),
    ],
)
def test_ess_factors_match_published_values(options: SampleSize, factor: float) -> None:
    pace = ess(start([1, 0.5, 2, 0.25]), options)

    assert pace.factor == pytest.approx(factor, abs=5e-7)
    assert pace.metrics["ess_ratio"] == pytest.approx(0.661765, abs=5e-7)


def test_ess_neither_overflows_nor_exceeds_one() -> None:
    assert effective_share(np.array([0.0, -800, 700, -3])) == pytest.approx(0.25)
    assert ess(start([3.0, 3, 3]), SampleSize()).factor == pytest.approx(1)
    assert ess(start([3.0, 3, 3]), SampleSize(base=0.1)).factor == 1
    assert effective_share(np.array([])) == 1


def test_the_geometric_mean_is_over_a_trajectorys_tokens() -> None:
    pace = ess(start([np.exp(4), 1], [4, 7]), SampleSize(level="geometric", linear=True))

    assert pace.factor == pytest.approx((np.e + 1) ** 2 / (np.e**2 + 1) / 2)


@golden("step_size", "scheduled")
def test_a_scheduled_step_has_the_size_of_the_schedule() -> None:
    assert scheduled(start([1, 9]), NoOptions()) == Pace(1.0)


def test_the_next_step_starts_from_the_scheduled_rate(model_directory: str) -> None:
    config = LearnerConfig(lr=1e-2, steps=20, step_size="ess", minibatch=5, epochs=2)
    learner = Learner(model_directory, config)
    for number in range(2):
        told = learner.step(some_samples(number))
        assert told["lr"] == pytest.approx(config.lr_at(number) * told["ess_ratio"] ** 0.5)
        assert 1 / 12 <= told["ess_ratio"] < 1
    plain = Learner(model_directory, changed(config, step_size="scheduled"))
    assert plain.step(some_samples(0))["lr"] == pytest.approx(1e-2)
