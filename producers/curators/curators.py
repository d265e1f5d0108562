"""Every curator that a recipe can choose by name; `accept_all` starts every task that is drawn."""

from collections.abc import Sequence
from typing import Any

from rollcall.producers.curators.curator import Curator
from rollcall.producers.curators.greso import GRESO
from rollcall.producers.curators.rollout_limits import ADAPTIVE_ROLLOUTS, LENGTH_CAP
from rollcall.producers.curators.task_choice import FILTER_SOLVED, PACED, PASS_RATE
from rollcall.schemas.rules import NoOptions, Rule, choose, table


def accept_all(tasks: int, options: NoOptions) -> Curator:
    """Make a curator that refuses nothing."""
    del tasks, options
    return Curator()


ACCEPT_ALL = Rule("accept_all", "curator", "uniform draws", accept_all, stage="C")


CURATORS = table(ACCEPT_ALL, PASS_RATE, FILTER_SOLVED, GRESO, PACED, ADAPTIVE_ROLLOUTS, LENGTH_CAP)


def curators_of(value: object, tasks: int) -> tuple[Curator, ...]:
    """Return the curators of a recipe's `curator`: a name, a table with options, or several.

    With several, all must admit a task, and the smallest group and the fewest turns apply.
    None, or `accept_all` alone, means uniform draws, with nothing to fold. Raises Refused.
    """
    named: Sequence[Any] = value if isinstance(value, list | tuple) else [value] if value else []
    chosen = [choose("curator", each, CURATORS) for each in named]
    made = [each(tasks) for each in chosen if each.rule is not ACCEPT_ALL]
    return tuple(made)
