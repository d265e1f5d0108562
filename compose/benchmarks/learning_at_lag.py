"""Comparison of losses on rollouts that are several versions old.

The same recipe runs at every lag: `max_staleness` is the lag, and as many rollouts are in flight as
it allows, so that training data really is about that old. The measured staleness is reported too.
Losses are compared with each other, each with the scheduled step size and with one reduced by the
effective sample size; a run continues to its last step.
"""

import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.table import Table

from rollcall.compose.benchmarks.lag_runs import GOOD, Cell, RunResults, Variant, recipe_digest
from rollcall.compose.benchmarks.learning_runs import RunFailed, SeedRun, endless, run_all
from rollcall.compose.console import PlainConsole
from rollcall.compose.extras import require
from rollcall.compose.files import refuse_no_folder
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.settings import load_settings
from rollcall.schemas.errors import Refused
from rollcall.trainer.config.learner_table import LearnerTable

LOSSES = ("clip_higher", "decoupled_ppo", "m2po", "gspo", "cispo")
STEP_SIZES = ("scheduled", "ess")
LAGS = (1, 4, 8, 16)
BESIDE = 0.06
"""The horizontal distance of ways in the plot; the next lag is at distance 1."""


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

    `lags` and `losses` are comma-separated lists; empty means all. Runs in the file `json` are not
    repeated, and each run is added as it ends. Raises Refused, also if one of them has another
    set-up, and the first RunFailed after the results of the others were printed.
    """
    require("tomli_w")
    for option, path in (("--json", json), ("--picture", picture)):
        refuse_no_folder(path, option)
    known, text = load_recipe(recipe)
    ways = ways_of(lags_of(lags), losses_of(losses))
    texts = {way: at_lag(text, way) for way in ways}
    settings = load_settings()
    kept = RunResults.of(lambda way: recipe_digest(at_lag(text, way), settings, memory), json)
    failed: list[RunFailed] = []
    jobs = [(way, seed) for way in ways for seed in seeds if (way, seed) not in kept.runs]
    with tempfile.TemporaryDirectory(prefix="rollcall-lag-") as folder:
        for way, ended in _runs(Path(folder), texts, jobs, known.evaluation.goal, memory=memory):
            if isinstance(ended, RunFailed):
                failed.append(ended)
            else:
                kept.add(way, ended)
    cells = [cell for way in ways if (cell := kept.cell(way, seeds)).runs]
    if cells:
        _show(cells)
        if picture is not None:
            draw(recipe, cells, picture)
    if failed:
        raise failed[0]
    return cells


def _show(cells: Sequence[Cell]) -> None:
    terminal = PlainConsole()
    terminal.print(table(cells))
    terminal.print(f"median success after all steps (seeds >= {GOOD:g}, mean staleness)")


def lags_of(text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of lags. Raises Refused."""
    try:
        lags = tuple(int(each) for each in text.split(",")) if text else LAGS
    except ValueError:
        lags = ()
    if not lags or min(lags) < 0:
        msg = f"--lags {text!r} is no list of versions; write such as 1,4,16"
        raise Refused(msg)
    return lags


def losses_of(text: str) -> tuple[str, ...]:
    """Parse a list of losses; the learner checks the names."""
    return tuple(each.strip() for each in text.split(",")) if text else LOSSES


def ways_of(lags: Sequence[int], losses: Sequence[str]) -> list[Variant]:
    """Return every loss with both step sizes at every lag."""
    return [Variant(*each) for each in product(losses, STEP_SIZES, lags)]


def at_lag(text: str, way: Variant) -> str:
    """Return a recipe that learns this way to its last step. Raises Refused if it cannot."""
    import tomli_w

    from rollcall.trainer.config.learner_config import LearnerConfig

    values: dict[str, Any] = tomllib.loads(endless(text))
    values["learner"] = learner = LearnerTable(**values.get("learner", {})).given()
    for spelled in ("clip_low", "clip_high", "clip_dual"):
        learner.pop(spelled, None)
    learner |= {"loss": way.loss, "step_size": way.step_size, "max_staleness": way.lag}
    learner.setdefault("aggregate", LearnerConfig().aggregate)  # the same for all compared losses
    config = LearnerConfig.of(learner)
    # The buffer must hold all rollouts in flight, or reading would pause.
    waiting = config.groups.per_step * (way.lag + 1)
    learner["capacity_groups"] = max(config.groups.capacity, waiting)
    values["max_running"] = max(values.get("max_running", 0), 4096, waiting * config.members)
    return tomli_w.dumps(values)


def _runs(
    folder: Path,
    texts: dict[Variant, str],
    jobs: Sequence[tuple[Variant, int]],
    goal: float,
    *,
    memory: bool,
) -> Iterator[tuple[Variant, SeedRun | RunFailed]]:
    files = {way: folder / str(way) / f"{way}.toml" for way in texts}
    for way, file in files.items():
        file.parent.mkdir()
        file.write_text(texts[way])
    ended = run_all([(files[way], seed) for way, seed in jobs], goal, memory=memory)
    return zip((way for way, _ in jobs), ended, strict=True)


def table(cells: Sequence[Cell]) -> Table:
    """Return a table with a row per loss and step size, and a column per lag."""
    lags = sorted({cell.way.lag for cell in cells})
    shown = Table("loss", "step size", *(f"lag {lag}" for lag in lags))
    found = {(c.way.loss, c.way.step_size, c.way.lag): str(c) for c in cells}
    for loss, step_size in dict.fromkeys((c.way.loss, c.way.step_size) for c in cells):
        shown.add_row(loss, step_size, *(found.get((loss, step_size, lag), "-") for lag in lags))
    return shown


def draw(recipe: str, cells: Sequence[Cell], path: Path) -> None:
    """Plot success by lag: a line per way through the medians, a small point per seed.

    Losses differ by colour, `ess` is dashed; ways are drawn side by side within a lag, as many
    have equal results. The format is PNG, or SVG by the path's suffix.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, at = plt.subplots(figsize=(8, 4.5))
    ways = list(dict.fromkeys((c.way.loss, c.way.step_size) for c in cells))
    lags = sorted({c.way.lag for c in cells})
    losses = list(dict.fromkeys(loss for loss, _ in ways))
    for number, (loss, step_size) in enumerate(ways):
        own = [c for c in cells if (c.way.loss, c.way.step_size) == (loss, step_size)]
        beside = BESIDE * (number - (len(ways) - 1) / 2)
        places = [lags.index(c.way.lag) + beside for c in own]
        colour, dashes = f"C{losses.index(loss)}", "--" if step_size == "ess" else "-"
        at.plot(
            places,
            [c.success for c in own],
            dashes,
            color=colour,
            marker="o",
            markersize=5,
            linewidth=1,
            label=f"{loss}, {step_size}",
        )
        seeds = [(x, run.after) for x, c in zip(places, own, strict=True) for run in c.runs]
        at.plot(*zip(*seeds, strict=True), ".", color=colour, markersize=4, alpha=0.5)
    at.axhline(GOOD, color="grey", linestyle=":", linewidth=1)
    at.set(xlabel="lag in versions", ylabel="held-out success", ylim=(-0.05, 1.05), title=recipe)
    at.set_xticks(range(len(lags)), [str(lag) for lag in lags])
    at.legend(fontsize=7, loc="lower left", ncols=2)
    at.grid(alpha=0.3, axis="y")
    figure.tight_layout()
    kind = "svg" if path.suffix == ".svg" else "png"
    undated = {"Date": None} if kind == "svg" else None
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": recipe}):
        figure.savefig(path, format=kind, dpi=120, metadata=undated)
    plt.close(figure)
