"""`rollcall verify`."""

from pathlib import Path
from typing import Annotated

import typer

from rollcall.compose.cli.connection import cluster

Since = Annotated[str, typer.Option(help="Read from this time on: 30m, 2h, 3d ago, or ISO 8601.")]
Until = Annotated[str, typer.Option(help="Check only records before this time.")]
Drained = Annotated[
    bool,
    typer.Option(
        "--drained", help="Expect all work to have ended; open or pending work is a breach."
    ),
]
MostRepeated = Annotated[
    int | None, typer.Option(min=0, help="The most repeated commands; more are a breach.")
]
MostRewritten = Annotated[
    int | None,
    typer.Option(min=0, help="The most repeated trajectories, scores or steps; more are a breach."),
]
Scorings = Annotated[
    list[str] | None,
    typer.Option(help="A scoring that owes scores; default: all that are not retired."),
]
RunPrograms = Annotated[
    bool,
    typer.Option(
        "--run-programs/--no-run-programs",
        help="Run agent programs again; without it, checks that need them are left out.",
    ),
]
Json = Annotated[Path | None, typer.Option(help="Write the whole report to this file.")]


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
    """Check from the log that no rollout was lost or doubled.

    Reads the topics, joins no group and changes nothing. The exit code is 1 if an invariant is
    broken.

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
