"""Objects that a rollout leaves in the store: a patch, the output of a command.

They are named in the `info` of the steps of a trajectory, as a list under `artefacts`; of several
with one name the last counts. A trajectory's content is not trusted: an object is used only if it
matches its digest. Content waits in a spool, with little of it in memory, and is stored a few
objects at a time, as each is then in memory.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from rollcall.sandbox.host import Host
from rollcall.schemas.claims import claim_of
from rollcall.schemas.errors import FailureCode, Unavailable, WorkFailed
from rollcall.schemas.messages import Claim, Trajectory

IN_MEMORY_BYTES = 1 << 20
"""The size above which content is in an unnamed file, which ends with its worker."""


class ArtefactSpool:
    """Bytes in order of arrival, up to `most_bytes`; bytes beyond that are only counted."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 (see close)
        self.size = 0
        """The size of all that was written."""

    @property
    def cut(self) -> bool:
        """True if the end is missing."""
        return self.size > self._most_bytes

    def write(self, chunk: bytes) -> None:
        """Append a chunk. Raises WorkFailed(`no_room`) if the disk is full."""
        room = max(0, self._most_bytes - self.size)
        self.size += len(chunk)
        try:
            self._file.write(chunk[:room])
        except OSError as error:
            msg = f"there is no room in {tempfile.gettempdir()} for what a box says: {error}"
            raise WorkFailed(FailureCode.NO_ROOM, msg, retriable=True) from error

    def read(self) -> bytes:
        """Return all that was kept."""
        self._file.seek(0)
        return self._file.read()

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()


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
        raise WorkFailed(FailureCode.BAD_ARTEFACT, msg, retriable=False)
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
            raise WorkFailed(FailureCode.BAD_ARTEFACT, msg, retriable=False)
    name, uri, sha256, size = (listed[key] for key in kinds)
    return Artefact(name, uri, sha256, size, str(listed.get("head", "")))


AT_ONCE = 2
_ROOM: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def keep(host: Host, name: str, spool: ArtefactSpool) -> Artefact:
    """Store a spool's content; return its artefact. Raises WorkFailed(`objects_away`)."""
    room = _ROOM.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
    async with room:
        try:
            return await asyncio.to_thread(_kept, host, name, spool)
        except Unavailable as error:
            raise WorkFailed(FailureCode.OBJECTS_AWAY, str(error), retriable=True) from error


def _kept(host: Host, name: str, spool: ArtefactSpool) -> Artefact:
    """Store the content; blocks."""
    content = spool.read()
    named = claim_of(content)
    claim = Claim(host.keep(name, content), named.sha256, named.size_bytes)
    return artefact(name, claim, content, cut=spool.cut)
