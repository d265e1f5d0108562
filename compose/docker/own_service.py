"""Broker or registry in our image: `python -m rollcall.compose.docker.own_service kafka|registry`.

It replaces itself by the service, which is then the process that the container's engine watches.
The registry, a Quarkus program, reads the environment itself; for the broker, variables become
properties as in the official image: KAFKA_NODE_ID becomes node.id.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from rollcall.compose.services.artifacts import LOCKS, fetch, locate_java
from rollcall.compose.services.kafka_broker import LOGGING, java_command
from rollcall.compose.services.schema_registry import unpack
from rollcall.compose.settings import load_settings

PREFIX = "KAFKA_"


def kafka(cache: Path) -> list[str]:
    """Format the log unless that was done; return the command that runs the broker."""
    home = Path(tempfile.mkdtemp(prefix="kafka-"))
    os.chdir(home)
    lines = (f"{key}={value}\n" for key, value in broker_properties(os.environ).items())
    (home / "server.properties").write_text("".join(lines))
    (home / "log4j2.xml").write_text(LOGGING)
    jars, java = fetch(LOCKS / "kafka.lock", cache), locate_java()
    cluster = ("--ignore-formatted", "-t", os.environ["CLUSTER_ID"])
    tool = ("kafka.tools.StorageTool", "format", *cluster, "-c", "server.properties")
    subprocess.run(java_command(java, jars, *tool), check=True)
    return java_command(java, jars, "kafka.Kafka", "server.properties")


def broker_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """Translate KAFKA_A_B to a.b; two underscores mean one, three a hyphen."""
    return {
        _property(name.removeprefix(PREFIX)): value
        for name, value in environ.items()
        if name.startswith(PREFIX)
    }


def _property(name: str) -> str:
    return name.lower().replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")


def registry(cache: Path) -> list[str]:
    """Unpack the program unless that was done; return the command that runs it."""
    program = unpack(LOCKS / "registry.lock", cache) / "quarkus-run.jar"
    flags = [
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
    ]
    return [str(locate_java()), *flags, "-jar", str(program)]


SERVICES: dict[str, Callable[[Path], list[str]]] = {"kafka": kafka, "registry": registry}


def main(name: str) -> None:
    """Become the service; raises ServicesError if its program cannot be fetched."""
    command = SERVICES[name](load_settings().cache())
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
