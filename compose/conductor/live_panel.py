"""The live view of a run in a terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.panel import Panel
from rich.table import Table

from rollcall.compose.conductor.run_watch import RunWatch
from rollcall.compose.console import safe
from rollcall.consumers.history.runs.run_figures import RunFigures

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 48
NONE: Mapping[str, RunFigures] = {}


def spark(values: Sequence[float], low: float = 0.0, high: float = 1.0) -> str:
    """Draw a line of bars, the newest on the right; longer series are thinned to the width."""
    if len(values) > WIDTH:
        values = [values[i * len(values) // WIDTH] for i in range(WIDTH)]
    top = len(BARS) - 1
    scale = (high - low) or 1.0
    return "".join(BARS[round(min(1.0, max(0.0, (v - low) / scale)) * top)] for v in values)


def render(
    figures: RunFigures,
    lag: Mapping[str, int],
    now: float,
    watch: RunWatch,
    others: Mapping[str, RunFigures] = NONE,
) -> Panel:
    """Draw the whole view; `others` are the run's other policies, by name."""
    rewards, staleness = figures.metric("reward_mean"), figures.metric("staleness_mean")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("now", f"{watch.doing(figures)}, after {watch.elapsed()}")
    table.add_row("step", f"{len(figures.steps)} of at most {watch.steps}, {_aim(figures)}")
    table.add_row("rollouts", f"{figures.rollouts:,}   {figures.rollouts_rate.per_s(now):,.0f}/s")
    table.add_row(
        "model calls", f"{figures.model_calls:,}   {figures.calls_rate.per_s(now):,.0f}/s"
    )
    table.add_row("reward", f"{_last(rewards)}  {spark(rewards)}")
    table.add_row("staleness", f"{staleness[-1]:.2f} versions" if staleness else "-")
    table.add_row("held-out success", _held_out(figures))
    for name, other in others.items():
        own = other.metric("reward_mean")
        table.add_row(f"{name}: step", f"{len(other.steps)}")
        table.add_row("reward", f"{_last(own)}  {spark(own)}")
        table.add_row("held-out success", _held_out(other))
    lags = "  ".join(f"{group} {count:,}" for group, count in sorted(lag.items()))
    table.add_row("lag, records", lags or "-")
    dropped = "  ".join(f"{reason} {n}" for reason, n in sorted(figures.dropped().items()))
    table.add_row("not trained on", dropped or "none")
    if said := str(figures.left_out):
        table.add_row("left out", safe(said, style="yellow"))
    if figures.failures.count:
        table.add_row("failed", safe(f"{figures.failures}\n{figures.failures.why()}", style="red"))
    return Panel(Group(table), title=f"rollcall  {figures.run_id}", expand=False)


def _held_out(figures: RunFigures) -> str:
    words = "  ".join(map(str, figures.heldout.measured()[-6:]))
    return words or "not measured yet"


def _aim(figures: RunFigures) -> str:
    goal = figures.goal()
    return "no goal" if goal is None else f"or {goal:g} held-out success"


def _last(rewards: Sequence[float]) -> str:
    return f"{rewards[-1]:+.3f}" if rewards else "-"


def line(
    figures: RunFigures, now: float, watch: RunWatch, others: Mapping[str, RunFigures] = NONE
) -> str:
    """Return the same in one line, for output without a terminal."""
    beside = "".join(f"  {name}: {_learned(each)}" for name, each in others.items())
    failed = f"  failed {figures.failures}" if figures.failures.count else ""
    left_out = f"  left out {figures.left_out}" if figures.left_out.reported() else ""
    return (
        f"{watch.elapsed()}  {watch.doing(figures)}  "
        f"step {len(figures.steps)}  rollouts {figures.rollouts}  "
        f"calls {figures.model_calls} ({figures.calls_rate.per_s(now):.0f}/s)  "
        f"{_learned(figures)}{beside}{left_out}{failed}"
    )


def _learned(figures: RunFigures) -> str:
    measured = figures.heldout.measured()
    held_out = str(measured[-1]) if measured else "-"
    return f"reward {_last(figures.metric('reward_mean'))}  held-out {held_out}"
