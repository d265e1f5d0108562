"""`rollcall tail`."""

from typing import Annotated

import typer

from rollcall.compose.cli.connection import cluster

Topic = Annotated[str, typer.Argument(help="With or without the prefix.")]
Decode = Annotated[
    bool, typer.Option("--decode/--raw", help="Read values with their schema, or leave them.")
]
Limit = Annotated[int, typer.Option(min=0, help="Stop after so many; 0 is never.")]
Follow = Annotated[bool, typer.Option(help="Wait for more at the end.")]
Last = Annotated[int, typer.Option(min=0, help="Begin so many before the end.")]


def tail(
    topic: Topic, decode: Decode = True, limit: Limit = 0, follow: Follow = False, last: Last = 0
) -> None:
    """Print a topic's records as lines of JSON."""
    from contextlib import closing
    from itertools import islice

    import orjson

    from rollcall.compose.terminal import quiet_pipes
    from rollcall.consumers.history.reading.record_lines import (
        decoder,
        envelope,
        in_hex,
        records_of,
        topic_named,
    )
    from rollcall.schemas.untrusted_text import printable_json

    history = cluster()
    name = topic_named(history, topic)
    value_of = decoder(history, name) if decode else in_hex
    with quiet_pipes(), closing(records_of(history, name, follow=follow, last=last)) as records:
        for record in islice(records, limit or None):
            line = orjson.dumps(envelope(record) | value_of(record)).decode()
            print(printable_json(line), flush=follow)
