"""`rollcall objects`: the store of records that are too large for the log."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import cluster
from rollcall.compose.terminal import say
from rollcall.schemas.redaction import redact

if TYPE_CHECKING:
    from rollcall.schemas.objects import ObjectStore, StoredObject

OlderThan = Annotated[
    str, typer.Option(help="The least age, such as 90d; default: the lowest safe one.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without it nothing changes.")]


def list_objects() -> None:
    """Print the number, size and age of objects, and how many are no longer needed.

    Example: rollcall objects list
    """
    from rollcall.consumers.history.versions.object_retention import DAY_S, needed_s, unneeded
    from rollcall.schemas.errors import Refused

    here, store = cluster(), _store()
    objects = list(store.kept())
    ages = [each.age_s / DAY_S for each in objects]
    say(f"{len(objects):,} objects, {_megabytes(objects)} in {redact(store.url)}")
    if ages:
        say(f"from {min(ages):.1f} to {max(ages):.1f} days old")
    try:
        old = unneeded(objects, needed_s(here))
        say(f"{len(old):,} of them are no longer needed")
    except Refused as error:
        say(str(error))


def gc(older_than: OlderThan = "", yes: Yes = False) -> None:
    """Remove objects that no record can refer to, since no topic keeps records for so long.

    This is a dry run without --yes.

    Example: rollcall objects gc --yes
    """
    from rollcall.consumers.history.reading.times import seconds_of
    from rollcall.consumers.history.versions.object_retention import removable

    here, store = cluster(), _store()
    old = removable(here, store, seconds_of(older_than) if older_than else 0.0)
    what = f"{len(old):,} objects, {_megabytes(old)}"
    if not yes:
        say(f"would remove {what}; nothing was done, --yes does it")
        return
    for each in old:
        store.remove(each)
    say(f"removed {what}")


def _store() -> "ObjectStore":
    """Return this cluster's store; raises Refused if none is set, StoresDiffer for another's."""
    from rollcall.compose.store_identity import identify
    from rollcall.schemas.errors import Refused

    here = cluster()
    store = here.objects
    if store is None:
        msg = "no object store is set; set ROLLCALL_OBJECTS__URL"
        raise Refused(msg)
    identify(here, store, False)
    return store


def _megabytes(objects: "Sequence[StoredObject]") -> str:
    return f"{sum(each.size_bytes for each in objects) / 1e6:,.1f} MB"
