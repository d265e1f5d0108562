"""Spin time of OpenMP threads: set by us, unless the environment sets it."""

import os

import pytest

from rollcall.compose.workers.rank_processes import share_cores


def test_openmp_spin_count_is_set_unless_already_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    share_cores()
    assert os.environ["GOMP_SPINCOUNT"] == "7"

    monkeypatch.delenv("GOMP_SPINCOUNT")
    share_cores()
    assert os.environ["GOMP_SPINCOUNT"] == "10000"
