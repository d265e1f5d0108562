"""Shaping changes the inputs of advantages, but not the reported rewards."""

from dataclasses import replace

import numpy as np
import pytest

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import choose
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.catalogue import SHAPINGS
from rollcall.trainer.rules.rewards import Rewards
from tests.support.golden import golden
from tests.support.reward_views import view
from tests.support.scored_trajectories import make_batch, some_samples


def shaped(rule: object, rewards: Rewards) -> list[float]:
    found: np.ndarray = choose("shaping", rule, SHAPINGS)(rewards)
    return found.tolist()


@golden("shaping", "overlong")
def test_overlong_answers_are_penalised_at_published_values() -> None:
    lengths = [16384, 18432, 20480, 20481]

    assert shaped("overlong", view([0.0] * 4, lengths=lengths)) == [0, -0.5, -1, -1]
    small = {"name": "overlong", "most": 8, "cache": 4}
    assert shaped(small, view([1.0] * 3, lengths=[4, 6, 9])) == [1, 0.5, 0]


@golden("shaping", "no_submit")
def test_a_rollout_that_ends_at_a_limit_is_penalised() -> None:
    rewards = view([0.0, 1.0, 0.3], ends=("turn_limit", "finished", "token_limit"))

    assert shaped("no_submit", rewards) == [-0.5, 1.0, -0.5]
    assert shaped({"name": "no_submit", "reward": -1}, rewards) == [-1, 1.0, -1]


def test_advantages_use_shaped_rewards_and_metrics_use_scored_ones() -> None:
    samples = [replace(sample, reward=1.0) for sample in some_samples(0)]
    shaping = LearnerConfig.of({"shaping": [{"name": "overlong", "most": 8, "cache": 7}]})

    plain, short = make_batch(samples, LearnerConfig()), make_batch(samples, shaping)

    assert not plain.advantages_N.any()
    assert short.advantages_N[np.argmin(short.lengths_N)] > 0
    assert short.rewards_N.tolist() == [1.0] * len(samples)


def test_an_unknown_shaping_rule_is_refused() -> None:
    with pytest.raises(Refused, match="unknown shaping 'overlon'; did you mean 'overlong'"):
        LearnerConfig.of({"shaping": ["overlon"]})
    with pytest.raises(Refused, match="cache is 0; give 1 to 20480"):
        LearnerConfig.of({"shaping": [{"name": "overlong", "cache": 0}]})
