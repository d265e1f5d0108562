"""Fixtures of the consumer group tests."""

from collections.abc import Iterator

import pytest

from tests.support.rig import Rig
from tests.support.whole_log import Whole


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture
def whole() -> Whole:
    return Whole()
