"""URLs of stores: checks that they can be opened, and errors of the libraries behind them.

An fsspec URL may lead to any library: botocore, aiohttp, paramiko, google.auth, and their
dependencies. Their exceptions do not mean that a record or a worker is at fault, so all of them
become StoreUnavailable, and the caller waits. Every call of a store is inside
`as_store_unavailable`. fsspec is imported on first use, as the codec works without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from urllib.parse import urlsplit

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
    import fsspec

    add_secrets_of_url(url)
    try:
        fsspec.get_filesystem_class(fsspec.utils.get_protocol(url))
    except (ValueError, ImportError) as error:
        msg = (
            f"{setting} is {url!r}, which cannot be opened here: {error}; set it to a directory, "
            "or install the library that it needs"
        )
        raise Refused(msg) from error


def check_weights_url(url: str) -> None:
    """Raise Refused for a URL that cannot be opened here, or that has more than a location."""
    if not url:
        return
    place = urlsplit(url)
    if "@" in place.netloc or place.query or place.fragment:
        msg = (
            "policy.weights_url holds more than a place (it is not shown here); credentials come "
            "from the surroundings, as AWS_ACCESS_KEY_ID does, since a recipe and the log are read "
            "by many: give s3://bucket/folder alone"
        )
        raise Refused(msg)
    require_openable("policy.weights_url", url)
    if not place.scheme and not PurePath(url).is_absolute():
        msg = (
            f"policy.weights_url is {url!r}, a directory relative to nobody knows what; give it "
            "from the root on, as trainer and servers see it"
        )
        raise Refused(msg)


def local_path(uri: str) -> Path | None:
    """Return the local path of a file or folder; None for one of another file system."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    protocol = fsspec.utils.get_protocol(uri)
    if protocol not in LocalFileSystem.protocol:
        return None
    return Path(LocalFileSystem._strip_protocol(uri))
