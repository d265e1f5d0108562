"""Commands over the history as tables and curves: export, query, curve, topics stats."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compose.extras import require
from compose.ranges import Range, Rate, takes_range

if TYPE_CHECKING:
    from compose.cluster import Cluster
    from compose.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")]


def add_to(
    app: typer.Typer,
    topics_app: typer.Typer,
    cluster: "Callable[[], Cluster]",
    settings: "Callable[[], Settings]",
) -> None:
    """Register these commands; `cluster` connects when one of them runs."""

    @app.command()
    @takes_range
    def export(
        chosen: Range,
        parquet: Annotated[Path, typer.Option(help="A directory that is new or empty.")],
        rate: Rate = None,
        json: Json = False,
    ) -> None:
        """Write a range of history as Parquet: trajectories, their turns, their scores.

        Joins no group, changes nothing. `rollcall query` reads what is written.

        Example: rollcall export --since 2h --parquet yesterday --rate 0
        """
        import orjson
        from rich.console import Console

        require("duckdb", "pyarrow")
        from compose.archive import export as write

        terminal = Console(stderr=True)
        with terminal.status("reading") as status:

            def told(done: int) -> None:
                if done % 1000 == 0:
                    status.update(f"{done:,} records read")

            found = write(cluster(), chosen, parquet, rate=rate, progress=told)
        if json:
            typer.echo(orjson.dumps(found.plain()))
        else:
            Console().print(found.table())

    @app.command()
    def query(
        sql: Annotated[str, typer.Argument(help="One SELECT over trajectories, turns, scores.")],
        directory: Annotated[
            list[Path] | None,
            typer.Option("--dir", help="What export or the archive wrote; repeatable."),
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
        csv: Annotated[bool, typer.Option("--csv", help="With a line of names.")] = False,
    ) -> None:
        """Ask the exported tables in SQL (DuckDB). Reads only those directories, writes nothing.

        Without --dir: what `worker archive` writes when it is told no directory.

        Example: rollcall query "select purpose, count(*), avg(total) from trajectories group by 1"
        """
        import sys

        from compose.look import page, quiet_pipes
        from schemas.errors import Refused

        if json and csv:
            msg = "--json and --csv are two ways to print one answer; give one of them"
            raise Refused(msg)
        require("duckdb", "pyarrow")
        from compose import query as queries

        with queries.tables(directory or [settings().archive()]) as tables:
            answer = tables.ask(sql)
            if json or csv:
                with quiet_pipes():
                    (queries.print_json if json else queries.print_csv)(answer, sys.stdout)
            else:
                with page() as terminal:
                    queries.print_table(answer, terminal)

    @app.command()
    def curve(
        run: Annotated[str, typer.Argument(help="A run's id or folder.")],
        out: Annotated[
            Path | None, typer.Option(help="A PNG, or a folder for a PNG and a CSV.")
        ] = None,
        csv: Annotated[Path | None, typer.Option(help="A line for each step.")] = None,
        tensorboard: Annotated[
            Path | None, typer.Option(help="Event files go into a folder of the run's name.")
        ] = None,
        json: Json = False,
    ) -> None:
        """Show how a run went: reward, length, staleness, entropy, loss, held-out success.

        From the log alone, while the run goes on or a week later.

        Example: rollcall curve lake-any-start-20261121-140000-s7 --out curves
        """
        import orjson

        from compose.look import page

        picture = out / "curve.png" if out and out.suffix != ".png" else out
        lines = csv or (out / "curve.csv" if out and out.suffix != ".png" else None)
        if picture:
            require("matplotlib")
        if tensorboard:
            require("tensorboardX")
        from compose import curves

        found = curves.read(cluster(), run)
        written = []
        if picture:
            curves.draw(found, picture)
            written.append(picture)
        if lines:
            curves.write_csv(found, lines)
            written.append(lines)
        if tensorboard:
            written.append(curves.write_tensorboard(found, tensorboard))
        for path in written:
            typer.echo(f"written {path}", err=json)
        if json:
            typer.echo(orjson.dumps(found.plain(), option=orjson.OPT_INDENT_2))
        elif not written:
            with page() as terminal:
                curves.print_chart(found, terminal)

    @topics_app.command("stats")
    def topics_stats(json: Json = False) -> None:
        """Count records, bytes and rates of every topic, and the lag of every group.

        Joins no group. Bytes are estimated from the last records of each partition.

        Example: rollcall topics stats --json
        """
        import orjson

        from compose import stats
        from compose.look import page

        found = stats.measure(cluster())
        if json:
            typer.echo(orjson.dumps(found.plain(), option=orjson.OPT_INDENT_2))
        else:
            with page() as terminal:
                stats.show(found, terminal)
