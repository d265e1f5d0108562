"""The cost of saving and publishing a version, and the size and speed of deltas.

One process (`compose/benchmarks/one_saver.py`) trains the model of 135 million parameters on 64
rollouts that sample 32 tokens each, like a run; every second step runs without a save beside it:

`version_s`: the time from the end of a step to its version on the log, a bfloat16 delta, while the
next batch is trained. The ceiling is one sha256 of the published weights, on all cores.
`checkpoint_stall_s`: the delay of a step by the save of the one before. The ceiling is one copy of
weights and moments; a note gives the share of the step.
`peak_trainer_bytes`: the peak memory of the process. The ceiling is its memory before it had a
model, plus weights, gradients, two moments, and the bfloat16 weights that a delta is made from.

`delta_ratio` trains a language model for some versions like a recipe with `publish = "bfloat16"`
and `weights = "delta"`, at the learning rate of such runs, and takes the median of all but the
first, since Adam's first step changes everything. Its ceiling is a delta with values but without
positions. `delta_bytes_per_s` uses bfloat16 weights with the layout of SmolLM2-135M, with as many
changed elements as were seen there; the slower of making and reading counts, the best of several
turns, and the ceiling is one sha256 of the weights on all cores.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rollcall.compose.benchmarks.figure import Figure, timed
from rollcall.compose.benchmarks.one_trainer import Shape
from rollcall.compose.benchmarks.requirements import language_model
from rollcall.compose.processes import module
from rollcall.compose.settings import Settings
from rollcall.compose.workers import rank_processes
from rollcall.sandbox.package_index import last_error
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.published_weights import HeldWeights, Published, write_delta
from rollcall.schemas.weight_deltas import compared
from rollcall.schemas.weights import RawTensor, sha256s_of, write_weights

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
        environment = rank_processes.SETTING | os.environ  # as a worker of training has
        done = subprocess.run(
            [*words, *map(str, sizes)], capture_output=True, text=True, check=False, env=environment
        )
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


VERSIONS = 10
LAYERS, LAYER, EMBEDDING = 30, 3_540_096, 28_311_552
"""The number of layers, and the elements of a layer and the embedding, as in the model."""
DENSITY = 0.007
TURNS = 3


def delta_ratio(settings: Settings, versions: int = VERSIONS) -> Figure:
    """Measure the language model; raises LeftOut if it has not been fetched."""
    return ratio_of(language_model(), versions)


def ratio_of(directory: Path, versions: int) -> Figure:
    """Return the figure of any policy's directory."""
    from rollcall.compose.benchmarks.one_trainer import Shape, learner_and_samples
    from rollcall.trainer.weights.publication import rounded

    learner, samples = learner_and_samples(str(directory), Shape(2, 4, 16, 16), "shared")
    ratios, densities = [], []
    with TemporaryDirectory(prefix="rollcall-") as scratch:
        before = rounded(learner.tensors())
        base = Published(write_weights(scratch, 0, before, by_tensor=True))
        for version in range(1, versions + 1):
            learner.step(samples)
            now = rounded(learner.tensors())
            made = write_delta(scratch, version, base, before, now)
            delta, _ = compared(before, now)
            densities.append(delta.density)
            ratios.append(base.full.size_bytes / (made or base).newest.size_bytes)
            before = now
    notes = tuple(
        f"version {number}: {density:.2%} changed, {ratio:.1f}x"
        for number, (density, ratio) in enumerate(zip(densities, ratios, strict=True), 1)
    )
    ceiling = 1 / max(median(densities[1:]), 1e-9)
    return Figure(median(ratios[1:]), "x", ceiling, notes=notes)


def delta_bytes_per_s(settings: Settings) -> Figure:
    return speed_of(weights(LAYERS, LAYER, EMBEDDING), TURNS)


def weights(layers: int, layer: int, embedding: int) -> dict[str, RawTensor]:
    """Return bfloat16 tensors of these sizes with arbitrary values."""
    random = np.random.default_rng(7)
    sizes = {f"layer{number}": layer for number in range(layers)} | {"embedding": embedding}
    return {
        name: RawTensor("BF16", (size,), random.integers(0, 1 << 16, size, "<u2").tobytes())
        for name, size in sizes.items()
    }


def speed_of(before: Mapping[str, RawTensor], turns: int) -> Figure:
    """Measure the speed of making and reading a delta to these weights."""
    now = {name: _changed(tensor) for name, tensor in before.items()}
    size_bytes = sum(len(tensor.data) for tensor in now.values())
    making, reading, hashing = [], [], []
    with TemporaryDirectory(prefix="rollcall-") as scratch:
        base = Published(write_weights(scratch, 0, before, by_tensor=True))
        last = first = write_delta(scratch, 1, base, before, before) or base
        for version in range(2, 2 + turns):
            held = HeldWeights()
            held.read(_record(first))
            took, made = timed(partial(write_delta, scratch, version, first, before, now))
            last = made or first
            making.append(took)
            reading.append(timed(partial(held.read, _record(last)))[0])
            hashing.append(timed(partial(sha256s_of, now))[0])
    value, ceiling = size_bytes / max(min(making), min(reading)), size_bytes / min(hashing)
    notes = (
        f"made in {min(making):.2f} s and read in {min(reading):.2f} s, "
        f"{size_bytes / 1e6:,.0f} MB of weights, {last.newest.size_bytes / 1e6:,.1f} MB of delta",
    )
    return Figure(value, "bytes/s", ceiling, notes=notes)


def _changed(tensor: RawTensor) -> RawTensor:
    bits = np.frombuffer(tensor.data, "<u2").copy()
    at = np.random.default_rng(len(bits)).integers(0, len(bits), int(DENSITY * len(bits)))
    bits[at] ^= 1
    return RawTensor(tensor.dtype, tensor.shape, bits.tobytes())


def _record(published: Published) -> PolicyVersion:
    newest = published.newest
    return PolicyVersion(
        "policy",
        newest.version,
        newest.base_version,
        "",
        0,
        newest.weights_digest,
        published.full,
        bytes(4),
        b"",
        published.deltas,
    )
