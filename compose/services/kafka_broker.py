"""The embedded broker: one real Kafka, broker and controller in one process, on loopback only.

It works in its own folder and every path in its settings is relative to that, so no character of
the state directory's path can upset Kafka's property file. Acknowledged records outlive SIGKILL
(they are in the page cache), not a power cut: there is one replica.
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

from compose.services.aot_cache import AotCache
from compose.services.artifacts import LOCKS, fetch, locate_java, read_lock
from compose.services.service_errors import ServicesError, cannot_run, last_lines
from schemas.private_folders import make_private
from schemas.whole_files import write_whole

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
    """All settings of the broker; `extra` has the last word.

    A killed member's partitions stand still for group.consumer.session.timeout.ms, 45 s unless
    set. A killed broker cannot register again before its own broker.session.timeout.ms is over, 9 s
    unless set. The commits' topic is compacted early: a killed broker takes it for its own still,
    begins to load it, loses it for a moment and begins again; where the first load ends during the
    second, Kafka 4.3.1 serves groups of which it knows nothing yet, and expires none of their dead.
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
    """What it takes to run the broker in its folder `home`."""

    home: Path
    port: int
    controller_port: int
    cache_dir: Path
    answers: Callable[[str], bool]
    """Called with the bootstrap address once the port is open: does the broker list its topics?
    An open port is too early. Should answer within about a second."""
    extra: Mapping[str, str]
    java: Path = field(default_factory=locate_java)

    name = "kafka"

    @property
    def aot(self) -> AotCache:
        jars = [each.path(self.cache_dir) for each in read_lock(LOCKS / "kafka.lock")]
        return AotCache(self.cache_dir, self.name, self.java, jars)

    def prepare(self) -> list[str]:
        """Fetch the jars, write the settings, format the data directory once in its life; return
        the command that runs the broker.
        """
        jars = fetch(LOCKS / "kafka.lock", self.cache_dir)
        make_private(self.home)
        settings = properties(self.port, self.controller_port, self.extra)
        lines = (f"{key}={value}\n" for key, value in settings.items())
        write_whole(self.home / "server.properties", "".join(lines))
        write_whole(self.home / "log4j2.xml", LOGGING)
        self._format_once(jars)
        return self._java(jars, "kafka.Kafka", "server.properties")

    def _format_once(self, jars: list[Path]) -> None:
        """A format that was killed half-way is thrown away: no broker has ever run on it. Where
        one has, nothing is formatted again, for that would hide the loss of a log.
        """
        data, done = self.home / "data", self.home / "formatted"
        if (data / "meta.properties").exists():  # what a format writes last
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
        command = self._java(jars, "kafka.tools.StorageTool", "format", *options)
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

    def _java(self, jars: list[Path], main: str, *arguments: str) -> list[str]:
        java, *rest = java_command(self.java, jars, main, *arguments)
        return [java, *self.aot.flags(), *rest]

    def is_ready(self) -> bool:
        try:
            # Asked first: a client that finds no open port writes that to stderr, unasked
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return self.answers(f"127.0.0.1:{self.port}")


def java_command(java: Path, jars: list[Path], main: str, *arguments: str) -> list[str]:
    """What runs a program of Kafka's in a folder where LOGGING lies as log4j2.xml."""
    flags = ["-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    flags += ["-XX:+ExitOnOutOfMemoryError", "-Dlog4j2.configurationFile=log4j2.xml"]
    class_path = os.pathsep.join(str(jar) for jar in jars)
    return [str(java), *flags, "-cp", class_path, main, *arguments]


def cluster_id() -> str:
    """16 random bytes in base64url; never with a leading '-', which would be read as an option."""
    while True:
        name = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
        if not name.startswith("-"):
            return name
