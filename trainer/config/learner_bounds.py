"""Bounds of single values of `[learner]`; combinations are checked in `fitting`."""

from collections.abc import Callable, Mapping
from math import isfinite

from rollcall.schemas import names
from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import choose
from rollcall.trainer.config.learner_values import LearnerValues
from rollcall.trainer.rules.catalogue import KINDS

FLOAT32, BFLOAT16 = PRECISIONS = ("float32", "bfloat16")

PACKINGS = ("rows", "shared", "packed")
SWITCHES = ("exact", "gradient_checkpointing", "stream", "adapter_alone")
NAMED = {
    "packing": PACKINGS, "precision": PRECISIONS,
    "save": ("sync", "async"), "announce": ("durable", "early"),
}  # fmt: skip
"""Settings with a fixed set of names that are not rules."""

BOUNDS: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "clip_low": (lambda x: 0 <= x <= 1, "give a number in [0, 1]"),
    "clip_high": (lambda x: x >= 0, "give a number of at least 0"),
    "clip_dual": (lambda x: x == 0 or x > 1, "give 0 (off) or a number above 1, such as 3"),
    "aggregate_norm": (lambda x: x >= 0, "give a number of tokens"),
    "entropy": (lambda x: x >= 0, "give 0 (off) or a small number, such as 0.01"),
    "lr": (lambda x: x > 0, "give a number above 0"),
    "steps": (lambda x: x >= 1, "give at least 1"),
    "weight_decay": (lambda x: x >= 0, "give 0 (off) or more"),
    "max_grad_norm": (lambda x: x > 0, "give a number above 0, such as 1"),
    "max_staleness": (lambda x: x >= 0, "give 0 (only the current weights) or more"),
    "stale_wait_s": (lambda x: x >= 0, "give 0 (no wait) or a number of seconds"),
    "stale_wait_steps": (lambda x: x >= 0, "give 0 (any number) or a number of batches"),
    "replay_ratio": (lambda x: 0 <= x < 1, "give a share in [0, 1), such as 0.25"),
    "replay_capacity": (lambda x: x >= 1, "give at least 1"),
    "replay_max_age": (lambda x: x >= 0, "give a number of versions"),
    "replay_max_uses": (lambda x: x >= 1, "give at least 1"),
    "success_pool": (lambda x: x >= 0, "give 0 (none) or a number of tasks"),
    "groups_per_step": (lambda x: x >= 1, "give at least 1"),
    "group_size": (lambda x: x >= 1, "give at least 1"),
    "over_provision": (lambda x: 1 <= x <= 64, "give 1 (none), or such as 2"),
    "retention": (lambda x: x >= 0, "give 0 (no bound) or a number of rounds"),
    "redundancy": (lambda x: x >= 0, "give 0 (none), or 1 or 2 for environments that straggle"),
    "capacity_groups": (lambda x: x >= 1, "give at least groups_per_step"),
    "temperature": (lambda x: x > 0, "greedy samples teach nothing; give a number above 0"),
    "micro_batch_tokens": (lambda x: x >= 1, "give what fits into memory, such as 16384"),
    "max_skipped": (lambda x: x >= 1, "give at least 1"),
    "ranks": (lambda x: x >= 1 and x == int(x), "give 1, or as many as there are devices"),
    "epochs": (lambda x: x >= 1, "give at least 1"),
    "minibatch": (lambda x: x >= 0, "give 0 (the whole batch) or a number of trajectories"),
    "checkpoint_keep_every": (lambda x: x >= 0, "give 0 (none) or a number of versions"),
}


def require_bounds(config: LearnerValues) -> None:
    """Raise Refused for the first value that is out of bounds or unknown."""
    for key, rules in KINDS.items():
        value = getattr(config, key)
        for each in value if isinstance(value, tuple) else (value,):
            choose(key, each, rules)
    for key, (holds, remedy) in BOUNDS.items():
        value = getattr(config, key)
        if value is not None and not (isfinite(value) and holds(value)):
            msg = f"{key} is {value!r}; {remedy}"
            raise Refused(msg)
    if not all(0 <= beta < 1 for beta in config.betas) or len(config.betas) != 2:
        msg = f"betas is {config.betas!r}; give two numbers in [0, 1), such as (0.9, 0.95)"
        raise Refused(msg)
    for key, known in NAMED.items():
        if getattr(config, key) not in known:
            raise names.unknown_name(key, getattr(config, key), known)
    for key in SWITCHES:
        if not isinstance(getattr(config, key), bool):
            msg = f"{key} is {getattr(config, key)!r}; give true or false"
            raise Refused(msg)
