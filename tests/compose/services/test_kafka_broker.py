"""The broker's settings, and the error when its JVM does not start."""

from pathlib import Path

import pytest

from rollcall.compose.services.kafka_broker import KafkaBroker, cluster_id, properties
from rollcall.compose.services.service_errors import ServicesError


def answers_nothing(_bootstrap_servers: str) -> bool:
    return False


def java_that(says: str, folder: Path) -> Path:
    java = folder / "java"
    java.write_text(f"#!/bin/sh\n{says}\n")
    java.chmod(0o755)
    return java


def test_broker_listens_only_on_loopback_at_the_given_ports() -> None:
    settings = properties(1111, 2222, {})

    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1111,CONTROLLER://127.0.0.1:2222"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1111"
    assert settings["controller.quorum.bootstrap.servers"] == "127.0.0.1:2222"


def test_session_timeout_is_eight_seconds_unless_set_otherwise() -> None:
    name = "group.consumer.session.timeout.ms"

    assert properties(1, 2, {})[name] == "8000"
    assert properties(1, 2, {name: "6000"})[name] == "6000"


def test_cluster_id_never_begins_with_a_dash() -> None:
    ids = {cluster_id() for _ in range(2000)}  # one in 64 would begin with '-'

    assert len(ids) == 2000
    assert all(len(each) == 22 and not each.startswith("-") for each in ids)


@pytest.mark.broker
def test_failed_jre_shows_its_output_and_the_log_file(tmp_path: Path, cache_dir: Path) -> None:
    java = java_that("echo no room for the heap; exit 3", tmp_path)
    broker = KafkaBroker(tmp_path, 1, 2, cache_dir, answers_nothing, {}, java=java)

    with pytest.raises(ServicesError, match=r"code 3.*kafka\.log:\s+no room"):
        broker.prepare()


@pytest.mark.broker
def test_missing_jre_is_named(tmp_path: Path, cache_dir: Path) -> None:
    broker = KafkaBroker(
        tmp_path, 1, 2, cache_dir, answers_nothing, {}, java=tmp_path / "java-of-yore"
    )

    with pytest.raises(ServicesError, match=r"java-of-yore cannot be run.*reinstall"):
        broker.prepare()
