"""The result of a rescoring, and its agreement with the old rewards, as text."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from rollcall.compose.console import safe
from rollcall.consumers.history.replay.agreement import Agreement
from rollcall.consumers.history.replay.rescoring import FAILED_LISTED, Rescoring

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


def print_rescoring(rescoring: Rescoring, terminal: Console) -> None:
    """Print the scored trajectories, those without a reward, and the comparison."""
    for line in _judged(rescoring):
        terminal.print(safe(line), soft_wrap=True)
    if rescoring.agreements:
        terminal.print(_table(rescoring.agreements))
    for agreement in rescoring.agreements:
        for line in _remarks(agreement, rescoring.scoring_id):
            terminal.print(safe(line), soft_wrap=True)


def _judged(rescoring: Rescoring) -> Iterator[str]:
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


def _table(agreements: Sequence[Agreement]) -> Table:
    """Return the comparison, with a column for each earlier scoring."""
    table = Table("compared with", *(agreement.scoring_id for agreement in agreements))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, count in COUNTS.items():
        table.add_row(name, *(f"{getattr(agreement, count):,}" for agreement in agreements))
    differences = (f"{agreement.mean_difference:+.6g}" for agreement in agreements)
    table.add_row("mean difference", *differences)
    return table


def _remarks(agreement: Agreement, scoring_id: str) -> Iterator[str]:
    if agreement.scoring_id == scoring_id:
        yield f"{agreement.scoring_id} was there before: its first rewards are those that count"
    if agreement.flips:
        yield f"flipped against {agreement.scoring_id}, the first of them:"
    for flip in agreement.flips:
        yield f"  {flip.rollout_id}  {flip.old:+.3f} -> {flip.new:+.3f}"
