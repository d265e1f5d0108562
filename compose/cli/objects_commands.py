"""Commands about the store of heavy records: objects list, objects gc."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from compose.cluster import Cluster

objects_app = typer.Typer(
    no_args_is_help=True, help="Records too heavy for the log, in a store of objects."
)


def add_to(app: typer.Typer, cluster: "Callable[[], Cluster]") -> None:
    """Register these commands; `cluster` connects when one of them runs."""
    app.add_typer(objects_app, name="objects")

    @objects_app.command("list")
    def objects_list() -> None:
        """Say how many objects there are, how large, how old, and how many nobody needs.

        Example: rollcall objects list
        """
        from compose.objects import show_list

        show_list(cluster())

    @objects_app.command("gc")
    def objects_gc(
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
