"""Every task that is drawn is started: uniform draws."""

from producers.curators.curator import Curator
from schemas.rules import NoOptions, Rule


def accept_all(tasks: int, options: NoOptions) -> Curator:
    """A curator that refuses nothing."""
    del tasks, options
    return Curator()


ACCEPT_ALL = Rule("accept_all", "curator", "uniform draws", accept_all, stage="C")
