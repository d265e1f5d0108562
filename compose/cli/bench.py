"""`rollcall bench`."""

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from rollcall.compose.cli.connection import settings
from rollcall.compose.files import refuse_no_folder

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
