"""A learner's configuration with some values changed."""

from typing import Any

from rollcall.trainer.config.learner_config import LearnerConfig


def changed(config: LearnerConfig, **values: Any) -> LearnerConfig:
    """Return the configuration with these values, by their keys without tables."""
    return type(config)(**config.given() | values)
