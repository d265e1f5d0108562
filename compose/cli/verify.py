"""`rollcall verify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    pass


def verify(
    since: Annotated[
        str, typer.Option(help="Read from then on: 30m, 2h, 3d ago, or ISO 8601.")
    ] = "",
    until: Annotated[str, typer.Option(help="Judge what lies before then.")] = "",
    drained: Annotated[
        bool, typer.Option("--drained", help="All work has ended: open and pending are breaches.")
    ] = False,
    most_repeated: Annotated[
        int | None, typer.Option(min=0, help="More repeated work than this is a breach.")
    ] = None,
    most_rewritten: Annotated[
        int | None,
        typer.Option(min=0, help="More trajectories, scores or steps written again are a breach."),
    ] = None,
    scoring: Annotated[
        list[str] | None,
        typer.Option(help="A scoring that owes scores; left out, all that were not retired."),
    ] = None,
    run_programs: Annotated[
        bool,
        typer.Option(
            "--run-programs/--no-run-programs",
            help="Run agent programs again; without, what only they imply is not judged.",
        ),
    ] = True,
    json: Annotated[Path | None, typer.Option(help="Write the whole report there.")] = None,
) -> None:
    """Check from the log alone that nothing is lost and nothing is doubled.

    Reads the topics, joins no group, changes nothing. Exit code 1 where an invariant is broken.

    Example: rollcall verify --since 2h --json report.json
    """
    import orjson
    from rich.console import Console

    from compose.files import refuse_no_folder
    from compose.ranges import parse
    from compose.showing import reading, show
    from compose.verify import verify as run_audit

    span = parse(since, until)
    refuse_no_folder(json)
    terminal = Console()
    with reading(terminal) as told:
        report = run_audit(
            cluster(),
            since_ms=span.since_ms,
            until_ms=span.until_ms,
            drained=drained,
            most_repeated=most_repeated,
            most_rewritten=most_rewritten,
            scorings=scoring or None,
            run_programs=run_programs,
            progress=told,
        )
    show(report, terminal)
    if json is not None:
        json.write_bytes(orjson.dumps(report.plain(), option=orjson.OPT_INDENT_2))
    raise typer.Exit(0 if report.ok else 1)
