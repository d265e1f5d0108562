"""Every curator that a recipe can choose by name."""

from collections.abc import Sequence
from typing import Any

from rollcall.producers.curators.accept_all import ACCEPT_ALL
from rollcall.producers.curators.adaptive_rollouts import ADAPTIVE_ROLLOUTS
from rollcall.producers.curators.curator import Curator
from rollcall.producers.curators.filter_solved import FILTER_SOLVED
from rollcall.producers.curators.greso import GRESO
from rollcall.producers.curators.length_cap import LENGTH_CAP
from rollcall.producers.curators.paced import PACED
from rollcall.producers.curators.pass_rate import PASS_RATE
from rollcall.schemas.rules import choose, table

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
