"""The reliability of a recipe's learning: the same run from many seeds, to its last step.

It has no ceiling: seeds are compared with each other, and a recipe with its earlier results. A run
is a separate process, and continues after the goal, since its success may decline again.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from rollcall.compose.files import refuse_no_folder, write_json
from rollcall.compose.processes import module
from rollcall.compose.runs.recipe import load_recipe
from rollcall.schemas.errors import RollcallError
from rollcall.schemas.untrusted_text import describe_value

ENDLESS = 2.0
"""A goal that no share of rollouts can reach."""


class RunFailed(RollcallError):
    """A seed's process failed; the message has the seed and the end of its log."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One held-out evaluation of a run."""

    step: int
    success: float
    calls: int
    """The model calls of the whole run up to its completion."""


@dataclass(frozen=True, slots=True)
class SeedRun:
    """The result of one seed."""

    seed: int
    goal: float
    evaluations: tuple[Evaluated, ...]
    starts_solved: int
    starts: int
    wall_s: float
    staleness: float = 0.0
    """The mean staleness in versions over all steps."""

    @property
    def reached(self) -> Evaluated | None:
        """Return the first evaluation at the goal."""
        return next((each for each in self.evaluations if each.success >= self.goal), None)

    @property
    def after(self) -> float:
        """Return the success after the last step."""
        return self.evaluations[-1].success

    @property
    def worst_after(self) -> float | None:
        """Return the lowest success since the first evaluation at the goal."""
        first = self.reached
        return min(
            (e.success for e in self.evaluations if first and e.step >= first.step), default=None
        )


def learn(
    recipe: str, seeds: Sequence[int], *, memory: bool, json: Path | None, picture: Path | None
) -> list[SeedRun]:
    """Run the recipe from every seed; print a table, draw a picture.

    Raises Refused, and if runs failed, the first one's RunFailed after the others' results.
    """
    for option, path in (("--json", json), ("--picture", picture)):
        refuse_no_folder(path, option)
    with tempfile.TemporaryDirectory(prefix="rollcall-learning-") as folder:
        ended = list(_runs(recipe, seeds, Path(folder), memory=memory))
    runs = [each for each in ended if isinstance(each, SeedRun)]
    failed = [each for each in ended if isinstance(each, RunFailed)]
    if not runs:
        raise failed[0]
    terminal = Console()
    terminal.print(table(runs))
    for line in lines(runs):
        terminal.print(line, highlight=False)
    if json is not None:
        write_json(json, runs)
    if picture is not None:
        draw(recipe, runs, picture)
    if failed:
        raise failed[0]
    return runs


def endless(text: str) -> str:
    """Return a recipe that continues to its last step, regardless of its goal."""
    without = re.sub(r"(?m)^goal\s*=.*\n?", "", text)
    heading = "[evaluation]"
    if heading not in without:
        return f"{without}\n{heading}\ngoal = {ENDLESS}\n"
    return without.replace(heading, f"{heading}\ngoal = {ENDLESS}", 1)


def _runs(
    recipe: str, seeds: Sequence[int], folder: Path, *, memory: bool
) -> Iterator["SeedRun | RunFailed"]:
    known, text = load_recipe(recipe)
    file = folder / f"{known.name}.toml"
    file.write_text(endless(text))
    goal = known.evaluation.goal
    return run_all([(file, seed) for seed in seeds], goal, memory=memory)


def run_all(
    jobs: Sequence[tuple[Path, int]], goal: float, *, memory: bool
) -> Iterator["SeedRun | RunFailed"]:
    """Run each recipe's file from its seed, beside the file; yield the results in order.

    In memory there are as many at once as cores, on a broker one.
    """
    with ThreadPoolExecutor((os.cpu_count() or 1) if memory else 1) as pool:
        made = [pool.submit(run_seed, file, s, file.parent, goal, memory) for file, s in jobs]
        for each in made:
            error = each.exception()
            yield error if isinstance(error, RunFailed) else each.result()


def run_seed(file: Path, seed: int, folder: Path, goal: float, memory: bool) -> SeedRun:
    """Run a recipe's file from one seed in a separate process; raises RunFailed."""
    summary = folder / f"{seed}.json"
    words = ["run", str(file), "--seed", str(seed), "--summary", str(summary)]
    done = subprocess.run(
        module("rollcall.compose.cli", *words, *(["--log", "memory"] if memory else [])),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ROLLCALL_STATE_DIR": str(folder / f"state-{seed}")},
    )
    if done.returncode:
        why = describe_value(done.stderr[-400:], str, 400)
        msg = f"seed {seed} of {file.name} ended with exit code {done.returncode}: {why}"
        raise RunFailed(msg)
    return read_summary(orjson.loads(summary.read_bytes()), goal)


def read_summary(told: dict[str, object], goal: float) -> SeedRun:
    """Read the learning results from a run's summary."""
    held_out: Any = told["held_out"]
    evaluations = tuple(Evaluated(*each) for each in held_out if each[1] is not None)
    if not evaluations:
        msg = f"seed {told['seed']}: no evaluation of it was measured"
        raise RunFailed(msg)
    return SeedRun(
        int(str(told["seed"])),
        goal,
        evaluations,
        int(str(told["starts_solved"])),
        int(str(told["starts"])),
        float(str(told["wall_seconds"])),
        float(str(told.get("staleness_mean", 0.0))),
    )


def table(runs: Iterable[SeedRun]) -> Table:
    """Return a table with a row for each seed."""
    shown_ = Table("seed", "calls to goal", "steps to goal", "after all", "worst since", "starts")
    for column in shown_.columns:
        column.justify = "right"
    for run in runs:
        first = run.reached
        shown_.add_row(
            str(run.seed),
            f"{first.calls:,}" if first else "-",
            str(first.step) if first else "-",
            f"{run.after:.3f}",
            "-" if run.worst_after is None else f"{run.worst_after:.3f}",
            f"{run.starts_solved} of {run.starts}",
        )
    return shown_


def lines(runs: Sequence[SeedRun]) -> Iterator[str]:
    """Yield the results over all seeds."""
    calls = [first.calls for run in runs if (first := run.reached)]
    goal = runs[0].goal
    yield f"{len(calls)} of {len(runs)} seeds came to {goal:g}"
    if calls:
        yield f"calls to it: median {median(calls):,.0f}, most {max(calls):,}"
    kept = sum(run.worst_after is not None and run.worst_after >= goal for run in runs)
    yield f"{kept} of {len(runs)} never fell below it afterwards"
    whole = sum(run.starts_solved == run.starts for run in runs)
    yield f"{whole} of {len(runs)} solved every start after the last step"


def draw(recipe: str, runs: Sequence[SeedRun], path: Path) -> None:
    """Plot held-out success of every seed by model calls, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, at = plt.subplots(figsize=(7, 4))
    for run in runs:
        at.plot([e.calls for e in run.evaluations], [e.success for e in run.evaluations], alpha=0.6)
    at.axhline(runs[0].goal, color="grey", linestyle="--", linewidth=1)
    at.set(
        xlabel="model calls",
        ylabel="held-out success",
        ylim=(-0.05, 1.05),
        title=f"{recipe}: {len(runs)} seeds",
    )
    at.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, format="png", dpi=120)
    plt.close(figure)
