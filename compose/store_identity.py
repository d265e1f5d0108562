"""The identity of the object store of a cluster, so that every process uses the same store.

The first record on `stores` holds an identity, and the cluster's store holds a file named after it.
The first worker with a store sets the identity. From then on no process can use another store, or
none, whatever directory or address it was started with. A store that is moved keeps the file.
"""

import secrets
import sys
from typing import TYPE_CHECKING, Protocol

from rollcall.schemas.claims import NO_STORE
from rollcall.schemas.errors import (
    DeliveryFailed,
    ObjectLost,
    StoresDiffer,
    TopicsDiffer,
    Unavailable,
    WireError,
)
from rollcall.schemas.messages import Claim, StoreIdentity
from rollcall.schemas.untrusted_text import describe_value

if TYPE_CHECKING:
    from rollcall.consumers.log.protocols import Log
    from rollcall.schemas.codec import Codec
    from rollcall.schemas.objects import ObjectStore
    from rollcall.schemas.topics import Topics

STORE = "objects"
FLUSH_S = 30.0


class ClusterParts(Protocol):
    """The parts of a cluster that are needed here."""

    @property
    def log(self) -> "Log": ...

    @property
    def topics(self) -> "Topics": ...

    @property
    def codec(self) -> "Codec": ...

    @property
    def objects(self) -> "ObjectStore | None": ...


def check_store(here: ClusterParts) -> None:
    """Require that this process has the cluster's store; the first with a store sets it.

    Raises StoresDiffer, and Unavailable.
    """
    if here.objects is not None:
        identify(here, here.objects, True)
    elif identity := recorded(here):
        raise _without(identity)


def identify(here: ClusterParts, store: "ObjectStore", write: bool) -> str:
    """Return the identity that a store has for the cluster; empty if none is known.

    With `write` it then gets one. Raises StoresDiffer for the store of another cluster,
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


def recorded(here: ClusterParts) -> str:
    """Return the identity recorded in the log; empty if there is none.

    Raises Unavailable, also if the registry is not the one that the record was written with.
    """
    from rollcall.consumers.log.reading import read_all

    try:
        for record in read_all(here.log, [here.topics.stores]):
            try:
                found = here.codec.decode(record.value, StoreIdentity)
            except WireError:
                continue  # unreadable bytes name no store
            if found.store == STORE and _is_identity(found.identity):
                return found.identity
    except TopicsDiffer:
        return ""  # a cluster of an earlier release has no such topic
    return ""


def _first(here: ClusterParts, store: "ObjectStore") -> str:
    """Offer an identity for the store; return the one that is first in the log."""
    try:
        here.log.partitions(here.topics.stores)
    except TopicsDiffer:
        return ""
    mine = StoreIdentity(STORE, secrets.token_hex(16))
    # The store is marked before the record is written, so a recorded identity has its store.
    store.bear(mine.identity)
    out = here.log.publisher()
    value = here.codec.encode(here.topics.stores, mine)
    out.send(here.topics.stores, STORE, value, partition=0)
    if out.flush(FLUSH_S):
        msg = f"the identity of {store.url!r} was not acked within {FLUSH_S:g} s; start again"
        raise DeliveryFailed(msg)
    return recorded(here)


class NoStore:
    """A stand-in if no object store is set: it stores nothing and resolves no claim."""

    above_bytes = sys.maxsize

    def __init__(self, here: ClusterParts) -> None:
        self._here = here

    def put(self, value: bytes) -> Claim:
        """Raise Unavailable, as nothing (an artefact, say) can be stored."""
        msg = f"{len(value):,} bytes are not kept: {NO_STORE}"
        raise Unavailable(msg)

    def get(self, claim: Claim) -> bytes:
        """Raise ObjectLost, or StoresDiffer if the cluster has got a store since."""
        if identity := recorded(self._here):
            raise _without(identity)
        msg = f"object {describe_value(claim.sha256)} is nowhere: {NO_STORE}"
        raise ObjectLost(msg)


def _without(identity: str) -> StoresDiffer:
    return StoresDiffer(
        "the heavy records of this cluster lie in a store of objects, and none is set here; set "
        f"ROLLCALL_OBJECTS__URL as its other workers have it (it holds a file {_file(identity)})"
    )


def _file(identity: str) -> str:
    from rollcall.schemas.objects import MARK

    return f"{MARK}.{identity}"


def _is_identity(text: str) -> bool:
    return len(text) == 32 and set(text) <= set("0123456789abcdef")
