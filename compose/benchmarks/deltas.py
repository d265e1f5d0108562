"""The savings of publishing a version as a delta, and the speed of making and reading it.

`delta_ratio` trains a language model for some versions like a recipe with `publish = "bfloat16"`
and `weights = "delta"`, at the learning rate of such runs, and takes the median of all but the
first, since Adam's first step changes everything. Its ceiling is a delta with values but without
positions. `delta_bytes_per_s` uses bfloat16 weights with the layout of SmolLM2-135M, with as many
changed elements as were seen there; the slower of making and reading counts, the best of several
turns, and the ceiling is one sha256 of the weights on all cores.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from rollcall.compose.benchmarks.figure import Figure, timed
from rollcall.compose.benchmarks.language_model import language_model
from rollcall.compose.settings import Settings
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.published_weights import HeldWeights, Published, write_delta
from rollcall.schemas.weight_deltas import compared
from rollcall.schemas.weights import RawTensor, sha256s_of, write_weights

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
        "policy", newest.version, newest.base_version, "", 0, newest.weights_digest,
        published.full, bytes(4), b"", published.deltas,
    )  # fmt: skip
