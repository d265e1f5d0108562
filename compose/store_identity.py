"""Which object store a cluster's heavy records lie in, so that every process has the same one.

The first record on `stores` holds an identity, and a store that belongs to the cluster holds a file
named after it. Who starts the first worker with a store gives the identity. From then on nobody
works with another store, or without one, whatever directory or address it was started with. A
store that is moved takes the file along.
"""

import secrets
import sys
from typing import TYPE_CHECKING, Protocol

from schemas.claims import NO_STORE
from schemas.errors import (
    DeliveryFailed,
    ObjectLost,
    StoresDiffer,
    TopicsDiffer,
    Unavailable,
    WireError,
)
from schemas.foreign_text import shown
from schemas.messages import Claim, StoreIdentity

if TYPE_CHECKING:
    from consumers.log.protocols import Log
    from schemas.codec import Codec
    from schemas.objects import ObjectStore
    from schemas.topics import Topics

STORE = "objects"
FLUSH_S = 30.0


class Place(Protocol):
    """What is needed of a cluster."""

    @property
    def log(self) -> "Log": ...

    @property
    def topics(self) -> "Topics": ...

    @property
    def codec(self) -> "Codec": ...

    @property
    def objects(self) -> "ObjectStore | None": ...


def check_store(here: Place) -> None:
    """Have the store of this process be the cluster's; the first with a store says which that is.

    Raises StoresDiffer where it is not, and Unavailable.
    """
    if here.objects is not None:
        identify(here, here.objects, True)
    elif identity := recorded(here):
        raise _without(identity)


def identify(here: Place, store: "ObjectStore", write: bool) -> str:
    """The identity that a store has for the cluster; empty where none is known.

    With `write` it is given one then. Raises StoresDiffer for the store of another cluster,
    Unavailable, DeliveryFailed.
    """
    identity = recorded(here)
    if not identity and write:
        identity = _first(here, store)
    if identity and not store.bears(identity):
        msg = (
            f"objects.url is {store.url!r}, which is not the store that this cluster's heavy "
            f"records lie in: it holds no file {_file(identity)}. Give the URL that the other "
            "workers have; where the store was moved, move that file along, and where it is lost "
            "for good, create it"
        )
        raise StoresDiffer(msg)
    return identity


def recorded(here: Place) -> str:
    """The identity that the log tells; empty where it tells none.

    Raises Unavailable, also where the registry is not the one that the record was written with.
    """
    from consumers.log.reading import read_all

    try:
        for record in read_all(here.log, [here.topics.stores]):
            try:
                found = here.codec.decode(record.value, StoreIdentity)
            except WireError:
                continue  # somebody's bad bytes name no store
            if found.store == STORE and _is_identity(found.identity):
                return found.identity
    except TopicsDiffer:
        return ""  # a cluster of an earlier release has no such topic
    return ""


def _first(here: Place, store: "ObjectStore") -> str:
    """Offer an identity for the store; the one that came first in the log."""
    try:
        here.log.partitions(here.topics.stores)
    except TopicsDiffer:
        return ""
    mine = StoreIdentity(STORE, secrets.token_hex(16))
    store.bear(mine.identity)
    out = here.log.publisher()
    value = here.codec.encode(here.topics.stores, mine)
    out.send(here.topics.stores, STORE, value, partition=0)
    if out.flush(FLUSH_S):
        msg = f"the identity of {store.url!r} was not acked within {FLUSH_S:g} s; start again"
        raise DeliveryFailed(msg)
    return recorded(here)


class NoStore:
    """Stands where no store of objects is set: nothing is put there, and a claim leads nowhere."""

    above_bytes = sys.maxsize

    def __init__(self, here: Place) -> None:
        self._here = here

    def put(self, value: bytes) -> Claim:
        """Raise Unavailable: an artefact, say, is not kept."""
        msg = f"{len(value):,} bytes are not kept: {NO_STORE}"
        raise Unavailable(msg)

    def get(self, claim: Claim) -> bytes:
        """Raise ObjectLost, and StoresDiffer where the cluster has got a store since."""
        if identity := recorded(self._here):
            raise _without(identity)
        msg = f"object {shown(claim.sha256)} is nowhere: {NO_STORE}"
        raise ObjectLost(msg)


def _without(identity: str) -> StoresDiffer:
    return StoresDiffer(
        "the heavy records of this cluster lie in a store of objects, and none is set here; set "
        f"ROLLCALL_OBJECTS__URL as its other workers have it (it holds a file {_file(identity)})"
    )


def _file(identity: str) -> str:
    from schemas.objects import MARK

    return f"{MARK}.{identity}"


def _is_identity(text: str) -> bool:
    return len(text) == 32 and set(text) <= set("0123456789abcdef")
