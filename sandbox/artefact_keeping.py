"""Storing of artefacts in the object store, a few at a time, as each is then in memory."""

import asyncio
from weakref import WeakKeyDictionary

from rollcall.sandbox.artefact_spool import ArtefactSpool
from rollcall.sandbox.artefacts import Artefact, artefact
from rollcall.sandbox.host import Host
from rollcall.schemas.claims import claim_of
from rollcall.schemas.errors import Unavailable, WorkFailed
from rollcall.schemas.messages import Claim

AT_ONCE = 2
_ROOM: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def keep(host: Host, name: str, spool: ArtefactSpool) -> Artefact:
    """Store a spool's content; return its artefact. Raises WorkFailed(`objects_away`)."""
    room = _ROOM.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
    async with room:
        try:
            return await asyncio.to_thread(_kept, host, name, spool)
        except Unavailable as error:
            raise WorkFailed("objects_away", str(error), retriable=True) from error


def _kept(host: Host, name: str, spool: ArtefactSpool) -> Artefact:
    """Store the content; blocks."""
    content = spool.read()
    named = claim_of(content)
    claim = Claim(host.keep(name, content), named.sha256, named.size_bytes)
    return artefact(name, claim, content, cut=spool.cut)
