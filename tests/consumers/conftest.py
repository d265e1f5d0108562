"""The worlds that tests of consumer groups begin with."""

import pytest

from tests.support.rig import Rig
from tests.support.whole_log import Whole


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def whole() -> Whole:
    return Whole()
