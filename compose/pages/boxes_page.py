"""The table of boxes."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from rollcall.compose.console import safe
from rollcall.consumers.history.waiting.box_lives import BoxRow


def print_boxes(rows: Sequence[BoxRow], silent: Mapping[str, str], terminal: Console) -> None:
    """Print a row for each box, and the drivers that do not answer."""
    for name, why in silent.items():
        terminal.print(safe(f"note: {name} does not answer: {why}", style="yellow"))
    if not rows:
        terminal.print("no boxes, and nobody waits for one")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("box", "driver", "state", "owner", "rollout", "mode", "age", "lease"):
        table.add_column(name, no_wrap=True)
    table.add_column("disagreement", overflow="fold", style="red")
    for row in rows:
        owner = f"{row.owner} on {row.host}" if row.host else row.owner
        age, lease = _seconds(row.age_s), _seconds(row.lease_s)
        table.add_row(
            row.box_id, row.driver, row.state, owner, row.rollout_id, row.mode, age, lease,
            row.remark,
        )  # fmt: skip
    terminal.print(table)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f} s" if value < float("inf") else "before a boot"
