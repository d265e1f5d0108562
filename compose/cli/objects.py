"""`rollcall objects`: the store of records too heavy for the log."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import cluster
from rollcall.compose.terminal import say
from rollcall.schemas.redaction import redact

if TYPE_CHECKING:
    from rollcall.schemas.objects import ObjectStore, StoredObject

OlderThan = Annotated[
    str, typer.Option(help="An age such as 90d; the least that is safe, unless given.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; else it is only shown.")]


def list_objects() -> None:
    """Say how many objects there are, how large, how old, and how many nobody needs.

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
        say(f"{len(old):,} of them are needed by nobody any more")
    except Refused as error:
        say(str(error))


def gc(older_than: OlderThan = "", yes: Yes = False) -> None:
    """Remove objects that no record can claim any more: older than any topic keeps a record.

    A dry run without --yes.

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
        msg = "no store of objects is named; set ROLLCALL_OBJECTS__URL"
        raise Refused(msg)
    identify(here, store, False)
    return store


def _megabytes(objects: "Sequence[StoredObject]") -> str:
    return f"{sum(each.size_bytes for each in objects) / 1e6:,.1f} MB"
