"""`rollcall verify`."""

from pathlib import Path
from typing import Annotated

import typer

from rollcall.compose.cli.connection import cluster

Since = Annotated[str, typer.Option(help="Read from then on: 30m, 2h, 3d ago, or ISO 8601.")]
Until = Annotated[str, typer.Option(help="Judge what lies before then.")]
Drained = Annotated[
    bool, typer.Option("--drained", help="All work has ended: open and pending are breaches.")
]
MostRepeated = Annotated[
    int | None, typer.Option(min=0, help="More repeated work than this is a breach.")
]
MostRewritten = Annotated[
    int | None,
    typer.Option(min=0, help="More trajectories, scores or steps written again are a breach."),
]
Scorings = Annotated[
    list[str] | None,
    typer.Option(help="A scoring that owes scores; left out, all that were not retired."),
]
RunPrograms = Annotated[
    bool,
    typer.Option(
        "--run-programs/--no-run-programs",
        help="Run agent programs again; without, what only they imply is not judged.",
    ),
]
Json = Annotated[Path | None, typer.Option(help="Write the whole report there.")]


def verify(
    since: Since = "",
    until: Until = "",
    drained: Drained = False,
    most_repeated: MostRepeated = None,
    most_rewritten: MostRewritten = None,
    scoring: Scorings = None,
    run_programs: RunPrograms = True,
    json: Json = None,
) -> None:
    """Check from the log alone that nothing is lost and nothing is doubled.

    Reads the topics, joins no group, changes nothing. Exit code 1 where an invariant is broken.

    Example: rollcall verify --since 2h --json report.json
    """
    from rollcall.compose.cli.range_options import parse
    from rollcall.compose.console import PageConsole
    from rollcall.compose.files import refuse_no_folder, write_json
    from rollcall.compose.pages.audit_page import audit_with_bar, print_report

    terminal, span = PageConsole(), parse(since, until)
    refuse_no_folder(json)
    report = audit_with_bar(
        cluster(),
        terminal,
        since_ms=span.since_ms,
        until_ms=span.until_ms,
        drained=drained,
        most_repeated=most_repeated,
        most_rewritten=most_rewritten,
        scorings=scoring or None,
        run_programs=run_programs,
    )
    print_report(report, terminal)
    if json is not None:
        write_json(json, report.plain())
    raise typer.Exit(0 if report.ok else 1)
