"""What a program finds in a box that isolates, whichever driver made it."""

from sandbox.boxes.box import VARIABLES, Spec

HOME = "/w"
USER = 1000
"""Who a program in a box is, to itself."""
TTL_S = 86_400
"""A box that nobody is left to remove ends then."""
# Waits without a child, and without one that is dead: those that it inherits are gone at once.
WAIT = f"env --ignore-signal=CHLD sleep {TTL_S}"
"""The first process of a box, which holds it."""


def variables(spec: Spec) -> dict[str, str]:
    """What every program of a box finds in its environment."""
    return {**VARIABLES, "HOME": HOME, "TMPDIR": "/tmp", **spec.env}
