"""Broker and registry, really started, killed and stopped."""

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from rollcall.compose.cluster import answers
from rollcall.compose.processes import started
from rollcall.compose.services.embedded import Endpoints, down, endpoints, status, up
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.services.service_process import ServiceProcess
from rollcall.producers.admin import Admin
from tests.support.waiting import until

SESSION = {"group.consumer.session.timeout.ms": "6000"}


class Machine:
    """One state directory, and `up` on it with the arguments that never vary here."""

    def __init__(self, state_dir: Path, cache_dir: Path) -> None:
        self.state_dir, self.cache_dir = state_dir, cache_dir

    def up(self, **asked: Any) -> Endpoints:
        return up(self.state_dir, self.cache_dir, ready=answers, **asked)

    def down(self, *, wipe: bool = False) -> list[str]:
        return [each.name for each in down(self.state_dir, wipe=wipe)]

    def session_timeout(self) -> str:
        text = (self.state_dir / "services/kafka/server.properties").read_text()
        return dict(line.split("=", 1) for line in text.splitlines())[next(iter(SESSION))]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Iterator[Machine]:
    """Started twice at once, in a folder with a name that is hard for property files, JDBC URLs and
    lists of log directories.
    """
    machine = Machine(tmp_path_factory.mktemp("state") / "a, ü;b=c", cache_dir)
    try:
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(machine.up, broker_properties=SESSION) for _ in "ab"]
        assert both[0].result() == both[1].result()
        yield machine
    finally:
        machine.down(wipe=True)


@pytest.fixture
def unborn(tmp_path: Path, cache_dir: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "state", cache_dir)
    yield machine
    machine.down(wipe=True)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: started(pid) is None, 10, lambda: f"{pid} lives")


def write(endpoints: Endpoints, value: bytes) -> None:
    servers = {"bootstrap.servers": endpoints.bootstrap_servers}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(timeout=20)
    producer = Producer({**servers, "acks": "all"})
    producer.produce("kept", value)
    assert producer.flush(20) == 0


def read(endpoints: Endpoints) -> bytes | None:
    consumer = Consumer(
        {"bootstrap.servers": endpoints.bootstrap_servers, "group.id": "none of ours"}
    )
    consumer.assign([TopicPartition("kept", 0, 0)])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.error() is None
    value: bytes | None = message.value()
    return value


def register(endpoints: Endpoints, subject: str) -> int:
    schema = {"type": "record", "name": subject, "fields": []}
    return int(ask(endpoints, "POST", f"/subjects/{subject}/versions", schema)["id"])


