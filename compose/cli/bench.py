"""`rollcall bench`."""

from pathlib import Path
from typing import Annotated

import typer

from compose.cli.connection import settings

LEARNING = "learning"


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which; all when left out; or `learning`.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures there.")] = None,
    recipe: Annotated[str, typer.Option(help="Of `learning`: which.")] = "lake-any-start",
    seeds: Annotated[int, typer.Option(min=1, help="Of `learning`: so many, from 1 on.")] = 5,
    memory: Annotated[bool, typer.Option("--memory", help="Of `learning`: without Kafka.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Of `learning`: draw a PNG there.")] = None,
) -> None:
    """Measure, each figure beside a ceiling measured in the same run.

    `learning` runs a recipe from many seeds to its last step, and tells how surely it learns.

    Example: rollcall bench learning --recipe lake-any-start --seeds 20 --memory
    """
    if names == [LEARNING]:
        from compose.benchmarks.learning_runs import learn

        learn(recipe, range(1, seeds + 1), memory=memory, json=json, picture=picture)
        return
    from compose.benchmarks.suite import run_benchmarks

    run_benchmarks(names or [], settings(), json)
