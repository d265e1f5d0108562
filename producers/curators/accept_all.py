"""Start every task that is drawn: uniform draws."""

from rollcall.producers.curators.curator import Curator
from rollcall.schemas.rules import NoOptions, Rule


def accept_all(tasks: int, options: NoOptions) -> Curator:
    """Make a curator that refuses nothing."""
    del tasks, options
    return Curator()


ACCEPT_ALL = Rule("accept_all", "curator", "uniform draws", accept_all, stage="C")
