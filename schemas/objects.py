"""The object store of heavy records: files named by the SHA-256 of what they hold.

Any fsspec URL: a directory that all workers see, or s3, gs, ... What is put is on the disk before
its name is in the log; a crash leaves at worst a `.tmp` that nobody refers to.
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
"""Lies in every store: where it is not, the store is away, and no object of it is gone. Beside it
lies one of the same name for each cluster that the store belongs to, with a dot and its identity.
"""
MOST_BYTES = 1 << 29
"""The largest object; reading a larger one would exhaust a worker's memory."""
log = structlog.get_logger()

HEX = set("0123456789abcdef")


Identify = Callable[["ObjectStore", bool], str]
"""Told a store and whether it may be given one, the identity that it has for the cluster at hand;
empty where none is known. Raises StoresDiffer for a store that has another, and Unavailable."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object, or what a crash has left of one."""

    path: str
    size_bytes: int
    age_s: float


class ObjectStore:
    """A `rollcall.schemas.claims.Objects` under a URL.

    Raises Refused for a kind of URL that nothing here can open: no waiting would ever help.
    """

    def __init__(
        self,
        url: str,
        *,
        above_bytes: int = ABOVE_BYTES,
        most_bytes: int = MOST_BYTES,
        identify: Identify | None = None,
    ) -> None:
        """`identify` tells, before the first object, which identity the store has to have."""
        require_openable("objects.url", url)
        self.url = url
        self.above_bytes = above_bytes
        self.most_bytes = most_bytes
        self._identify = identify
        self._identity = ""
        self._marked = False

    def put(self, value: bytes) -> Claim:
        """Raises Unavailable, StoresDiffer, and WireError for a value above the most."""
        if len(value) > self.most_bytes:
            msg = f"an object of {len(value):,} bytes is above the most of {self.most_bytes:,}"
            raise WireError(msg)
        self._ask_identity(write=True)
        claim = claim_of(value)
        with as_store_unavailable(f"the object store at {self.url!r} takes nothing"):
            files, root = self._files()
            if not self._marked:
                self._make_private(root)
                put_durably(files, f"{root}/{MARK}", b"")
                self._marked = True
            # Also where it is there: its age counts from the last time that somebody claimed it.
            put_durably(files, f"{root}/{claim.sha256[:2]}/{claim.sha256}", value)
        return claim

    def get(self, claim: Claim) -> bytes:
        """Raises ObjectLost, Unavailable, and StoresDiffer for the store of another cluster."""
        if len(claim.sha256) != 64 or not set(claim.sha256) <= HEX:
            msg = f"{claim.sha256[:80]!r} names no object; a claim holds a SHA-256 in hex"
            raise ObjectLost(msg)
        self._ask_identity(write=False)
        with as_store_unavailable(f"the object store at {self.url!r} is not to be read"):
            files, root = self._files()
            path = f"{root}/{claim.sha256[:2]}/{claim.sha256}"
            files.invalidate_cache()  # others write there too
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
        """Raise ObjectLost for what is not to be read, before a byte of it is."""
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
        with as_store_unavailable(f"the object store at {self.url!r} is not to be read"):
            files, root = self._files()
            files.invalidate_cache()
            try:
                files.info(f"{root}/{MARK}.{identity}")
            except FileNotFoundError:
                return False
            return True  # not `exists`: that says no for whatever goes wrong, an outage too

    def bear(self, identity: str) -> None:
        """Let it be the store of that cluster as well. Raises Unavailable."""
        with as_store_unavailable(f"the object store at {self.url!r} takes nothing"):
            files, root = self._files()
            self._make_private(root)
            put_durably(files, f"{root}/{MARK}.{identity}", b"")

    def _make_private(self, root: str) -> None:
        """Make a folder on a disk for its owner alone; one that was there may be shared."""
        if local_path(self.url) is not None:
            make_private(Path(root))
            if is_open(Path(root)):
                remedy = f"chmod 700 {root}, unless workers of other users share it"
                log.warning("objects_open_to_others", directory=root, remedy=remedy)

    def _ask_identity(self, *, write: bool) -> None:
        if self._identify is not None and not self._identity:
            self._identity = self._identify(self, write)

    def _mark(self) -> str:
        """The file without which this is not the store that objects were put into."""
        return f"{MARK}.{self._identity}" if self._identity else MARK

    def kept(self) -> Iterator[StoredObject]:
        """Everything that lies there; raises Unavailable."""
        with as_store_unavailable(f"the object store at {self.url!r} is not to be read"):
            files, root = self._files()
            found = files.find(root, detail=True) if files.exists(root) else {}
        now = time.time()
        for path, about in sorted(found.items()):
            if not path.rpartition("/")[2].startswith(MARK):
                yield StoredObject(path, int(about["size"] or 0), now - _changed(about))

    def remove(self, kept: StoredObject) -> None:
        """Remove one; raises Unavailable."""
        with (
            as_store_unavailable(f"the object store at {self.url!r} gives nothing away"),
            suppress(FileNotFoundError),
        ):
            self._files()[0].rm_file(kept.path)  # unless somebody else was quicker

    def _files(self) -> tuple[Any, str]:
        files, root = fsspec.core.url_to_fs(self.url)
        return files, str(root).rstrip("/")


def _changed(about: dict[str, Any]) -> float:
    """When a file was written, as the many file systems say it; now, where one does not."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        found = about.get(name)
        if isinstance(found, datetime):
            return found.timestamp()
        if isinstance(found, int | float):
            return float(found)
    return time.time()
