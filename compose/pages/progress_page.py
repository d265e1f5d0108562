"""The progress of rollouts, as a table and in lines."""

from rich.table import Table

from rollcall.compose.console import safe
from rollcall.consumers.history.rollouts.progress import FollowedRollout, RolloutProgress


def rollout_line(rollout: FollowedRollout) -> str:
    """Return the line of a scored rollout."""
    return (
        f"{rollout.rollout_id}  {rollout.status}  {rollout.turns} turns  "
        f"reward {rollout.reward}  {rollout.seconds(0):.1f} s"
    )


def progress_table(progress: RolloutProgress, most: int) -> Table:
    """Return a table of rollouts: unfinished first, then the latest, at most `most` rows."""
    rows = list(progress.rows.values())
    rows = [r for r in rows if not r.scored] + [r for r in reversed(rows) if r.scored]
    hidden = f"; {len(rows) - most:,} rows not shown" if len(rows) > most else ""
    table = Table(caption=f"{progress.totals()}{hidden}", caption_justify="left")
    for name in ("rollout", "status", "turns", "reward", "seconds"):
        right = name in ("turns", "seconds")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    now_ms = progress.wall() * 1000
    for row in rows[:most]:
        seconds = f"{row.seconds(now_ms):.1f}"
        table.add_row(row.rollout_id, row.status, str(row.turns), safe(row.reward), seconds)
    return table
