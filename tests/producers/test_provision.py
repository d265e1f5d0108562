"""What a worker asks of a cluster before it starts."""

from typing import Any, cast

import pytest

from producers.provision import require
from schemas.errors import TopicsDiffer
from schemas.topics import WantedTopic, wanted
from tests.support.rig import Fickle

WANTED = wanted("rl.", [])


class Admin:
    """Has some topics, as the manifest wants them."""

    def __init__(self, topics: list[WantedTopic]) -> None:
        self.topics = topics

    def partitions(self) -> dict[str, int]:
        return {topic.name: topic.partitions for topic in self.topics}

    def configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        return {topic.name: dict(topic.config) for topic in self.topics if topic.name in names}


def require_of(*missing: str) -> None:
    there = [topic for topic in WANTED if topic.name not in missing]
    require(cast(Any, Admin(there)), cast(Any, Fickle()), WANTED)


def test_a_cluster_of_an_earlier_release_has_no_quotas_and_will_do() -> None:
    require_of()
    require_of("rl.quotas")


def test_a_cluster_without_a_topic_that_is_needed_is_refused() -> None:
    with pytest.raises(TopicsDiffer, match=r"rl\.control is missing; run `rollcall topics apply`"):
        require_of("rl.control", "rl.quotas")
