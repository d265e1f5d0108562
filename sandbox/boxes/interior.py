"""The surroundings of a program in an isolated box, the same for all drivers."""

from collections.abc import Iterable

from rollcall.sandbox.boxes.box import VARIABLES, Spec

HOME = "/w"
USER = 1000
"""The user id of a program in a box, as it sees it."""
TTL_S = 86_400
"""Seconds after which a box ends that was never removed."""
# It ignores SIGCHLD, so the kernel reaps at once the orphans that it inherits: no zombies stay.
WAIT = f"env --ignore-signal=CHLD sleep {TTL_S}"
"""The command of a box's first process, which holds the namespaces."""


def box_environment(spec: Spec, image: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment of every program in a box.

    It includes the variables of the image, as `NAME=value`: images of conda, Go or Rust state the
    directories of their programs in PATH.
    """
    own = dict(entry.split("=", 1) for entry in image if "=" in entry)
    return {**VARIABLES, **own, "HOME": HOME, "TMPDIR": "/tmp", **spec.env}
