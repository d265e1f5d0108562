"""The embedded broker: one real Kafka, broker and controller in one process, on loopback only.

It runs in its own folder and every path in its settings is relative to that, so that characters of
the state directory's path cannot break Kafka's property file. Acknowledged records survive SIGKILL
(they are in the page cache), but not a power cut: there is one replica.
"""

import os
import secrets
import shutil
import socket
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollcall.compose.services.artifacts import LOCKS, fetch, locate_java
from rollcall.compose.services.service_errors import ServicesError, cannot_run, last_lines
from rollcall.schemas.atomic_files import write_atomically
from rollcall.schemas.private_folders import make_private

_FIXED = """\
process.roles=broker,controller
node.id=1
log.dirs=data
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
offsets.topic.segment.bytes=1048576
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.segment.bytes=67108864
num.network.threads=2
num.io.threads=2
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
group.consumer.session.timeout.ms=8000
group.consumer.heartbeat.interval.ms=500
offsets.retention.minutes=43200
"""
LOGGING = """\
<Configuration status="WARN">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d %p %m (%c)%n"/></Console>
  </Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


def properties(port: int, controller_port: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return all settings of the broker; `extra` overrides them.

    A killed member's partitions are stalled for group.consumer.session.timeout.ms, 45 s unless
    set. A killed broker cannot register again before its own broker.session.timeout.ms is over, 9 s
    unless set. The offsets topic is compacted early because of a fault of Kafka 4.3.1: a killed
    broker that restarts begins to load it as its own, loses it for a moment and loads it again; if
    the first load ends during the second, it serves groups that it has not loaded, and expires
    none of their dead members.
    """
    fixed = dict(line.split("=", 1) for line in _FIXED.splitlines())
    plain, controller = f"127.0.0.1:{port}", f"127.0.0.1:{controller_port}"
    addresses = {
        "listeners": f"PLAINTEXT://{plain},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{plain}",
        "controller.quorum.bootstrap.servers": controller,
    }
    return fixed | addresses | dict(extra)


@dataclass(frozen=True)
class KafkaBroker:
    """The broker's program in its folder `home`."""

    home: Path
    port: int
    controller_port: int
    cache_dir: Path
    answers: Callable[[str], bool]
    """A function of the bootstrap address, called once the port is open: True if the broker lists
    its topics, as an open port is too early. It should answer within about a second."""
    extra: Mapping[str, str]
    java: Path = field(default_factory=locate_java)

    name = "kafka"

    def prepare(self) -> list[str]:
        """Fetch the jars, write the settings, format the data directory if it is new; return the
        command that runs the broker.
        """
        jars = fetch(LOCKS / "kafka.lock", self.cache_dir)
        make_private(self.home)
        settings = properties(self.port, self.controller_port, self.extra)
        lines = (f"{key}={value}\n" for key, value in settings.items())
        write_atomically(self.home / "server.properties", "".join(lines))
        write_atomically(self.home / "log4j2.xml", LOGGING)
        self._format_once(jars)
        return java_command(self.java, jars, "kafka.Kafka", "server.properties")

    def _format_once(self, jars: list[Path]) -> None:
        """Format the data directory unless a broker ran on it.

        An incomplete format is removed, as no broker has run on it. If one has, it is not
        formatted again, since that would hide the loss of a log.
        """
        data, done = self.home / "data", self.home / "formatted"
        if (data / "meta.properties").exists():  # the last file that a format writes
            done.touch()
        elif done.exists():
            msg = f"the log in {data} was removed or damaged; wipe {self.home.parent} to start anew"
            raise ServicesError(msg)
        else:
            shutil.rmtree(data, ignore_errors=True)
            self._format(jars)
            done.touch()

    def _format(self, jars: list[Path]) -> None:
        log = self.home / "kafka.log"
        options = ["--standalone", "-t", cluster_id(), "-c", "server.properties"]
        command = java_command(self.java, jars, "kafka.tools.StorageTool", "format", *options)
        with log.open("ab") as output:
            since = output.tell()
            try:
                code = subprocess.call(command, cwd=self.home, stdout=output, stderr=output)
            except OSError as error:
                raise cannot_run(self.java, error) from error
        if code != 0:
            msg = (
                f"kafka could not format {self.home / 'data'} (exit code {code}); "
                f"the end of {log}:\n{last_lines(log, since=since)}"
            )
            raise ServicesError(msg)

    def is_ready(self) -> bool:
        try:
            # Checked first: a client that finds no open port logs that to stderr
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return self.answers(f"127.0.0.1:{self.port}")


def java_command(java: Path, jars: list[Path], main: str, *arguments: str) -> list[str]:
    """Return the command for a program of Kafka, in a folder with LOGGING as log4j2.xml."""
    flags = ["-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    flags += ["-XX:+ExitOnOutOfMemoryError", "-Dlog4j2.configurationFile=log4j2.xml"]
    class_path = os.pathsep.join(str(jar) for jar in jars)
    return [str(java), *flags, "-cp", class_path, main, *arguments]


def cluster_id() -> str:
    """Return 16 random bytes in base64url, without a leading '-', which would be an option."""
    while True:
        name = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
        if not name.startswith("-"):
            return name
