"""Groups that failed explore, the others as the configuration says."""

import numpy as np
import pytest

from schemas.errors import Refused
from schemas.rules import choose
from tests.support.golden import golden
from tests.support.reward_views import view
from trainer.catalogue import EXPLORATIONS
from trainer.config import LearnerConfig
from trainer.rewards import Rewards


def weights(rule: object, rewards: Rewards) -> list[float]:
    found: np.ndarray = choose("exploration", rule, EXPLORATIONS)(rewards, 0.01)
    return found.tolist()


@golden("exploration", "even")
def test_everybody_explores_alike_unless_a_rule_says_otherwise() -> None:
    assert weights("even", view([1, 0, 0], [0, 0, 1])) == [0.01] * 3
    assert LearnerConfig().exploration_rule().rule.name == "even"


@golden("exploration", "explore_failed")
def test_a_group_without_a_success_explores_more() -> None:
    rewards = view([1, -0.1, 0, -0.05, 0.2, 0], [0, 0, 1, 1, 2, 2])
    stricter = {"name": "explore_failed", "weight": 0.1, "above": 0.5}

    assert weights("explore_failed", rewards) == [0.01, 0.01, 0.05, 0.05, 0.01, 0.01]
    assert weights(stricter, rewards) == [0.01, 0.01, 0.1, 0.1, 0.1, 0.1]


def test_a_weight_below_nothing_is_refused() -> None:
    with pytest.raises(Refused, match="exploration 'explore_failed': weight is -1"):
        LearnerConfig.of({"exploration": {"name": "explore_failed", "weight": -1}})
