"""`rollcall eval`."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rollcall.compose.cli.connection import cluster
from rollcall.compose.cli.range_options import Rate, selection_of, takes_range
from rollcall.compose.terminal import say
from rollcall.consumers.history.reading.ranges import Range

if TYPE_CHECKING:
    from rollcall.consumers.history.rollouts.phase_quantiles import PhaseTimes
    from rollcall.consumers.history.versions.version_results import Difference, VersionResult

Compare = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="A B", help="Compare two versions, P@VERSION, paired by task."),
]
Tasks = Annotated[
    str, typer.Option(help="Run these tasks now: JSON Lines, or a recipe's held-out seeds.")
]
Rollouts = Annotated[int, typer.Option("--n", min=1, help="Rollouts of each task.")]
Ks = Annotated[
    list[int] | None,
    typer.Option("--k", min=1, help="pass@K; repeatable. Default: 1, 2, 4, 8 and 16."),
]
Purpose = Annotated[str, typer.Option(help="The purpose of the rollouts: evaluate or train.")]
ScoringId = Annotated[str, typer.Option(help="The scoring id, if there are several.")]
SuccessAt = Annotated[float, typer.Option(help="The total reward that counts as success.")]
Resamples = Annotated[int, typer.Option(min=1, help="Resamples of the bootstrap.")]
Seed = Annotated[int, typer.Option(min=0, help="The seed of the bootstrap and live rollouts.")]
Timeout = Annotated[float, typer.Option(help="The longest wait for live rollouts.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")]


@takes_range
def evaluate(
    span: Range,
    compare: Compare = None,
    tasks: Tasks = "",
    n: Rollouts = 1,
    k: Ks = None,
    purpose: Purpose = "evaluate",
    scoring_id: ScoringId = "",
    success_at: SuccessAt = 1.0,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    timeout_s: Timeout = 600.0,
    rate: Rate = None,
    json: Json = False,
) -> None:
    """Evaluate versions of a policy on recorded rollouts, or with --tasks on new ones.

    pass@k is unbiased; intervals are 95% of a bootstrap over tasks. A rollout counts for the
    version that its request named, as --policy P@VERSION does.

    Example: rollcall eval --run lake-any-start-20261121-155458-s7
    """
    from rollcall.consumers.history.versions.evaluation import Bootstrap
    from rollcall.consumers.history.versions.version_results import results_of

    run_id, only = "", (span.policy_id, span.version)
    if tasks:
        from rollcall.compose.conductor.live_evaluation import LiveEvaluation

        _require_policy_alone(span, compare)
        live = LiveEvaluation(tasks, n, seed, scoring_id, success_at, timeout_s)
        (run_id, evaluation), only = live.run(cluster(), span.policy()), ("", None)
    else:
        from rollcall.consumers.history.versions.evaluation import evaluate as evaluate_recorded

        selection = selection_of(cluster(), span, rate)
        evaluation = evaluate_recorded(selection, purpose, success_at)
    versions, bootstrap = evaluation.scored_by(scoring_id), Bootstrap(resamples, seed)
    results = results_of(versions, bootstrap, ks=k or (), only=only, compare=compare)
    _print(*results, evaluation.phases, run_id, json=json)


def _require_policy_alone(span: Range, compare: tuple[str, str] | None) -> None:
    """Raise Refused if --tasks is combined with options for recorded rollouts."""
    from rollcall.schemas.errors import Refused

    if not span.policy_id or span.beyond_policy():
        msg = "--tasks runs rollouts of one --policy; leave out other options of ranges"
        raise Refused(msg)
    if compare:
        msg = "--compare compares recorded rollouts; leave out --tasks"
        raise Refused(msg)


def _print(
    results: "list[VersionResult]",
    difference: "Difference | None",
    phases: "PhaseTimes",
    run_id: str,
    *,
    json: bool,
) -> None:
    from rollcall.compose.terminal import emit

    plain: dict[str, Any] = {"run_id": run_id} if run_id else {}
    plain |= {"versions": results} | ({"difference": difference} if difference else {})
    plain |= {"timers": phases.quantiles(), "environment_starts": phases.starts()}
    show = partial(print_evaluation, results, difference, phases=phases)
    emit(plain, show, json=json, one_line=True)
    if run_id and not json:
        say(f"again from the record: rollcall eval --run {run_id}")


def print_evaluation(
    results: "Sequence[VersionResult]",
    difference: "Difference | None",
    terminal: Console,
    *,
    phases: "PhaseTimes",
) -> None:
    """Print a table per policy with remarks, the times, and the comparison."""
    from rollcall.compose.pages.phase_lines import phase_lines

    for policy_id in sorted({result.policy_id for result in results}):
        terminal.print(_table([result for result in results if result.policy_id == policy_id]))
    lines = [line for result in results for line in _remarks(result)]
    for line in [*lines, *phase_lines(phases), *(_comparison(difference) if difference else ())]:
        terminal.print(line, highlight=False, soft_wrap=True)


def _table(results: "Sequence[VersionResult]") -> Table:
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


def _remarks(result: "VersionResult") -> Iterator[str]:
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


def _comparison(difference: "Difference") -> Iterator[str]:
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
