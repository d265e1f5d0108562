"""Calls into libraries of stores: whatever one of them raises, the store is away.

Behind an fsspec URL lie libraries that nobody can list: botocore, aiohttp, paramiko, google.auth,
and what they lean on. None of their exceptions says that a record or a worker is at fault, so all
of them become StoreUnavailable, which is waited for. Every call of a store of ours stands under
`as_store_unavailable`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rollcall.schemas.errors import RollcallError, StoreUnavailable
from rollcall.schemas.untrusted_text import describe_exception


@contextmanager
def as_store_unavailable(trouble: str) -> Iterator[None]:
    """Raise StoreUnavailable, which begins with `trouble`, for whatever the body's libraries raise.

    Errors of our own tree pass: they were told already, or are about what was read.
    """
    try:
        yield
    except RollcallError:
        raise
    except Exception as error:  # a store is foreign code over a network: it may raise anything
        msg = f"{trouble}: {describe_exception(error)}"
        raise StoreUnavailable(msg) from error
