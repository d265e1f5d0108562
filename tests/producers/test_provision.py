"""The requirements of a worker on a cluster before it starts."""

from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from rollcall.producers.provision import plan, require
from rollcall.schemas.errors import TopicsDiffer
from rollcall.schemas.topics import WantedTopic, wanted
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


def test_a_cluster_without_an_optional_topic_is_accepted() -> None:
    require_of()
    require_of("rl.stores")


def test_a_cluster_without_a_required_topic_is_refused() -> None:
    with pytest.raises(TopicsDiffer, match=r"rl\.control is missing; run `rollcall topics apply`"):
        require_of("rl.control", "rl.stores")


def with_policy_delete(name: str) -> list[WantedTopic]:
    """The topics, one of them kept for 7 days instead of compacted."""
    old = {"cleanup.policy": "delete", "retention.ms": "604800000"}
    return [
        replace(topic, config={**topic.config, **old}) if topic.name == name else topic
        for topic in WANTED
    ]


def test_a_topic_of_an_earlier_release_is_accepted_and_migrated_on_request() -> None:
    """`control` was kept for 7 days; workers of both releases run until it is compacted."""
    admin = Admin(with_policy_delete("rl.control"))

    with capture_logs() as logs:
        require(cast(Any, admin), cast(Any, Fickle()), WANTED)
    [said] = [entry for entry in logs if entry["event"] == "topic_of_earlier_release"]
    assert said["topic"] == "rl.control"
    assert "rollcall topics apply" in said["remedy"]
    changes = plan(cast(Any, admin), cast(Any, Fickle()), WANTED)
    altered = {change.topic.name: change.text for change in changes if change.kind == "alter"}
    assert list(altered) == ["rl.control"]
    assert "cleanup.policy delete -> compact" in altered["rl.control"]
    assert "retention.ms 604800000 -> -1" in altered["rl.control"]


def test_a_compacted_topic_with_time_retention_is_refused() -> None:
    admin = Admin(with_policy_delete("rl.policy.versions"))

    with pytest.raises(TopicsDiffer, match=r"rl\.policy\.versions has cleanup\.policy delete; run"):
        require(cast(Any, admin), cast(Any, Fickle()), WANTED)
