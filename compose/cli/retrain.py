"""`rollcall retrain`."""

from pathlib import Path
from typing import Annotated

import typer

from compose.cli.connection import cluster


def retrain(
    run: Annotated[str, typer.Argument(help="A run's id or folder.")],
    steps: Annotated[str, typer.Option(metavar="A..B", help="Which steps; or one.")],
    version: Annotated[
        int | None, typer.Option(help="Of the branch that led there, not to the newest.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the report there.")] = None,
) -> None:
    """Train steps of a run again from the record, and compare the weights after each.

    Begins at the newest kept checkpoint before A. Writes no record and nothing of the run.
    Exit code 1 where weights differ: the bits are the same on the same CPU with the same
    ROLLCALL_TRAINING__THREADS.

    Example: rollcall retrain lake-any-start-20261121-155458-s7 --steps 21..24
    """
    import orjson

    from compose import retrain as again
    from compose.files import refuse_no_folder
    from compose.runs import run_folder

    asked = again.asked_for(steps)
    refuse_no_folder(json)
    here = cluster()
    report = again.retrain(
        here.log,
        here.codec,
        here.topics,
        run_folder.find(here.settings.state(), run),
        asked,
        version=version,
        threads=here.settings.training.threads,
        tell=typer.echo,
    )
    if json is not None:
        json.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    raise typer.Exit(1 if report["differing"] else 0)
