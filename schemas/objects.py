"""The object store of heavy records: files named by the SHA-256 of what they hold.

Any fsspec URL: a directory that all workers see, or s3, gs, ... What is put is on the disk before
its name is in the log; a crash leaves at worst a `.tmp` that nobody refers to.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import fsspec

from schemas.claims import ABOVE_BYTES, checked, claim_of
from schemas.errors import ObjectLost, Unavailable
from schemas.messages import Claim
from schemas.store_urls import require_openable
from schemas.whole_files import put_durably

MARK = "rollcall-objects"
"""Lies in every store: where it is not, the store is away, and no object of it is gone."""
HEX = set("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object, or what a crash has left of one."""

    path: str
    size_bytes: int
    age_s: float


class ObjectStore:
    """A `schemas.claims.Objects` under a URL.

    Raises Refused for a kind of URL that nothing here can open: no waiting would ever help.
    """

    def __init__(self, url: str, *, above_bytes: int = ABOVE_BYTES) -> None:
        require_openable("objects.url", url)
        self.url = url
        self.above_bytes = above_bytes
        self._marked = False

    def put(self, value: bytes) -> Claim:
        claim = claim_of(value)
        try:
            files, root = self._files()
            if not self._marked:
                put_durably(files, f"{root}/{MARK}", b"")
                self._marked = True
            # Also where it is there: its age counts from the last time that somebody claimed it.
            put_durably(files, f"{root}/{claim.sha256[:2]}/{claim.sha256}", value)
        except (OSError, ValueError, ImportError) as error:
            msg = f"the object store at {self.url!r} takes nothing: {error}"
            raise Unavailable(msg) from error
        return claim

    def get(self, claim: Claim) -> bytes:
        if len(claim.sha256) != 64 or not set(claim.sha256) <= HEX:
            msg = f"{claim.sha256!r} names no object; a claim holds a SHA-256 in hex"
            raise ObjectLost(msg)
        try:
            files, root = self._files()
            try:
                value = bytes(files.cat_file(f"{root}/{claim.sha256[:2]}/{claim.sha256}"))
            except FileNotFoundError as error:
                if not files.exists(f"{root}/{MARK}"):
                    raise
                msg = f"object {claim.sha256} is not in {self.url!r} any more; was it removed?"
                raise ObjectLost(msg) from error
        except (OSError, ValueError, ImportError) as error:
            msg = f"the object store at {self.url!r} is not to be read: {error}"
            raise Unavailable(msg) from error
        return checked(value, claim)

    def kept(self) -> Iterator[StoredObject]:
        """Everything that lies there; raises Unavailable."""
        try:
            files, root = self._files()
            found = files.find(root, detail=True) if files.exists(root) else {}
        except (OSError, ValueError, ImportError) as error:
            msg = f"the object store at {self.url!r} is not to be read: {error}"
            raise Unavailable(msg) from error
        now = time.time()
        for path, about in sorted(found.items()):
            if not path.endswith(f"/{MARK}"):
                yield StoredObject(path, int(about["size"] or 0), now - _changed(about))

    def remove(self, kept: StoredObject) -> None:
        """Remove one; raises Unavailable."""
        try:
            self._files()[0].rm_file(kept.path)
        except FileNotFoundError:
            return  # somebody else was quicker
        except OSError as error:
            msg = f"the object store at {self.url!r} gives nothing away: {error}"
            raise Unavailable(msg) from error

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
