"""`rollcall rescore`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rollcall.compose.cli import connection
from rollcall.compose.cli.range_options import Rate, selection_of, takes_range
from rollcall.consumers.history.reading.ranges import Range

Scorers = Annotated[
    list[str],
    typer.Option(help="name or module:function, optionally *weight; repeatable."),
]
ScoringId = Annotated[
    str, typer.Option(help="Write the rewards under this id; else named after the scorer.")
]
Parquet = Annotated[
    Path | None, typer.Option(help="Write to this empty directory, not to the topic.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only compare.")]
SuccessAt = Annotated[float, typer.Option(help="This total reward is a success.")]
Json = Annotated[bool, typer.Option("--json", help="All of it, as one object.")]


@takes_range
def rescore(
    span: Range,
    scorer: Scorers,
    scoring_id: ScoringId = "",
    parquet: Parquet = None,
    dry_run: DryRun = False,
    success_at: SuccessAt = 1.0,
    rate: Rate = None,
    json: Json = False,
) -> None:
    """Reward recorded trajectories anew, and compare with the rewards that are there.

    A scorer that raises is survived: that trajectory is listed, the others are rewarded.

    Example: rollcall rescore --scorer mine:score --since 2h --dry-run
    """
    from rollcall.compose.pages.rescoring_page import print_rescoring
    from rollcall.compose.terminal import emit
    from rollcall.compose.workers.rescorer import Rescorer

    cluster = connection.cluster()
    rescorer = Rescorer(scorer, scoring_id, parquet, dry_run, success_at)
    rescoring = rescorer.rescore(cluster, selection_of(cluster, span, rate))
    show = partial(print_rescoring, rescoring)
    emit(rescoring.plain(), show, json=json, one_line=True)
