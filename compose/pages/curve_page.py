"""A run's curve as a text chart."""

from rich.console import Console
from rich.table import Table

from rollcall.compose.conductor.live_panel import spark
from rollcall.consumers.history.runs.run_curve import RunCurve


def print_chart(curve: RunCurve, terminal: Console) -> None:
    """Print each series as a line of bars between its minimum and maximum."""
    table = Table("", "first", "last", "least", "most", "", title=curve.run_id)
    for column in range(1, 5):
        table.columns[column].justify = "right"
    for name, points in curve.series().items():
        values = [value for _, value in points]
        if values:
            low, high = min(values), max(values)
            figures = (f"{value:.4g}" for value in (values[0], values[-1], low, high))
            table.add_row(name, *figures, spark(values, low, high))
        else:
            table.add_row(name, *["-"] * 4, "")
    terminal.print(table)
    for each in curve.failed:
        terminal.print(f"held-out {each}", highlight=False)
    last = curve.steps[-1] if curve.steps else None
    words = f"{len(curve.steps):,} steps"
    words += f" to version {last.version}" if last else ""
    words += f", {curve.abandoned:,} abandoned at restarts" if curve.abandoned else ""
    terminal.print(words)
