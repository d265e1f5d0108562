"""Fixtures shared by the tests of the embedded services."""

from pathlib import Path

import pytest

from tests.support.broker import users_cache


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    return users_cache()
