"""Finished runs of `learning_at_lag`, kept in a file as they end.

A hundred runs take hours: after an interruption, the same file is named again, and its runs are not
repeated. Each run has the digest of its effective recipe and settings: a file with a run of another
digest is refused, so that a table does not mix two set-ups.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import orjson

from rollcall.compose.benchmarks.learning_runs import Evaluated, SeedRun
from rollcall.compose.files import write_json
from rollcall.compose.settings import Settings
from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import digest

GOOD = 0.85
"""The held-out success that a loss is expected to reach."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The loss, step size and lag of a cell of the table."""

    loss: str
    step_size: str
    lag: int

    def __str__(self) -> str:
        return f"{self.loss}-{self.step_size}-{self.lag}"


@dataclass(frozen=True, slots=True)
class Cell:
    """The runs of one way, from every seed."""

    way: Variant
    runs: tuple[SeedRun, ...]

    @property
    def success(self) -> float:
        """Return the success after the last step, the median over the seeds."""
        return median(run.after for run in self.runs)

    @property
    def staleness(self) -> float:
        """Return the mean staleness in versions over all steps of all seeds."""
        return fmean(run.staleness for run in self.runs)

    @property
    def good(self) -> int:
        """Return the number of seeds that reached `GOOD`."""
        return sum(run.after >= GOOD for run in self.runs)

    def __str__(self) -> str:
        return f"{self.success:.2f} ({self.good}/{len(self.runs)}, {self.staleness:.1f})"


MadeBy = Callable[[Variant], str]
"""A function that returns the digest of a way's set-up; raises Refused for an invalid one."""


def recipe_digest(recipe: str, settings: Settings, memory: bool) -> str:
    """Return a digest of all that determines a recipe's result beside the seed and the code.

    Comments and the order of keys do not count; of settings, those of serving and training do.
    """
    parts = {
        "recipe": tomllib.loads(recipe),
        "models": settings.models.model_dump(),
        "training": settings.training.model_dump(),
        "memory": memory,
    }
    return digest(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS).decode()).hex()


@dataclass(eq=False)
class RunResults:
    """The results of runs, all with the digests of `recipe_digest`."""

    made_by: MadeBy
    path: Path | None
    """The file; None: they are kept in memory only."""
    runs: dict[tuple[Variant, int], SeedRun] = field(default_factory=dict)

    @classmethod
    def of(cls, made_by: MadeBy, path: Path | None) -> "RunResults":
        """Load the runs of a file, if it exists. Raises Refused if it holds anything else."""
        kept = cls(made_by, path)
        if path is None or not path.is_file():
            return kept
        try:
            told = orjson.loads(path.read_bytes())
            for cell in told["cells"]:
                way = Variant(**cell["way"])
                for each in cell["runs"]:
                    digest_, run = each.pop("made_by"), _run(each)
                    kept._require(way, run, digest_)
                    kept.runs[way, run.seed] = run
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            msg = f"--json {str(path)!r} is there and holds no runs at lags; name another file"
            raise Refused(msg) from error
        return kept

    def _require(self, way: Variant, run: SeedRun, digest_: str) -> None:
        """Raise Refused for a run with another digest."""
        try:
            same = self.made_by(way) == digest_
        except Refused:
            same = False
        if not same:
            msg = (
                f"--json {str(self.path)!r} holds a run of another recipe, of other settings or on "
                f"another kind of log: {way}, seed {run.seed}; name another file"
            )
            raise Refused(msg)

    def add(self, way: Variant, run: SeedRun) -> None:
        """Add a run, and write it at once."""
        self.runs[way, run.seed] = run
        if self.path is not None:
            ways = list(dict.fromkeys(way for way, _ in self.runs))
            write_json(self.path, {"cells": [self._plain(way) for way in ways]})

    def _plain(self, way: Variant) -> dict[str, Any]:
        own = {"made_by": self.made_by(way)}
        return {"way": asdict(way), "runs": [own | asdict(run) for run in self.cell(way).runs]}

    def cell(self, way: Variant, seeds: Sequence[int] | None = None) -> Cell:
        """Return the cell of a way with these seeds, or with all."""
        found = [(seed, run) for (at, seed), run in self.runs.items() if at == way]
        return Cell(
            way, tuple(run for seed, run in sorted(found) if seeds is None or seed in seeds)
        )


def _run(told: dict[str, Any]) -> SeedRun:
    evaluations = tuple(Evaluated(**each) for each in told["evaluations"])
    return SeedRun(**{**told, "evaluations": evaluations})
