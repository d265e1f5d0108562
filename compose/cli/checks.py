"""`rollcall verify`, `chaos` and `bench`."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcall.compose.cli.connection import cluster, settings
from rollcall.compose.files import refuse_no_folder

Since = Annotated[str, typer.Option(help="Read from this time on: 30m, 2h, 3d ago, or ISO 8601.")]
Until = Annotated[str, typer.Option(help="Check only records before this time.")]
Drained = Annotated[
    bool,
    typer.Option(
        "--drained", help="Expect all work to have ended; open or pending work is a breach."
    ),
]
MostRepeated = Annotated[
    int | None, typer.Option(min=0, help="The most repeated commands; more are a breach.")
]
MostRewritten = Annotated[
    int | None,
    typer.Option(min=0, help="The most repeated trajectories, scores or steps; more are a breach."),
]
Scorings = Annotated[
    list[str] | None,
    typer.Option(help="A scoring that owes scores; default: all that are not retired."),
]
RunPrograms = Annotated[
    bool,
    typer.Option(
        "--run-programs/--no-run-programs",
        help="Run agent programs again; without it, checks that need them are left out.",
    ),
]
Json = Annotated[Path | None, typer.Option(help="Write the whole report to this file.")]


def verify(
    since: Since = "",
    until: Until = "",
    drained: Drained = False,
    most_repeated: MostRepeated = None,
    most_rewritten: MostRewritten = None,
    scoring: Scorings = None,
    run_programs: RunPrograms = True,
    json: Json = None,
) -> None:
    """Check from the log that no rollout was lost or doubled.

    Reads the topics, joins no group and changes nothing. The exit code is 1 if an invariant is
    broken.

    Example: rollcall verify --since 2h --json report.json
    """
    from rollcall.compose.cli.range_options import parse
    from rollcall.compose.console import PageConsole
    from rollcall.compose.files import refuse_no_folder, write_json
    from rollcall.compose.pages.audit_page import audit_with_bar, print_report

    terminal, span = PageConsole(), parse(since, until)
    refuse_no_folder(json)
    report = audit_with_bar(
        cluster(),
        terminal,
        since_ms=span.since_ms,
        until_ms=span.until_ms,
        drained=drained,
        most_repeated=most_repeated,
        most_rewritten=most_rewritten,
        scorings=scoring or None,
        run_programs=run_programs,
    )
    print_report(report, terminal)
    if json is not None:
        write_json(json, report.plain())
    raise typer.Exit(0 if report.ok else 1)


if TYPE_CHECKING:
    from rollcall.compose.chaos.plan import ChaosPlan

Minutes = Annotated[float | None, typer.Option(help="The duration of the faults.")]
Seed = Annotated[int, typer.Option(help="The seed of schedule and workload.")]
Kill = Annotated[
    str, typer.Option(help="The roles to kill, pause and cut off from the network, by comma.")
]
Kills = Annotated[
    int | None, typer.Option(help="Run until this number of SIGKILLs, instead of --minutes.")
]
Rollouts = Annotated[
    int | None, typer.Option(help="Rollouts to publish; default: enough to keep all workers busy.")
]
Beside = Annotated[
    Path | None,
    typer.Option(
        metavar="WHEEL",
        help="Run half of the workers from this release; workers change release with every kill. "
        "No rollout uses a hosted agent then.",
    ),
]
Recipe = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE", help="The recipe to train: training, training-async, or a file."
    ),
]
ChaosJson = Annotated[Path | None, typer.Option(help="Write the figures to this file.")]
Keep = Annotated[
    Path | None, typer.Option(help="Keep the log and the workers' logs in this directory.")
]

EVERYBODY = (
    "agents,models,environments,rewards,processes,boxes,training,broker,registry,stranger,clocks,"
    "ids,store,log"
)


def chaos(
    minutes: Minutes = None,
    seed: Seed = 7,
    kill: Kill = EVERYBODY,
    kills: Kills = None,
    rollouts: Rollouts = None,
    beside: Beside = None,
    recipe: Recipe = "training",
    json: ChaosJson = None,
    keep: Keep = None,
) -> None:
    """Kill, pause and disconnect processes on a broker of their own; then verify the log.

    The exit code is 0 if the following holds, otherwise 1: no rollout was lost, doubled or breached
    an invariant; no answered request of an agent led to a second model call; every shell ran its
    commands; no box is left; training the same steps without kills gives the same weights to the
    bit; each open transaction of a `stranger` was reported while it lasted.

    `engine` is a docker engine of this run, for half of the shells; it needs root. `clocks` sets a
    worker's wall clock back by hours and then right again. `ids` lets the registry assign other
    schemas to its ids. `store` makes the object store unavailable. `log` truncates a partition,
    which a worker must report. None of these may send a record to `dead.letters`.

    Example: rollcall chaos --minutes 10 --seed 7 --json chaos.json

    The soak: rollcall chaos --kills 1000

    A trainer alone: rollcall chaos --kill training --kills 100 --recipe training-async

    A rolling upgrade and back: rollcall chaos --minutes 5 --beside rollcall-0.2.0-py3-none-any.whl
    """
    from rollcall.compose.chaos.faults import roles_of
    from rollcall.compose.chaos.plan import ChaosPlan

    plan = ChaosPlan(seed, roles_of(kill), minutes, kills, rollouts, recipe, beside)
    raise typer.Exit(_harm(plan, json, keep))


def _harm(plan: "ChaosPlan", json: Path | None, keep: Path | None) -> int:
    """Run the plan; return the exit code."""
    from rollcall.compose.chaos.run import run_chaos
    from rollcall.compose.conductor.conductor import Stopped
    from rollcall.compose.console import PlainConsole

    terminal = PlainConsole()
    try:
        return 0 if run_chaos(settings(), plan, json=json, keep=keep, terminal=terminal) else 1
    except Stopped:
        terminal.print("stopped; everything was taken down")
        return 130


LEARNING = "learning"
AT_LAG = "learning_at_lag"


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="The figures; default: all. Or `learning`, `learning_at_lag`."),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(help="Write the figures to this file; `learning_at_lag` resumes from it."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="For `learning`: the recipe.")] = "lake-any-start",
    seeds: Annotated[int, typer.Option(min=1, help="For `learning`: train seeds 1 to N.")] = 5,
    memory: Annotated[bool, typer.Option("--memory", help="Train without Kafka.")] = False,
    picture: Annotated[Path | None, typer.Option(help="For `learning`: draw this PNG.")] = None,
    lags: Annotated[str, typer.Option(help="For `learning_at_lag`: such as 1,16.")] = "",
    losses: Annotated[str, typer.Option(help="For `learning_at_lag`: such as m2po,gspo.")] = "",
) -> None:
    """Run benchmarks; each figure has a ceiling or peer measured in the same run.

    `learning` trains a recipe with several seeds, and shows how reliably it learns.
    `learning_at_lag` shows how well each loss learns from rollouts that are several versions old.

    Example: rollcall bench learning --recipe lake-any-start --seeds 20 --memory
    """
    _end_in_order()
    told: dict[str, Any] = {"memory": memory, "json": json, "picture": picture}
    if names == [LEARNING]:
        from rollcall.compose.benchmarks.learning_runs import learn

        learn(recipe, range(1, seeds + 1), **told)
        return
    if names == [AT_LAG]:
        from rollcall.compose.benchmarks.learning_at_lag import learn_at_lag

        learn_at_lag(recipe, range(1, seeds + 1), lags=lags, losses=losses, **told)
        return
    refuse_no_folder(json)  # benchmarks take seconds to import
    from rollcall.compose.benchmarks.suite import run_benchmarks

    run_benchmarks(names or [], settings(), json)


def _end_in_order() -> None:
    """Treat SIGTERM like Ctrl-C, also in a shell's background, so that processes are ended."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
