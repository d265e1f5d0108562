"""Runs of `learning_at_lag` that have ended, kept in a file as they end.

A hundred runs take hours: whoever is interrupted names the same file again, and what it holds is
not run once more. With each run stands the digest of what it was trained with, recipe and settings
as they are at work: a file in which one run has another is refused, so that no table mixes two.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import orjson

from compose.benchmarks.learning_runs import Evaluated, SeedRun
from compose.files import write_json
from compose.settings import Settings
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


MadeBy = Callable[[Way], str]
"""The digest of what a way is trained with; raises Refused for one that cannot be trained."""


def made_by(recipe: str, settings: Settings, memory: bool) -> str:
    """A digest of all that decides what comes of a recipe's text, beside the seed and the code.

    Comments and the order of keys do not count; of settings what serves and what trains does.
    """
    parts = {
        "recipe": tomllib.loads(recipe),
        "models": settings.models.model_dump(),
        "training": settings.training.model_dump(),
        "memory": memory,
    }
    return digest(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS).decode()).hex()


@dataclass(eq=False)
class Kept:
    """What came of runs, all of which were trained with what `made_by` says."""

    made_by: MadeBy
    path: Path | None
    """None: they are only held."""
    runs: dict[tuple[Way, int], SeedRun] = field(default_factory=dict)

    @classmethod
    def of(cls, made_by: MadeBy, path: Path | None) -> "Kept":
        """With what a file of that name holds. Raises Refused where it holds something else."""
        kept = cls(made_by, path)
        if path is None or not path.is_file():
            return kept
        try:
            told = orjson.loads(path.read_bytes())
            for cell in told["cells"]:
                way = Way(**cell["way"])
                for each in cell["runs"]:
                    digest_, run = each.pop("made_by"), _run(each)
                    kept._require(way, run, digest_)
                    kept.runs[way, run.seed] = run
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            msg = f"--json {str(path)!r} is there and holds no runs at lags; name another file"
            raise Refused(msg) from error
        return kept

    def _require(self, way: Way, run: SeedRun, digest_: str) -> None:
        """Raise Refused for a run that was trained with something else."""
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

    def add(self, way: Way, run: SeedRun) -> None:
        """Keep one more, at once."""
        self.runs[way, run.seed] = run
        if self.path is not None:
            ways = list(dict.fromkeys(way for way, _ in self.runs))
            write_json(self.path, {"cells": [self._plain(way) for way in ways]})

    def _plain(self, way: Way) -> dict[str, Any]:
        own = {"made_by": self.made_by(way)}
        return {"way": asdict(way), "runs": [own | asdict(run) for run in self.cell(way).runs]}

    def cell(self, way: Way, seeds: Sequence[int] | None = None) -> Cell:
        """Of these seeds, or of all that there are."""
        found = [(seed, run) for (at, seed), run in self.runs.items() if at == way]
        return Cell(
            way, tuple(run for seed, run in sorted(found) if seeds is None or seed in seeds)
        )


def _run(told: dict[str, Any]) -> SeedRun:
    evaluations = tuple(Evaluated(**each) for each in told["evaluations"])
    return SeedRun(**{**told, "evaluations": evaluations})
