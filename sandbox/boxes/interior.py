"""What a program finds in a box that isolates, whichever driver made it."""

from collections.abc import Iterable

from sandbox.boxes.box import VARIABLES, Spec

HOME = "/w"
USER = 1000
"""Who a program in a box is, to itself."""
TTL_S = 86_400
"""A box that nobody is left to remove ends then."""
# Waits without a child, and without one that is dead: those that it inherits are gone at once.
WAIT = f"env --ignore-signal=CHLD sleep {TTL_S}"
"""The first process of a box, which holds it."""


def variables(spec: Spec, image: Iterable[str] = ()) -> dict[str, str]:
    """What every program of a box finds in its environment.

    The base are the variables of its image, as `NAME=value`: an image of conda, Go or Rust says by
    its PATH where its programs are.
    """
    own = dict(entry.split("=", 1) for entry in image if "=" in entry)
    return {**VARIABLES, **own, "HOME": HOME, "TMPDIR": "/tmp", **spec.env}
