"""How long threads of OpenMP spin: we say it, unless the environment has."""

import os

import pytest

from compose.workers.openmp import share_cores


def test_threads_that_wait_lend_their_core_unless_somebody_said_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    share_cores()
    assert os.environ["GOMP_SPINCOUNT"] == "7"

    monkeypatch.delenv("GOMP_SPINCOUNT")
    share_cores()
    assert os.environ["GOMP_SPINCOUNT"] == "10000"
