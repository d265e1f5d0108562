"""What the tests of the embedded services share."""

import contextlib
import os
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient


def lists_its_topics(bootstrap_servers: str) -> bool:
    with contextlib.suppress(KafkaException):
        AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=1)
        return True
    return False


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """The user's own cache, so that only a machine's first run downloads 200 MB."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rollcall"
