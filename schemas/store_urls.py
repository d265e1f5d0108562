"""URLs of stores: whether this installation can open them, and calls into their libraries.

Behind an fsspec URL lie libraries that cannot all be listed: botocore, aiohttp, paramiko,
google.auth, and their dependencies. None of their exceptions says that a record or a worker is at
fault, so all of them become StoreUnavailable, which is waited for. Every call of a store of ours
stands under `as_store_unavailable`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec

from rollcall.schemas.errors import Refused, RollcallError, StoreUnavailable
from rollcall.schemas.redaction import add_secrets_of_url
from rollcall.schemas.untrusted_text import describe_exception


@contextmanager
def as_store_unavailable(trouble: str) -> Iterator[None]:
    """Turn any exception of the body into StoreUnavailable, whose text begins with `trouble`.

    Errors of our own tree pass unchanged: they are about the data, or were translated already.
    """
    try:
        yield
    except RollcallError:
        raise
    except Exception as error:  # a store's library may raise anything
        msg = f"{trouble}: {describe_exception(error)}"
        raise StoreUnavailable(msg) from error


def require_openable(setting: str, url: str) -> None:
    """Raise Refused for a URL that fsspec cannot open here, since waiting would not help.

    Registers its secrets, so that they are not shown from then on.
    """
    add_secrets_of_url(url)
    try:
        fsspec.get_filesystem_class(fsspec.utils.get_protocol(url))
    except (ValueError, ImportError) as error:
        msg = (
            f"{setting} is {url!r}, which cannot be opened here: {error}; set it to a directory, "
            "or install the library that it needs"
        )
        raise Refused(msg) from error


def local_path(uri: str) -> Path | None:
    """Return the local path of a file or folder; None for one of another file system."""
    from fsspec.implementations.local import LocalFileSystem

    protocol = fsspec.utils.get_protocol(uri)
    if protocol not in LocalFileSystem.protocol:
        return None
    return Path(LocalFileSystem._strip_protocol(uri))