def ask(endpoints: Endpoints, verb: str, path: str, schema: object = None) -> Any:
    url = urlsplit(endpoints.registry_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=20)
    body = None if schema is None else json.dumps({"schema": json.dumps(schema)})
    connection.request(verb, url.path + path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    assert response.status == 200, found
    return found


def test_reused_pid_is_not_our_process() -> None:
    ours = ServiceProcess(os.getpid(), started(os.getpid()) or "", port=1, side_port=2)

    assert ours.lives
    assert not replace(ours, started="some-boot/17").lives
    assert not replace(ours, pid=2**22 + 1).lives


def test_status_of_an_empty_directory_writes_nothing(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"

    assert endpoints(nowhere) is None
    assert [(each.name, each.pid) for each in status(nowhere)] == [
        ("kafka", None),
        ("registry", None),
    ]
    assert down(nowhere, wipe=True) == ()
    assert not nowhere.exists()


def test_busy_port_is_named_with_its_service(unborn: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]

        for service in ("kafka", "registry"):
            with pytest.raises(ServicesError, match=rf"port {port}.*{service}.*another process"):
                unborn.up(**{f"{service}_port": port})


def test_unwritable_state_directory_is_named(tmp_path: Path, cache_dir: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ServicesError, match=r"cannot write to .*file/state"):
        Machine(tmp_path / "file" / "state", cache_dir).up()


@pytest.mark.broker
def test_repeated_up_finds_the_same_processes(machine: Machine) -> None:
    found = machine.up()

    assert found == machine.up() == endpoints(machine.state_dir)
    assert [each.pid for each in status(machine.state_dir)] == [
        found.kafka_pid,
        found.registry_pid,
    ]


@pytest.mark.broker
def test_killed_broker_returns_at_its_address_with_all_acked_records(machine: Machine) -> None:
    before = machine.up()
    write(before, b"acked")
    knew_it = Admin({"bootstrap.servers": before.bootstrap_servers})
    assert knew_it.ends({"kept": 1}) == {("kept", 0): 1}

    kill(before.kafka_pid)
    assert endpoints(machine.state_dir) is None
    after = machine.up()

    assert after == replace(before, kafka_pid=after.kafka_pid)
    assert after.kafka_pid != before.kafka_pid
    assert machine.session_timeout() == "6000"
    assert read(after) == b"acked"
    assert knew_it.ends({"kept": 1}) == {("kept", 0): 1}, "its idea of the leaders was too old"


@pytest.mark.broker
def test_registration_survives_an_immediate_kill(machine: Machine) -> None:
    before = machine.up()
    first = register(before, "first")
    last = register(before, "last")
    kill(before.registry_pid)

    after = machine.up()

    assert after == replace(before, registry_pid=after.registry_pid)
    assert sorted(ask(after, "GET", "/subjects")) == ["first", "last"]
    assert ask(after, "GET", "/subjects/last/versions/1")["id"] == last != first


@pytest.mark.broker
def test_running_service_refuses_another_port_or_other_properties(machine: Machine) -> None:
    port = int(machine.up().bootstrap_servers.rpartition(":")[2])

    assert machine.up(kafka_port=port)
    with pytest.raises(ServicesError, match=f"kafka.* {port};"):
        machine.up(kafka_port=port + 1)
    with pytest.raises(ServicesError, match=r"kafka.*properties"):
        machine.up(broker_properties={"num.io.threads": "3"})


@pytest.mark.broker
def test_down_ends_both_and_keeps_data_and_ports_but_not_properties(machine: Machine) -> None:
    before = machine.up()

    assert machine.down() == ["kafka", "registry"]
    assert machine.down() == []
    assert started(before.kafka_pid) is None
    assert started(before.registry_pid) is None
    assert endpoints(machine.state_dir) is None

    after = machine.up()
    assert after == replace(before, kafka_pid=after.kafka_pid, registry_pid=after.registry_pid)
    assert machine.session_timeout() == "8000"
    assert read(after) == b"acked"
    assert "last" in ask(after, "GET", "/subjects")


@pytest.mark.broker
def test_wipe_removes_only_the_log_and_the_registry(machine: Machine) -> None:
    machine.up()
    (machine.state_dir / "of others").write_text("stays")

    assert machine.down(wipe=True) == ["kafka", "registry"]

    left = {path.name for path in machine.state_dir.iterdir()}
    assert left == {"services.lock", "services.down", "of others"}


@pytest.mark.broker
def test_broker_that_cannot_start_shows_its_log_and_stops_the_registry(
    unborn: Machine,
) -> None:
    with pytest.raises(ServicesError, match=r"kafka ended(.|\n)*kafka\.log(.|\n)*no\.such\.Thing"):
        unborn.up(broker_properties={"metric.reporters": "no.such.Thing"})

    assert [each.pid for each in status(unborn.state_dir)] == [None, None]
    assert unborn.down() == []


@pytest.mark.broker
def test_manually_removed_log_is_reported_and_not_formatted_again(unborn: Machine) -> None:
    kafka = unborn.state_dir / "services" / "kafka"
    kafka.mkdir(parents=True)
    (kafka / "formatted").touch()

    with pytest.raises(ServicesError, match=r"kafka/data.*wipe"):
        unborn.up()
    assert not (kafka / "data").exists()


def test_stale_pid_file_names_no_process_and_kills_none(unborn: Machine) -> None:
    us = ServiceProcess(os.getpid(), "an-earlier-boot/17", port=1, side_port=2)
    for name in ("kafka", "registry"):
        home = unborn.state_dir / "services" / name
        home.mkdir(parents=True)
        (home / "process.json").write_text(json.dumps(asdict(us)))

    assert endpoints(unborn.state_dir) is None
    assert unborn.down() == []
