"""`rollcall rescore`, and `rollcall scorings`: list the scorings, and retire one."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from rollcall.compose.cli import connection
from rollcall.compose.cli.connection import cluster
from rollcall.compose.cli.range_options import Rate, selection_of, takes_range
from rollcall.compose.console import safe
from rollcall.compose.terminal import say
from rollcall.consumers.history.reading.ranges import Range

if TYPE_CHECKING:
    from rollcall.consumers.history.replay.rescoring import Agreement, Rescoring

Scorers = Annotated[
    list[str],
    typer.Option(help="name or module:function, optionally *weight; repeatable."),
]
ScoringId = Annotated[
    str, typer.Option(help="The id of the new rewards; default: named after the scorer.")
]
Parquet = Annotated[
    Path | None, typer.Option(help="Write to this empty directory, not to the topic.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only compare; write nothing.")]
SuccessAt = Annotated[float, typer.Option(help="The total reward that counts as success.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")]


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
    """Score recorded trajectories again, and compare the rewards with the recorded ones.

    If a scorer raises, that trajectory is listed and the others are scored.

    Example: rollcall rescore --scorer mine:score --since 2h --dry-run
    """
    from rollcall.compose.terminal import emit
    from rollcall.compose.workers.rescorer import Rescorer

    cluster = connection.cluster()
    rescorer = Rescorer(scorer, scoring_id, parquet, dry_run, success_at)
    rescoring = rescorer.rescore(cluster, selection_of(cluster, span, rate))
    show = partial(print_rescoring, rescoring)
    emit(rescoring.plain(), show, json=json, one_line=True)


COUNTS: Mapping[str, str] = {
    "have both rewards": "compared",
    "agree within 1e-9": "agree",
    "succeed only now": "succeed_now",
    "succeeded only then": "fail_now",
    "changed sign": "signs_flipped",
    "have the old one only": "only_old",
    "have the new one only": "only_new",
}
"""The counts of an agreement: label and attribute."""


def print_rescoring(rescoring: "Rescoring", terminal: Console) -> None:
    """Print the scored trajectories, those without a reward, and the comparison."""
    for line in _judged(rescoring):
        terminal.print(safe(line), soft_wrap=True)
    if rescoring.agreements:
        terminal.print(_table(rescoring.agreements))
    for agreement in rescoring.agreements:
        for line in _remarks(agreement, rescoring.scoring_id):
            terminal.print(safe(line), soft_wrap=True)


def _judged(rescoring: "Rescoring") -> Iterator[str]:
    from rollcall.consumers.history.replay.rescoring import FAILED_LISTED

    where = f"written to {rescoring.to}" if rescoring.to else "nothing written: --dry-run"
    yield (
        f"{rescoring.rewarded:,} of {rescoring.trajectories:,} trajectories rewarded under scoring "
        f"id {rescoring.scoring_id}, {where}; {rescoring.unfinished:,} rollouts had not finished"
    )
    if rescoring.failed:
        yield f"{rescoring.failed:,} got no reward from the scorer:"
        for failure in rescoring.first_failed:
            yield f"  {failure.rollout_id}  {failure.reason}"
    if rescoring.failed > FAILED_LISTED:
        yield f"  and {rescoring.failed - FAILED_LISTED:,} more"
    if not rescoring.agreements:
        yield "no scoring was there to compare with"


def _table(agreements: "Sequence[Agreement]") -> Table:
    """Return the comparison, with a column for each earlier scoring."""
    table = Table("compared with", *(agreement.scoring_id for agreement in agreements))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, count in COUNTS.items():
        table.add_row(name, *(f"{getattr(agreement, count):,}" for agreement in agreements))
    differences = (f"{agreement.mean_difference:+.6g}" for agreement in agreements)
    table.add_row("mean difference", *differences)
    return table


def _remarks(agreement: "Agreement", scoring_id: str) -> Iterator[str]:
    if agreement.scoring_id == scoring_id:
        yield f"{agreement.scoring_id} was there before: its first rewards are those that count"
    if agreement.flips:
        yield f"flipped against {agreement.scoring_id}, the first of them:"
    for flip in agreement.flips:
        yield f"  {flip.rollout_id}  {flip.old:+.3f} -> {flip.new:+.3f}"


Reason = Annotated[str, typer.Option(help="Why; it is kept in the log.")]


def list_scorings() -> None:
    """List every scoring: how far behind it is, and whether it owes scores.

    Example: rollcall scorings list
    """
    from rich.table import Table

    from rollcall.compose.terminal import page
    from rollcall.consumers.history.replay.scorings import scorings

    table = Table("scoring", "trajectories behind", "owes scores")
    for state in scorings(cluster()):
        owes = "yes" if state.retired is None else f"no, retired {state.retired}"
        table.add_row(state.scoring_id, f"{state.behind:,}", owes)
    with page() as terminal:
        terminal.print(table)


def retire(
    scoring: Annotated[str, typer.Argument(help="The scoring's id.")], reason: Reason = ""
) -> None:
    """Mark a scoring as no longer run, so that `verify` does not expect its scores.

    Starting a worker for it reverses this; the worker goes on at the last committed offset.

    Example: rollcall scorings retire tried-once --reason "only a try"
    """
    from rollcall.consumers.history.replay.scorings import retire_scoring

    state = retire_scoring(cluster(), scoring, reason)
    say(f"{state.scoring_id} owes no scores any more; it was {state.behind:,} trajectories behind")
