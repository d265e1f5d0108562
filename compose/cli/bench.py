"""`rollcall bench`."""

from pathlib import Path
from typing import Annotated

import typer

from compose.cli.connection import settings


def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Which; all when left out.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures there.")] = None,
) -> None:
    """Measure, each figure beside a ceiling measured in the same run."""
    from compose.benchmarks.suite import run_benchmarks

    run_benchmarks(names or [], settings(), json)
