"""`rollcall eval`."""

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
def evaluate(
    span: Range,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Two versions, P@VERSION, paired by task."),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="Run these now: JSON Lines, or a recipe's held-out seeds.")
    ] = "",
    n: Annotated[int, typer.Option("--n", min=1, help="Rollouts of each task.")] = 1,
    k: Annotated[
        list[int] | None,
        typer.Option("--k", min=1, help="pass@K; repeatable. Unasked 1, 2, 4, 8 and 16."),
    ] = None,
    purpose: Annotated[str, typer.Option(help="Of which rollouts: evaluate, train.")] = (
        "evaluate"
    ),
    scoring_id: Annotated[str, typer.Option(help="Whose rewards, where there are several.")] = "",
    success_at: SuccessAt = 1.0,
    resamples: Annotated[int, typer.Option(min=1, help="Of the bootstrap.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap and live rollouts.")] = 0,
    timeout_s: Annotated[float, typer.Option(help="How long to wait for live ones.")] = 600.0,
    rate: Rate = None,
    json: Json = False,
) -> None:
    """Say how good the versions of a policy are: from the record, or with --tasks from now.

    pass@k is unbiased; intervals are 95% of a bootstrap over tasks. A rollout counts for the
    version that it was asked of, which --policy P@VERSION names here.

    Example: rollcall eval --run lake-any-start-20261121-155458-s7
    """
    import orjson
    from rich.console import Console

    from compose import evaluate as evaluating
    from schemas.errors import Refused

    run_id = ""
    if tasks:
        if not span.policy_id or span.beyond_policy():
            msg = "--tasks runs rollouts of one --policy; it goes with no other range"
            raise Refused(msg)
        if compare:
            msg = "--compare compares what is recorded; give it without --tasks"
            raise Refused(msg)
        run_id, found = evaluating.live(
            cluster(),
            span.policy(),
            tasks,
            n=n,
            seed=seed,
            scoring_id=scoring_id,
            success_at=success_at,
            timeout_s=timeout_s,
        )
    else:
        found = evaluating.offline(
            selection_of(cluster(), span, rate), purpose=purpose, success_at=success_at
        )
    made, difference = evaluating.tell(
        found,
        policy=("", None) if tasks else (span.policy_id, span.version),
        compare=compare,
        scoring_id=scoring_id,
        ks=k or (),
        resamples=resamples,
        seed=seed,
    )
    if json:
        typer.echo(orjson.dumps(evaluating.plain(made, difference, run_id)))
        return
    terminal = Console()
    evaluating.show(made, terminal)
    if difference:
        evaluating.show_difference(difference, terminal)
    if run_id:
        typer.echo(f"again from the record: rollcall eval --run {run_id}")
