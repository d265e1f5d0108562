"""What each schema id has stood for, so that a registry that deals its ids anew is noticed.

A registry that came back from a backup, or another one under the same address, may give an id to
another schema. Two versions of one record that differ in the order of two fields are then read as
one another, and no error says so. An id never changes its meaning in a registry that is whole, so
the first answer is kept: in the process, and in a file that later processes read.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import structlog

from schemas.bounded import whole_number
from schemas.errors import RegistryDiffers
from schemas.private_folders import make_private

FILE_BYTES = 1_000_000
"""So much of the file is read: many times what a cluster's schemas take."""
FINGERPRINT_CHARS = 32
PRIVATE = 0o600

log = structlog.get_logger()


class SchemaMemory:
    """The fingerprints of schemas by their ids; for several threads, which may note one twice."""

    def __init__(self, file: Callable[[], Path | None] = lambda: None) -> None:
        """The file is asked for when the first id is met; None keeps nothing beyond this process.

        It belongs to one log: the records of another may have other schemas under the same ids.
        """
        self._file = file
        self._path: Path | None = None
        self._known: dict[int, str] | None = None

    def tie(self, schema_id: int, canonical: str) -> None:
        """Note what an id stands for, by the canonical form of its schema.

        Raises RegistryDiffers where it stood for another before, and Unavailable.
        """
        if self._known is None:
            self._path = self._file()
            self._known = {} if self._path is None else _read(self._path)
        found = fingerprint(canonical)
        known = self._known.get(schema_id)
        if known is None:
            self._known[schema_id] = found
            if self._path is not None:
                _append(self._path, f"{schema_id} {found}\n")
        elif known != found:
            kept = f"; where that is meant, remove {self._path}" if self._path else ""
            msg = (
                f"the registry says that schema id {schema_id} is another schema than before: it "
                "deals its ids anew, or is not the registry that the log was written with. Bring "
                f"back the registry's data{kept}"
            )
            raise RegistryDiffers(msg)


@lru_cache(maxsize=1024)
def fingerprint(canonical: str) -> str:
    """What a schema is known by."""
    return sha256(canonical.encode(errors="replace")).hexdigest()[:FINGERPRINT_CHARS]


def _read(path: Path) -> dict[int, str]:
    """What earlier processes noted, of an id the first; lines of another form count as none."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning("schema_ids_not_read", path=str(path), error=str(error))
        return {}
    known: dict[int, str] = {}
    for line in text.splitlines():
        number, _, found = line.partition(" ")
        schema_id = whole_number(number)
        if schema_id is not None and len(found) == FINGERPRINT_CHARS:
            known.setdefault(schema_id, found)
    return known


def _append(path: Path, line: str) -> None:
    """Add a line at once: a reader beside sees all of it or nothing."""
    try:
        make_private(path.parent)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
    except OSError as error:
        log.warning("schema_ids_not_kept", path=str(path), error=str(error))
