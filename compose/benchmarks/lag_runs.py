"""Runs of `learning_at_lag` that have ended, kept in a file as they end.

A hundred runs take hours: whoever is interrupted names the same file again, and what it holds is
not run once more.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import orjson

from compose.benchmarks.learning_runs import Evaluated, SeedRun
from compose.files import write_json
from schemas.errors import Refused
from schemas.ids import digest

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


@dataclass(eq=False)
class Kept:
    """What came of runs of one recipe, on one kind of log."""

    recipe: str
    """Its text as a digest."""
    memory: bool
    path: Path | None
    """None: they are only held."""
    runs: dict[tuple[Way, int], SeedRun] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, memory: bool, path: Path | None) -> "Kept":
        """With what a file of that name holds. Raises Refused where it holds something else."""
        kept = cls(digest(text).hex(), memory, path)
        if path is None or not path.is_file():
            return kept
        try:
            told = orjson.loads(path.read_bytes())
            same = (told["recipe"], told["memory"]) == (kept.recipe, memory)
            cells = [(Way(**each["way"]), map(_run, each["runs"])) for each in told["cells"]]
            kept.runs = {(way, run.seed): run for way, runs in cells for run in runs}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            msg = f"--json {str(path)!r} is there and holds no runs at lags; name another file"
            raise Refused(msg) from error
        if not same:
            msg = (
                f"--json {str(path)!r} holds runs of another recipe, or on another kind of log; "
                "name another file"
            )
            raise Refused(msg)
        return kept

    def add(self, way: Way, run: SeedRun) -> None:
        """Keep one more, at once."""
        self.runs[way, run.seed] = run
        if self.path is not None:
            ways = list(dict.fromkeys(way for way, _ in self.runs))
            cells = [asdict(self.cell(way)) for way in ways]
            write_json(self.path, {"recipe": self.recipe, "memory": self.memory, "cells": cells})

    def cell(self, way: Way, seeds: Sequence[int] | None = None) -> Cell:
        """Of these seeds, or of all that there are."""
        found = [(seed, run) for (at, seed), run in self.runs.items() if at == way]
        return Cell(
            way, tuple(run for seed, run in sorted(found) if seeds is None or seed in seeds)
        )


def _run(told: dict[str, Any]) -> SeedRun:
    evaluations = tuple(Evaluated(**each) for each in told["evaluations"])
    return SeedRun(**{**told, "evaluations": evaluations})
