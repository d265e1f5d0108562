"""The names of our own packages, and whether it is ours that are found under them."""

from importlib.util import find_spec
from pathlib import Path

ROOMS = (
    "schemas", "producers", "consumers", "inference", "sandbox", "trainer", "compose", "rollcall",
)  # fmt: skip
"""The public face among them; a user's module of such a name is never found."""


def clash() -> str:
    """Return the complaint if another module is found under the name of one of ours, else empty."""
    ours = Path(__file__).parents[1]
    for room in ROOMS:
        spec = find_spec(room)
        if spec is not None and spec.origin and Path(spec.origin).parent != ours / room:
            return hides(spec.origin, room)
    return ""


def hides(place: str, room: str) -> str:
    """Return the complaint about one module."""
    return (
        f"{place} is found where Rollcall's own package {room!r} is meant; rename it, or take its "
        "folder out of PYTHONPATH"
    )
