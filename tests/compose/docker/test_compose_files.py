"""The files of compose/docker match the settings, groups, locks and packages they mention."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall.compose.cli.app import PANELS
from rollcall.compose.docker.own_service import broker_properties
from rollcall.compose.services.artifacts import LOCKS, read_lock
from rollcall.compose.settings import Settings, load_settings
from tests.support.rooms import ROOMS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "compose" / "docker"
OPTIONAL = {"archive"}


def services(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / name).read_text())["services"])


def test_compose_file_has_a_worker_of_each_group() -> None:
    worker: Any = PANELS["Start"]["worker"]
    groups = {command.name for command in worker.registered_commands} - OPTIONAL

    found = services("compose.yaml")

    for group in groups:
        assert found[group]["command"].split()[:2] == ["worker", group]
        assert found[group]["restart"] == "on-failure"
        assert found[group]["stop_grace_period"] == "30s"


def test_our_containers_are_read_only_and_without_privileges() -> None:
    ours = [each for each in services("compose.yaml").values() if "build" in each]

    assert len(ours) == 7
    for service in ours:
        assert service["read_only"] is True
        assert service["init"] is True
    others = [services("broker.yaml")["broker"], services("compose.yaml")["registry"]]
    for service in [*ours, *others]:
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_all_compose_variables_are_known_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compose.yaml", "compose.cluster.yaml"):
        for service in services(name).values():
            for variable, value in service.get("environment", {}).items():
                if variable.startswith("ROLLCALL_"):
                    monkeypatch.setenv(variable, value)

    settings = load_settings()

    assert settings.kafka.bootstrap_servers == "kafka:9092,kafka-2:9092,kafka-3:9092"
    assert settings.registry.url != Settings.model_fields["registry"].default.url
    assert settings.objects.url


def test_image_versions_match_the_locked_releases() -> None:
    kafka = next(jar for jar in read_lock(LOCKS / "kafka.lock") if jar.name == "kafka_2.13")
    (registry,) = read_lock(LOCKS / "registry.lock")

    assert f"apache/kafka:{kafka.version}}}" in services("broker.yaml")["broker"]["image"]
    assert (
        f"apicurio-registry:{registry.version}}}" in services("compose.yaml")["registry"]["image"]
    )


def test_three_brokers_keep_three_replicas_and_require_two_in_sync() -> None:
    found = services("compose.cluster.yaml")
    brokers = [found[name]["environment"] for name in ("kafka", "kafka-2", "kafka-3")]

    for broker in brokers:
        assert broker["KAFKA_CONTROLLER_QUORUM_VOTERS"].count("@") == 3
        assert broker["KAFKA_DEFAULT_REPLICATION_FACTOR"] == 3
        assert broker["KAFKA_MIN_INSYNC_REPLICAS"] == 2
    assert "apply --cluster" in found["topics"]["command"]
    workers = services("compose.yaml").keys() - {"kafka", "registry"}
    for name in workers:
        assert "kafka-3" in found[name]["environment"]["ROLLCALL_KAFKA__BOOTSTRAP_SERVERS"]


def test_docker_build_context_contains_every_package_of_the_wheel() -> None:
    seen = (ROOT / ".dockerignore").read_text().splitlines()

    assert {f"!{room}" for room in ROOMS} <= set(seen)


def test_variables_of_the_official_image_become_broker_properties() -> None:
    found = broker_properties(
        {
            "KAFKA_NODE_ID": "1",
            "KAFKA_LISTENER_NAME_A__B_SASL___X": "y",
            "CLUSTER_ID": "no property",
        }
    )

    assert found == {"node.id": "1", "listener.name.a_b.sasl-x": "y"}
