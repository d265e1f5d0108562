"""Commands that go on from what is recorded: retrain."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from compose.cluster import Cluster


def add_to(app: typer.Typer, cluster: "Callable[[], Cluster]") -> None:
    """Register these commands; `cluster` connects when one of them runs."""

    @app.command()
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
        from compose import runs

        asked = again.asked_for(steps)
        refuse_no_folder(json)
        here = cluster()
        report = again.retrain(
            here.log,
            here.codec,
            here.topics,
            runs.find(here.settings.state(), run),
            asked,
            version=version,
            threads=here.settings.training.threads,
            tell=typer.echo,
        )
        if json is not None:
            json.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        raise typer.Exit(1 if report["differing"] else 0)


def refuse_no_folder(path: Path | None) -> None:
    """Raise Refused, before any work, where a report could not be written."""
    from schemas.errors import Refused

    if path is not None and not path.parent.is_dir():
        msg = f"{str(path.parent)!r} is no directory; the report goes to {path}"
        raise Refused(msg)
