"""Objects that a rollout leaves in the store: a patch, the output of a command.

They are named in the `info` of the steps of a trajectory, as a list under `artefacts`; of several
with one name the last counts. A trajectory's content is not trusted: an object is used only if it
matches its digest.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import Claim, Trajectory

PATCH = "patch"
"""The name of the output of `git diff --binary` between the begin and the end of an episode."""
OUTPUT = "output"
"""The name of a command's full output, of which an observation shows the beginning and the end."""
KEY = "artefacts"
HEAD_BYTES = 2000
"""The bytes of an object's beginning that are copied into `info`, for people."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """An object with its name in one rollout."""

    name: str
    uri: str
    sha256: str
    size: int
    head: str = ""
    cut: bool = False
    """True if its end is missing."""

    def as_info(self) -> dict[str, object]:
        """Return its entry in the list under KEY."""
        return {each: getattr(self, each) for each in self.__slots__ if each != "cut" or self.cut}

    @property
    def claim(self) -> Claim:
        """The claim with which the store is asked for it."""
        return Claim(self.uri, self.sha256, self.size)


def artefact(name: str, claim: Claim, content: bytes, *, cut: bool = False) -> Artefact:
    """Return the artefact of an object that was stored under this claim."""
    head = content[:HEAD_BYTES].decode(errors="replace")
    return Artefact(name, claim.uri, claim.sha256, claim.size_bytes, head, cut)


def last_artefact(trajectory: Trajectory, name: str) -> Artefact | None:
    """Return the last artefact of a name, or None. Raises WorkFailed(`bad_artefact`)."""
    if trajectory.steps is None:
        msg = f"the steps of rollout {trajectory.rollout_id!r} lie elsewhere; resolve its claim"
        raise WorkFailed("bad_artefact", msg, retriable=False)
    for step in reversed(trajectory.steps):
        for listed in reversed(list(_listed(step.info))):
            if listed.get("name") == name:
                return _artefact(listed)
    return None


def _listed(info: str) -> Iterator[dict[str, Any]]:
    if KEY not in info:
        return
    try:
        found = json.loads(info)
    except (ValueError, RecursionError):
        return
    listed = found.get(KEY) if isinstance(found, dict) else None
    yield from (each for each in listed or () if isinstance(each, dict))


def _artefact(listed: dict[str, Any]) -> Artefact:
    kinds = {"name": str, "uri": str, "sha256": str, "size": int}
    for key, kind in kinds.items():
        if not isinstance(listed.get(key), kind):
            msg = f"artefact {listed.get('name')!r} has {key} {str(listed.get(key))[:80]!r}, "
            msg += f"where there should be a {kind.__name__}"
            raise WorkFailed("bad_artefact", msg, retriable=False)
    name, uri, sha256, size = (listed[key] for key in kinds)
    return Artefact(name, uri, sha256, size, str(listed.get("head", "")))
