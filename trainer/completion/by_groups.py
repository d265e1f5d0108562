"""Batches of a fixed number of groups."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.completion.waiting import Completion, Waiting


def by_groups(waiting: Waiting, options: NoOptions) -> int:
    """n = `groups_per_step` once that many are complete. Ours."""
    del options
    return waiting.wanted if len(waiting.tokens) >= waiting.wanted else 0


GROUPS: Rule[Completion] = Rule("groups", "batch", "ours", by_groups, stage="C")
