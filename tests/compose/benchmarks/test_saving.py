"""Costs of saving, and pauses of adopting, for a policy that is small enough to measure quickly."""

from pathlib import Path

import pytest

from rollcall.compose.benchmarks import adoption, weights_files
from rollcall.compose.benchmarks.figure import BenchmarkUnavailable
from rollcall.compose.benchmarks.one_trainer import Shape
from rollcall.compose.settings import Settings
from tests.support.policies import lake


@pytest.mark.thorough
def test_saving_run_records_version_times_and_saving_costs(tmp_path: Path) -> None:
    found = weights_files.seen(lake(tmp_path / "policy"), Shape(2, 4, 8, 8), 2)

    assert [len(found[name]) for name in ("plain_s", "period_s", "version_s")] == [2, 2, 2]
    assert len(found["delta_bytes"]) == 2
    version, stall, peak = (
        weights_files.of_version(found),
        weights_files.of_stall(found),
        weights_files.of_peak(found),
    )
    assert 0 < version.ceiling <= version.value
    assert "of it" in stall.notes[0]
    assert peak.value > peak.ceiling > 4 * found["weights_bytes"]


def test_server_keeps_stepping_during_adoptions_and_reports_longest_pauses(
    tmp_path: Path,
) -> None:
    figure = adoption.pause_of(lake(tmp_path / "policy"), Settings(), 2, "s7")

    assert figure.unit == "ms"
    assert figure.value > 0
    assert figure.notes[0].startswith("2 adoptions")


def test_saving_benchmarks_are_skipped_without_a_language_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    for figure in (weights_files.version_s, adoption.adopt_pause_ms):
        with pytest.raises(BenchmarkUnavailable, match="rollcall policy fetch smollm2"):
            figure(Settings())
