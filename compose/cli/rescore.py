"""`rollcall rescore`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster
from compose.cli.range_options import Rate, selection_of, takes_range
from consumers.history.ranges import Range

if TYPE_CHECKING:
    pass

SuccessAt = Annotated[float, typer.Option(help="This total reward is a success.")]
Json = Annotated[bool, typer.Option("--json", help="All of it, as one object.")]


@takes_range
def rescore(
    span: Range,
    scorer: Annotated[
        list[str], typer.Option(help="name or module:function, optionally *weight; repeatable.")
    ],
    scoring_id: Annotated[
        str, typer.Option(help="Write the rewards under this id; else named after the scorer.")
    ] = "",
    parquet: Annotated[
        Path | None, typer.Option(help="Write to this empty directory, not to the topic.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only compare.")] = False,
    success_at: SuccessAt = 1.0,
    rate: Rate = None,
    json: Json = False,
) -> None:
    """Reward recorded trajectories anew, and compare with the rewards that are there.

    A scorer that raises is survived: that trajectory is listed, the others are rewarded.

    Example: rollcall rescore --scorer mine:score --since 2h --dry-run
    """
    from functools import partial

    from compose import rescore as rescoring
    from compose.terminal import emit

    here = cluster()
    found = rescoring.rescore(
        here,
        scorer,
        selection_of(here, span, rate),
        scoring_id=scoring_id,
        parquet=parquet,
        dry_run=dry_run,
        success_at=success_at,
    )
    emit(found.plain(), partial(rescoring.show, found), json=json, one_line=True)
