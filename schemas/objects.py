"""The object store of heavy records: files named by the SHA-256 of their content.

Its URL is any that fsspec opens: a directory that all workers share, or s3, gs, ... An object is on
the disk before its name is in the log. A crash leaves at worst an unused `.tmp` file.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec
import structlog

from rollcall.schemas.atomic_files import put_durably
from rollcall.schemas.claims import ABOVE_BYTES, checked, claim_of
from rollcall.schemas.errors import ObjectLost, WireError
from rollcall.schemas.messages import Claim
from rollcall.schemas.private_folders import is_open, make_private
from rollcall.schemas.store_urls import as_store_unavailable, local_path, require_openable

MARK = "rollcall-objects"
"""A file in every store. If it is missing, the store is taken to be unavailable, and its objects
not to be lost. A file `MARK.IDENTITY` exists for each cluster that the store belongs to."""
MOST_BYTES = 1 << 29
"""The largest object; reading a larger one would exhaust a worker's memory."""
log = structlog.get_logger()

HEX = set("0123456789abcdef")


Identify = Callable[["ObjectStore", bool], str]
"""Returns the identity of a store for the present cluster, empty if it has none. The second
argument says whether it may be given one. Raises StoresDiffer for the store of another cluster, and
Unavailable."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object, or an incomplete file that a crash has left."""

    path: str
    size_bytes: int
    age_s: float


class ObjectStore:
    """A `rollcall.schemas.claims.Objects` under a URL.

    Raises Refused for a URL that fsspec cannot open here, since waiting would not help.
    """

    def __init__(
        self,
        url: str,
        *,
        above_bytes: int = ABOVE_BYTES,
        most_bytes: int = MOST_BYTES,
        identify: Identify | None = None,
    ) -> None:
        """`identify` is called once, before the first object is read or written."""
        require_openable("objects.url", url)
        self.url = url
        self.above_bytes = above_bytes
        self.most_bytes = most_bytes
        self._identify = identify
        self._identity = ""
        self._marked = False

    def put(self, value: bytes) -> Claim:
        """Raise Unavailable, StoresDiffer, and WireError for a value above `most_bytes`."""
        if len(value) > self.most_bytes:
            msg = f"an object of {len(value):,} bytes is above the limit of {self.most_bytes:,}"
            raise WireError(msg)
        self._ask_identity(write=True)
        claim = claim_of(value)
        with as_store_unavailable(f"the object store at {self.url!r} cannot be written to"):
            files, root = self._files()
            if not self._marked:
                self._make_private(root)
                put_durably(files, f"{root}/{MARK}", b"")
                self._marked = True
            # Written again even if it exists: retention counts its age from the last claim.
            put_durably(files, f"{root}/{claim.sha256[:2]}/{claim.sha256}", value)
        return claim

    def get(self, claim: Claim) -> bytes:
        """Raise ObjectLost, Unavailable, and StoresDiffer for the store of another cluster."""
        if len(claim.sha256) != 64 or not set(claim.sha256) <= HEX:
            msg = f"{claim.sha256[:80]!r} names no object; a claim holds a SHA-256 in hex"
            raise ObjectLost(msg)
        self._ask_identity(write=False)
        with as_store_unavailable(f"the object store at {self.url!r} cannot be read"):
            files, root = self._files()
            path = f"{root}/{claim.sha256[:2]}/{claim.sha256}"
            files.invalidate_cache()  # other processes write there too
            try:
                self._check_size(files.info(path), claim)
                value = bytes(files.cat_file(path))
            except (FileNotFoundError, NotADirectoryError) as error:
                if not files.exists(f"{root}/{self._mark()}"):
                    raise
                msg = f"object {claim.sha256} is not in {self.url!r} any more; was it removed?"
                raise ObjectLost(msg) from error
        return checked(value, claim)

    def _check_size(self, about: dict[str, Any], claim: Claim) -> None:
        """Raise ObjectLost, before reading it, for an object of another kind or size."""
        if about.get("type") != "file":
            msg = f"object {claim.sha256} of {self.url!r} is a {about.get('type')}, not a file"
            raise ObjectLost(msg)
        size_bytes = int(about["size"] or 0)
        if size_bytes != claim.size_bytes or size_bytes > self.most_bytes:
            msg = (
                f"object {claim.sha256} of {self.url!r} has {size_bytes:,} bytes, but "
                f"{claim.size_bytes:,} were claimed, of {self.most_bytes:,} at most"
            )
            raise ObjectLost(msg)

    def bears(self, identity: str) -> bool:
        """Return True if the store has this identity, as recorded by its cluster.

        Raises Unavailable.
        """
        with as_store_unavailable(f"the object store at {self.url!r} cannot be read"):
            files, root = self._files()
            files.invalidate_cache()
            try:
                files.info(f"{root}/{MARK}.{identity}")
            except FileNotFoundError:
                return False
            return True  # not `exists`, which returns False for any error, also an outage

    def bear(self, identity: str) -> None:
        """Mark it as a store of that cluster too. Raises Unavailable."""
        with as_store_unavailable(f"the object store at {self.url!r} cannot be written to"):
            files, root = self._files()
            self._make_private(root)
            put_durably(files, f"{root}/{MARK}.{identity}", b"")

    def _make_private(self, root: str) -> None:
        """Create a local folder for its owner alone; one that exists may be shared."""
        if local_path(self.url) is not None:
            make_private(Path(root))
            if is_open(Path(root)):
                remedy = f"chmod 700 {root}, unless workers of other users share it"
                log.warning("objects_open_to_others", directory=root, remedy=remedy)

    def _ask_identity(self, *, write: bool) -> None:
        if self._identify is not None and not self._identity:
            self._identity = self._identify(self, write)

    def _mark(self) -> str:
        """Return the name of the file that marks this store."""
        return f"{MARK}.{self._identity}" if self._identity else MARK

    def kept(self) -> Iterator[StoredObject]:
        """Yield all objects, with their sizes and ages; raise Unavailable."""
        with as_store_unavailable(f"the object store at {self.url!r} cannot be read"):
            files, root = self._files()
            found = files.find(root, detail=True) if files.exists(root) else {}
        now = time.time()
        for path, about in sorted(found.items()):
            if not path.rpartition("/")[2].startswith(MARK):
                yield StoredObject(path, int(about["size"] or 0), now - _changed(about))

    def remove(self, kept: StoredObject) -> None:
        """Remove one object; raise Unavailable."""
        with (
            as_store_unavailable(f"the object store at {self.url!r} does not remove objects"),
            suppress(FileNotFoundError),
        ):
            self._files()[0].rm_file(kept.path)  # another process may have removed it

    def _files(self) -> tuple[Any, str]:
        files, root = fsspec.core.url_to_fs(self.url)
        return files, str(root).rstrip("/")


def _changed(about: dict[str, Any]) -> float:
    """Return the time at which a file was written; the present time if none is known."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        found = about.get(name)
        if isinstance(found, datetime):
            return found.timestamp()
        if isinstance(found, int | float):
            return float(found)
    return time.time()
