"""Bindings of schema ids to schemas, to detect a registry that assigns its ids anew.

A registry that was restored from a backup, or another one at the same address, may assign an id to
another schema. Two versions of a record that differ in the order of two fields would then be read
as one another without any error. In an intact registry an id never changes its meaning, so the
first one counts. The log keeps it, in records that consist of headers only, which can be read
without the registry.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from rollcall.schemas.bounded import whole_number
from rollcall.schemas.circuit_breaker import CircuitBreaker
from rollcall.schemas.errors import RegistryDiffers
from rollcall.schemas.headers import Headers, texts
from rollcall.schemas.untrusted_text import clean_text

FINGERPRINT_CHARS = 32
HEX = frozenset("0123456789abcdef")
SCHEMA_ID = "schema_id"
"""A header of every record about an id."""
FINGERPRINT = "schema_fingerprint"
FORGOTTEN_BY = "forgotten_by"
NAME_CHARS = 200

FirstTies = Callable[[Mapping[int, str]], Mapping[int, str]]
"""Takes fingerprints by schema id; returns the first one known for each id, or the given one."""


class SchemaMemory:
    """A cache of schemas by id. Several threads may use it."""

    def __init__(
        self, first: FirstTies | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`first` is asked about ids that are new to this process; by default a dictionary."""
        self._first = first or first_in({})
        self._agreed: dict[int, str] = {}
        self._ask = CircuitBreaker(clock).ask
        self._lock = threading.Lock()

    def tie(self, schema_id: int, canonical: str) -> None:
        """Tie an id to a schema, given by its canonical form; see `tie_all`."""
        self.tie_all({schema_id: canonical})

    def tie_all(self, schemas: Mapping[int, str]) -> None:
        """Tie ids to schemas, given by their canonical forms.

        Raises RegistryDiffers where one was tied to another schema, and Unavailable.
        """
        found = {schema_id: fingerprint(form) for schema_id, form in schemas.items()}
        new = {each: form for each, form in found.items() if self._agreed.get(each) != form}
        if not new:
            return
        with self._lock:
            first = self._ask(lambda: self._first(new))
        for schema_id, form in new.items():
            if first[schema_id] != form:
                msg = (
                    f"the registry returns another schema than before for id {schema_id}: it has "
                    "assigned its ids anew, or is not the registry that the log was written with. "
                    "Restore the registry's data. If this registry is right and a wrong one was "
                    f"asked first, run `rollcall topics forget-id {schema_id}`"
                )
                raise RegistryDiffers(msg)
        self._agreed |= new


def first_in(known: dict[int, str]) -> FirstTies:
    """Keep the first ties in a dictionary."""
    return lambda offered: {each: known.setdefault(each, form) for each, form in offered.items()}


@lru_cache(maxsize=1024)
def fingerprint(canonical: str) -> str:
    """Return the digest that identifies a schema."""
    return sha256(canonical.encode(errors="replace")).hexdigest()[:FINGERPRINT_CHARS]


@dataclass(frozen=True, slots=True)
class IdRecord:
    """One record of the log about a schema id: its binding to a schema, or the end of it."""

    schema_id: int
    fingerprint: str = ""
    """Empty if the binding ends."""
    forgotten_by: str = ""

    def headers(self) -> Headers:
        """Return the record's headers; its value is empty."""
        told = (
            (FINGERPRINT, self.fingerprint)
            if self.fingerprint
            else (FORGOTTEN_BY, clean_text(self.forgotten_by, NAME_CHARS))
        )
        return [(name, text.encode()) for name, text in ((SCHEMA_ID, str(self.schema_id)), told)]


def id_record(headers: Headers) -> IdRecord | None:
    """Read a record about a schema id; None for headers of any other form."""
    told = texts(headers) if len(headers) == 2 else {}
    schema_id = whole_number(told.get(SCHEMA_ID, ""))
    if schema_id is None:
        return None
    if FORGOTTEN_BY in told:
        return IdRecord(schema_id, forgotten_by=told[FORGOTTEN_BY])
    found = told.get(FINGERPRINT, "")
    is_fingerprint = len(found) == FINGERPRINT_CHARS and HEX.issuperset(found)
    return IdRecord(schema_id, found) if is_fingerprint else None
