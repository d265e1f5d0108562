"""The figures of deltas, of weights small enough to be measured in a moment."""

from pathlib import Path

import pytest

from rollcall.compose.benchmarks import weights_files
from rollcall.compose.benchmarks.figure import BenchmarkUnavailable
from rollcall.compose.settings import Settings
from tests.support.policies import lake


@pytest.mark.thorough
def test_delta_ratio_covers_the_versions_after_the_first(tmp_path: Path) -> None:
    figure = weights_files.ratio_of(lake(tmp_path / "policy"), 3)

    assert len(figure.notes) == 3
    assert 1 < figure.value < figure.ceiling


def test_delta_speed_is_reported_with_the_weights_size() -> None:
    figure = weights_files.speed_of(weights_files.weights(2, 30_000, 100_000), 1)

    assert figure.unit == "bytes/s"
    assert figure.value > 0
    assert "0 MB of weights" in figure.notes[0]


def test_delta_ratio_is_skipped_without_a_language_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(BenchmarkUnavailable, match="rollcall policy fetch smollm2"):
        weights_files.delta_ratio(Settings())
