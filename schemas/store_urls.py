"""URLs of stores: whether this installation can open them."""

from pathlib import Path

import fsspec

from rollcall.schemas.errors import Refused
from rollcall.schemas.redaction import add_secrets_of_url


def require_openable(setting: str, url: str) -> None:
    """Raise Refused for a kind of URL that nothing here can open: no waiting would ever help.

    Its secrets are shown nowhere from then on.
    """
    add_secrets_of_url(url)
    try:
        fsspec.get_filesystem_class(fsspec.utils.get_protocol(url))
    except (ValueError, ImportError) as error:
        msg = (
            f"{setting} is {url!r}, which cannot be opened here: {error}; give a directory, or "
            "install what it needs"
        )
        raise Refused(msg) from error


def local_path(uri: str) -> Path | None:
    """Return the local path of a file or folder; None for one of another file system."""
    from fsspec.implementations.local import LocalFileSystem

    protocol = fsspec.utils.get_protocol(uri)
    if protocol not in LocalFileSystem.protocol:
        return None
    return Path(LocalFileSystem._strip_protocol(uri))
