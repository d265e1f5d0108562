"""A digest of the values of a configuration that affect what is learned.

A setting added later counts only if it is not its default, so that checkpoints from before it stay
usable, and new ones by an older trainer. Therefore such a default must never change.
"""

import dataclasses
import hashlib

import orjson

from rollcall.schemas.rules import RuleChoice
from rollcall.trainer.config.learner_values import LearnerValues

FIRST = frozenset({
    "advantage", "loss", "clip_low", "clip_high", "clip_dual", "aggregate", "aggregate_norm",
    "entropy", "lr", "schedule", "steps", "betas", "weight_decay", "max_grad_norm", "max_staleness",
    "groups_per_step", "group_size", "capacity_groups", "filters", "missing", "on_stale",
    "temperature", "seed", "micro_batch_tokens", "max_skipped",
})  # fmt: skip
"""Settings that are always in the digest, also with their defaults."""

FREE = frozenset({
    "checkpoint_keep_every", "gradient_checkpointing", "ranks", "save", "announce", "adapter_alone",
})  # fmt: skip
"""Settings that do not affect what is learned, so they may change between checkpoints."""


def learning_digest(config: LearnerValues) -> str:
    """Return the sha256, in hexadecimal."""
    values = {
        field.name: _plain(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if field.name not in FREE
        and (field.name in FIRST or getattr(config, field.name) != field.default)
    }
    return hashlib.sha256(orjson.dumps(values, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _plain(value: object) -> object:
    """Return a value as it is written in a configuration."""
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    return value.plain() if isinstance(value, RuleChoice) else value
