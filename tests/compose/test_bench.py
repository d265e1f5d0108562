"""The benchmarks' table and file; what they measure is measured by running them."""

import pytest

from compose import bench
from compose.benchmarks import memory
from compose.benchmarks.figure import Figure
from compose.settings import Settings
from schemas.errors import Refused


def test_an_unknown_benchmark_is_refused_before_any_runs() -> None:
    with pytest.raises(Refused, match="did you mean 'turns_64'"):
        bench.run_benchmarks(["turns_65"], Settings(), None)


def test_a_figure_stands_beside_its_ceiling_and_their_ratio() -> None:
    faster = Figure(50.0, "turns/s", 200.0)
    slower = Figure(8.0, "ms", 2.0, lower_is_better=True)

    written = bench.plain({"turns_64": faster, "turn_latency_ms": slower})

    assert written["turns_64"] == {
        "value": 50.0, "unit": "turns/s", "ceiling": 200.0, "ratio": 0.25
    }  # fmt: skip
    assert written["turn_latency_ms"]["ratio"] == 0.25


def test_memory_per_live_rollout_is_more_than_its_payload() -> None:
    figure = memory.live_rollout(Settings(), live=1000)

    assert figure.unit == "bytes"
    assert 1_000 < figure.ceiling < figure.value < 100_000
