"""Every log there is, and names that no two tests share."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.schemas.ids import digest

COUNTER = count()


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def log(request: pytest.FixtureRequest) -> Any:
    """An object with `create(topic, partitions)`, `append(topic, key, value, partition)`, and Log.

    The broker's comes from the session fixture `kafka_log`.
    """
    if request.param == "memory":
        return MemoryLog()
    return request.getfixturevalue("kafka_log")


@pytest.fixture
def named(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names of topics and groups that are this test's alone."""
    place = digest(request.node.nodeid, size_bytes=4).hex()
    return lambda what: f"{what}-{place}-{next(COUNTER)}"
