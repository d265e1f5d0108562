"""The cost of saving and publishing a version for a trainer of 135 million parameters.

One process (`compose/benchmarks/one_saver.py`) trains on 64 rollouts that sample 32 tokens each,
like a run; every second step runs without a save beside it. All three figures are from it:

`version_s`: the time from the end of a step to its version on the log, a bfloat16 delta, while the
next batch is trained. The ceiling is one sha256 of the published weights, on all cores.
`checkpoint_stall_s`: the delay of a step by the save of the one before. The ceiling is one copy of
weights and moments; a note gives the share of the step.
`peak_trainer_bytes`: the peak memory of the process. The ceiling is its memory before it had a
model, plus weights, gradients, two moments, and the bfloat16 weights that a delta is made from.
"""

import json
import os
import subprocess
from functools import lru_cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.benchmarks.language_model import language_model
from rollcall.compose.benchmarks.one_trainer import Shape
from rollcall.compose.processes import module
from rollcall.compose.settings import Settings
from rollcall.compose.workers import openmp
from rollcall.sandbox.package_index import last_error
from rollcall.schemas.errors import WorkFailed

SHAPE = Shape(groups=8, answers=8, prompt=16, answer=32)
STEPS = 5
STATES = 4.5
"""The state in sizes of the float32 weights: weights, gradients, two moments, bfloat16 copy."""


def version_s(settings: Settings) -> Figure:
    """Measure seconds to a version; raises LeftOut without the language model."""
    return of_version(seen(language_model(), SHAPE, STEPS))


def checkpoint_stall_s(settings: Settings) -> Figure:
    """Measure seconds of stall by a save; raises LeftOut without the language model."""
    return of_stall(seen(language_model(), SHAPE, STEPS))


def peak_trainer_bytes(settings: Settings) -> Figure:
    """Measure peak memory; raises LeftOut without the language model."""
    return of_peak(seen(language_model(), SHAPE, STEPS))


@lru_cache(maxsize=1)
def seen(directory: Path, shape: Shape, steps: int) -> dict[str, Any]:
    """Return the measurements of a process (`one_saver.Saved`); cached for the same arguments."""
    with TemporaryDirectory(prefix="rollcall-") as scratch:
        sizes = (steps, shape.groups, shape.answers, shape.prompt, shape.answer)
        words = module("rollcall.compose.benchmarks.one_saver", str(directory), scratch)
        environment = openmp.SETTING | os.environ  # as a worker of training has
        done = subprocess.run(
            [*words, *map(str, sizes)],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
    if done.returncode:
        msg = f"the trainer takes no step: {last_error(done.stderr)}"
        raise WorkFailed("no_step", msg, retriable=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of_version(found: dict[str, Any]) -> Figure:
    taken = found["version_s"]
    sizes = ", ".join(f"{size / 1e6:,.1f}" for size in found["delta_bytes"])
    notes = (f"{min(taken):.2f} to {max(taken):.2f} s; deltas of {sizes} MB",)
    return Figure(median(taken), "s", found["digest_s"], lower_is_better=True, notes=notes)


def of_stall(found: dict[str, Any]) -> Figure:
    plain, period = median(found["plain_s"]), median(found["period_s"])
    stall = max(0.0, period - plain)
    notes = (
        f"{period:.2f} s a step with saving, {plain:.2f} s without: {stall / plain:.0%} of it; "
        f"it stood still for {median(found['stall_s']):.2f} s",
    )
    return Figure(stall, "s", found["copy_s"], lower_is_better=True, notes=notes)


def of_peak(found: dict[str, Any]) -> Figure:
    states = STATES * found["weights_bytes"]
    notes = (
        f"{found['started_bytes'] / 1e9:.2f} GB before it had a model, {states / 1e9:.2f} GB of "
        "weights, gradients, moments and what is published",
    )
    ceiling = found["started_bytes"] + states
    return Figure(found["peak_bytes"], "bytes", ceiling, lower_is_better=True, notes=notes)
