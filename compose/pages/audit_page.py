"""The report of an audit as text, and a progress bar."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rollcall.compose.console import safe
from rollcall.consumers.audit.audit import OnRead, audit
from rollcall.consumers.audit.report import INVARIANTS, Report
from rollcall.consumers.history.reading.local_programs import watched_world

if TYPE_CHECKING:
    from rollcall.compose.cluster import Cluster

BREACHES_NAMED = 20


def audit_with_bar(cluster: "Cluster", terminal: Console, **options: Any) -> Report:
    """Audit a cluster's topics, with the programs that can be loaded here."""
    world = watched_world(cluster.settings.agents.program_timeout_s)
    with _reading_bar(terminal) as on_read:
        return audit(cluster, world, on_read=on_read, **options)


@contextmanager
def _reading_bar(terminal: Console) -> Iterator[OnRead]:
    """Show a bar while the log is read; nothing without a terminal."""
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal
    ) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_report(report: Report, terminal: Console) -> None:
    """Print the table of invariants, the counts, and the first breaches."""
    terminal.print(_table(report))
    for line in _lines(report):
        terminal.print(line, highlight=False, soft_wrap=True)
    for breach in report.breaches[:BREACHES_NAMED]:
        text = safe(f"{breach.invariant}  {breach.place}  {breach.text}", style="red")
        terminal.print(text, soft_wrap=True)
    more = report.found.total() - min(BREACHES_NAMED, len(report.breaches))
    if more:
        terminal.print(f"and {more:,} more breaches; --json FILE lists them", highlight=False)


def _quota_lines(report: Report) -> Iterator[str]:
    """Yield the users above their quota (which may be legitimate), and rollouts over it."""
    for one in report.quotas:
        if one.over:
            ran = f"{one.most_running:,} ran at once at {_utc(one.running_at_ms)}"
            yield f"quota of {one.user}: {ran}, {one.running:,} may"
    over = sum(one.over for one in report.quotas)
    if over:
        yield (
            "  no breach: workers share a quota, each gives out one at least, and a lowered one "
            "stops nobody"
        )
    within = len(report.quotas) - over
    if within:
        who = "1 user" if within == 1 else f"{within:,} users"
        yield f"{who} had no more than the quota, since it was written"


def _utc(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _table(report: Report) -> Table:
    """Return the table of invariants with their checks and breaches."""
    table = Table("", "invariant", "checked", "breaches")
    for column in (2, 3):
        table.columns[column].justify = "right"
    for name, says in INVARIANTS.items():
        count = report.found[name]
        breaches = safe(f"{count:,}", style="bold red" if count else "green")
        table.add_row(name, says, f"{report.checked[name]:,}", breaches)
    return table


def _lines(report: Report) -> Iterator[str]:
    """Yield the counts, without empty lines."""
    yield (
        f"rollouts: {report.accepted:,} accepted, {report.ended:,} ended, {report.open:,} open, "
        f"{report.before_window:,} began before what was read"
    )
    yield (
        f"work: {report.repeated:,} answers repeated, {report.duplicates:,} records written again, "
        f"{report.pending:,} outputs pending, {report.dead_letters:,} dead letters"
    )
    if report.not_run_again:
        yield (
            f"{report.not_run_again:,} rollouts were counted but not run again: their program is "
            "not here, or no longer the same"
        )
    yield from report.held_back
    if report.cut_off:
        yield (
            f"{report.cut_off:,} rollouts were started by requests that the log has lost since; "
            "others took their places"
        )
    if report.unreadable:
        counts = ", ".join(f"{topic} {n:,}" for topic, n in sorted(report.unreadable.items()))
        yield f"unreadable records: {counts}; the first: {report.first_unreadable[0]}"
    for scoring_id, why in sorted(report.retired.items()):
        yield f"scoring {scoring_id} owes no scores: retired {why}"
    yield from _quota_lines(report)
    rate = report.records / report.seconds if report.seconds else 0.0
    verdict = "every invariant holds" if report.ok else f"{report.found.total():,} breaches"
    yield f"{verdict}; {report.records:,} records in {report.seconds:.1f} s ({rate:,.0f}/s)"
