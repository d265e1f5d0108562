"""`rollcall objects`: the store of records too heavy for the log."""

from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    pass


def list_objects() -> None:
    """Say how many objects there are, how large, how old, and how many nobody needs.

    Example: rollcall objects list
    """
    from compose.objects import show_list

    show_list(cluster())


def gc(
    older_than: Annotated[
        str, typer.Option(help="An age such as 90d; the least that is safe, unless given.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only shown.")] = False,
) -> None:
    """Remove objects that no record can claim any more: older than any topic keeps a record.

    A dry run without --yes.

    Example: rollcall objects gc --yes
    """
    from compose.objects import gc
    from consumers.history.times import seconds_of

    gc(cluster(), seconds_of(older_than) if older_than else 0.0, yes=yes)
