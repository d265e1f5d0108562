"""The evaluation of policies' versions as text."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from rollcall.compose.pages.phase_lines import phase_lines
from rollcall.consumers.history.rollouts.phase_quantiles import PhaseTimes
from rollcall.consumers.history.versions.version_results import Difference, VersionResult


def print_evaluation(
    results: Sequence[VersionResult],
    difference: Difference | None,
    terminal: Console,
    *,
    phases: PhaseTimes,
) -> None:
    """Print a table per policy with remarks, the times, and the comparison."""
    for policy_id in sorted({result.policy_id for result in results}):
        terminal.print(_table([result for result in results if result.policy_id == policy_id]))
    lines = [line for result in results for line in _remarks(result)]
    for line in [*lines, *phase_lines(phases), *(_comparison(difference) if difference else ())]:
        terminal.print(line, highlight=False, soft_wrap=True)


def _table(results: Sequence[VersionResult]) -> Table:
    families = {result.family for result in results}
    title = results[0].policy_id + (f", {results[0].family}" if len(families) == 1 else "")
    ks = sorted({k for result in results for k in result.pass_at} - {1})
    table = Table(title=title, title_justify="left")
    table.add_column("version", justify="right", no_wrap=True)
    if len(families) > 1:
        table.add_column("tasks of")
    for name in ("tasks", "rollouts", "pass@1", *(f"pass@{k}" for k in ks), "mean reward"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            str(result.version),
            *([result.family] if len(families) > 1 else []),
            f"{result.tasks:,}",
            f"{result.rollouts:,}",
            str(result.success or "not measured"),
            *(f"{result.pass_at[k]:.4f}" if k in result.pass_at else "" for k in ks),
            str(result.reward) if result.reward else "none",
        )
    return table


def _remarks(result: VersionResult) -> Iterator[str]:
    name = f"{result.policy_id}@{result.version}, {result.family}:"
    if result.without_reward:
        count = result.without_reward
        if result.success is None:
            yield f"{name} not measured: {count:,} of {result.rollouts:,} failed, none has a reward"
        else:
            yield f"{name} {count:,} rollouts have no reward, so they did not succeed"
    for k, tasks in result.too_few.items():
        yield f"{name} {tasks:,} tasks have fewer than {k} rollouts and no part in pass@{k}"
    if result.mixed:
        yield f"{name} {result.mixed:,} rollouts are left out, for several versions sampled in them"


def _comparison(difference: Difference) -> Iterator[str]:
    """Yield the result of the comparison, and its number of tasks."""
    first, second = (f"{name}@{number}" for name, number in (difference.first, difference.second))
    yield f"{second} less {first}, on the {difference.tasks:,} tasks that both were given:"
    yield f"  pass@1       {difference.success}"
    if difference.reward:
        yield f"  mean reward  {difference.reward}"
    if difference.only_first or difference.only_second:
        yield (
            f"  left out: {difference.only_first:,} tasks of {first} alone, "
            f"{difference.only_second:,} of {second} alone"
        )
