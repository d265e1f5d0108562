"""`rollcall tail`."""

from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    pass


def tail(
    topic: Annotated[str, typer.Argument(help="With or without the prefix.")],
    decode: Annotated[
        bool, typer.Option("--decode/--raw", help="Read values with their schema, or leave them.")
    ] = True,
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many; 0 is never.")] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for more at the end.")] = False,
    last: Annotated[int, typer.Option(min=0, help="Begin so many before the end.")] = 0,
) -> None:
    """Print a topic's records as lines of JSON."""
    from compose.look import tail as print_tail

    print_tail(cluster(), topic, decode=decode, limit=limit, follow=follow, last=last)
