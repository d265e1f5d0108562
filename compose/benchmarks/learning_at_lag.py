"""How well losses learn from rollouts that are several versions old.

The same recipe at every lag: `max_staleness` is the lag, and as many rollouts are kept in the air
as it allows, so that what is trained on really is about as old. How old it was is told beside it.
Losses are compared with one another, each with the step as large as the schedule says and with one
that the effective sample size makes smaller; a run goes on to its last step.
"""

import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from compose.benchmarks.learning_runs import RunFailed, SeedRun, endless, run_all
from compose.extras import require
from compose.files import refuse_no_folder, write_json
from compose.runs.recipe import load_recipe
from schemas.errors import Refused

LOSSES = ("clip_higher", "decoupled_ppo", "m2po", "gspo", "cispo")
STEP_SIZES = ("scheduled", "ess")
LAGS = (1, 4, 8, 16)
GOOD = 0.85
"""Held-out success that a loss is expected to come to."""


@dataclass(frozen=True, slots=True)
class Way:
    """What a cell of the table was trained with."""

    loss: str
    step_size: str
    lag: int

    def __str__(self) -> str:
        return f"{self.loss}-{self.step_size}-{self.lag}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One way, from every seed."""

    way: Way
    runs: tuple[SeedRun, ...]

    @property
    def success(self) -> float:
        """After the last step, the median of the seeds."""
        return median(run.after for run in self.runs)

    @property
    def staleness(self) -> float:
        """Versions, the mean of all steps of all seeds."""
        return fmean(run.staleness for run in self.runs)

    @property
    def good(self) -> int:
        """Seeds that came to `GOOD`."""
        return sum(run.after >= GOOD for run in self.runs)

    def __str__(self) -> str:
        return f"{self.success:.2f} ({self.good}/{len(self.runs)}, {self.staleness:.1f})"


def learn_at_lag(
    recipe: str,
    seeds: Sequence[int],
    *,
    memory: bool,
    lags: str = "",
    losses: str = "",
    json: Path | None = None,
    picture: Path | None = None,
) -> list[Cell]:
    """Train every way from every seed; print a table, draw a picture.

    `lags` and `losses` are lists with commas, of all where they are empty. Raises Refused, and the
    first RunFailed after what came of the others was told.
    """
    require("tomli_w")
    for option, path in (("--json", json), ("--picture", picture)):
        refuse_no_folder(path, option)
    known, text = load_recipe(recipe)
    ways = ways_of(lags_of(lags), losses_of(losses))
    texts = {way: at_lag(text, way) for way in ways}
    with tempfile.TemporaryDirectory(prefix="rollcall-lag-") as folder:
        ended = list(_runs(Path(folder), texts, seeds, known.evaluation.goal, memory=memory))
    cells = [cell for way in ways if (cell := _cell(way, ended)).runs]
    failed = [error for _, error in ended if isinstance(error, RunFailed)]
    if cells:
        terminal = Console()
        terminal.print(table(cells))
        terminal.print(f"median success after all steps (seeds >= {GOOD:g}, mean staleness)")
        if json is not None:
            write_json(json, cells)
        if picture is not None:
            draw(recipe, cells, picture)
    if failed:
        raise failed[0]
    return cells


def lags_of(text: str) -> tuple[int, ...]:
    """Of a list with commas. Raises Refused."""
    try:
        lags = tuple(int(each) for each in text.split(",")) if text else LAGS
    except ValueError:
        lags = ()
    if not lags or min(lags) < 0:
        msg = f"--lags {text!r} is no list of versions; write such as 1,4,16"
        raise Refused(msg)
    return lags


def losses_of(text: str) -> tuple[str, ...]:
    """The same of losses; which there are says the learner."""
    return tuple(each.strip() for each in text.split(",")) if text else LOSSES


def ways_of(lags: Sequence[int], losses: Sequence[str]) -> list[Way]:
    """Every loss with both step sizes at every lag."""
    return [Way(*each) for each in product(losses, STEP_SIZES, lags)]


def at_lag(text: str, way: Way) -> str:
    """A recipe that learns this way to its last step. Raises Refused where that cannot be."""
    import tomli_w

    from trainer.config import LearnerConfig

    values: dict[str, Any] = tomllib.loads(endless(text))
    learner = values.setdefault("learner", {})
    for spelled in ("clip_low", "clip_high", "clip_dual"):
        learner.pop(spelled, None)
    learner |= {"loss": way.loss, "step_size": way.step_size, "max_staleness": way.lag}
    config = LearnerConfig.of(learner)
    # What may wait has to hold all that may be in the air, or reading would stop in between.
    waiting = config.groups_per_step * (way.lag + 1)
    learner["capacity_groups"] = max(config.capacity_groups, waiting)
    values["max_running"] = max(values.get("max_running", 0), 4096, waiting * config.members)
    return tomli_w.dumps(values)


def _runs(
    folder: Path,
    texts: dict[Way, str],
    seeds: Sequence[int],
    goal: float,
    *,
    memory: bool,
) -> Iterator[tuple[Way, SeedRun | RunFailed]]:
    files = {way: folder / str(way) / f"{way}.toml" for way in texts}
    for way, file in files.items():
        file.parent.mkdir()
        file.write_text(texts[way])
    jobs = [(way, seed) for way in texts for seed in seeds]
    ended = run_all([(files[way], seed) for way, seed in jobs], goal, memory=memory)
    return zip((way for way, _ in jobs), ended, strict=True)


def _cell(way: Way, ended: Sequence[tuple[Way, SeedRun | RunFailed]]) -> Cell:
    return Cell(
        way, tuple(run for at, run in ended if at == way and isinstance(run, SeedRun))
    )  # fmt: skip


def table(cells: Sequence[Cell]) -> Table:
    """A row for a loss with a step size, a column for a lag."""
    lags = sorted({cell.way.lag for cell in cells})
    shown = Table("loss", "step size", *(f"lag {lag}" for lag in lags))
    found = {(c.way.loss, c.way.step_size, c.way.lag): str(c) for c in cells}
    for loss, step_size in dict.fromkeys((c.way.loss, c.way.step_size) for c in cells):
        shown.add_row(
            loss, step_size, *(found.get((loss, step_size, lag), "-") for lag in lags)
        )  # fmt: skip
    return shown


def draw(recipe: str, cells: Sequence[Cell], path: Path) -> None:
    """Median success by lag, a line for each way, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, at = plt.subplots(figsize=(7, 4))
    for loss, step_size in dict.fromkeys((c.way.loss, c.way.step_size) for c in cells):
        own = [c for c in cells if (c.way.loss, c.way.step_size) == (loss, step_size)]
        dashes = "--" if step_size == "ess" else "-"
        at.plot([c.way.lag for c in own], [c.success for c in own], dashes, marker="o",
                label=f"{loss}, {step_size}")  # fmt: skip
    at.axhline(GOOD, color="grey", linestyle=":", linewidth=1)
    at.set(xlabel="lag in versions", ylabel="held-out success", ylim=(-0.05, 1.05), title=recipe)
    at.legend(fontsize=7)
    at.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, format="png", dpi=120)
    plt.close(figure)
