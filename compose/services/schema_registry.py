"""The embedded schema registry: Apicurio with the Confluent API, beside the broker, on loopback.

Its database is in the same state directory as the log and is removed with it, since its ids are in
every record. WRITE_DELAY=0 makes a registration durable before it is answered; without it the last
one was lost under SIGKILL.
"""

import http.client
import json
import shutil
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from rollcall.compose.services.artifacts import (
    LOCKS,
    exclusive,
    fetch,
    locate_java,
    mark,
    read_lock,
)
from rollcall.compose.services.service_errors import ServicesError
from rollcall.schemas.atomic_files import atomic_path, write_atomically
from rollcall.schemas.private_folders import make_private


def unpack(lock: Path, cache_dir: Path) -> Path:
    """Unpack the lock's one artifact once, to a folder named by its digest; return that folder.

    The folder appears in one step, so it is complete. Its files have marks like downloads (see
    artifacts): a tree with an altered file is unpacked again.
    """
    (archive,), (artifact,) = fetch(lock, cache_dir), read_lock(lock)
    folder = cache_dir / "unpacked" / artifact.sha256[:16]
    with exclusive(cache_dir / "cache.lock"):
        if not _is_as_unpacked(folder):
            for rest in (folder, *folder.parent.glob(f".{folder.name}.*")):
                shutil.rmtree(rest, ignore_errors=True)
            with atomic_path(folder) as hidden:
                _extract(archive, hidden)
    return folder


def _extract(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            # Python 3.11.2 of Debian 12 has no filters yet; the digest was checked
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(folder)
        files = [path for path in folder.rglob("*") if path.is_file()]
        marks = {str(path.relative_to(folder)): mark(path) for path in files}
        write_atomically(folder / "marks.json", json.dumps(marks))
    except OSError as error:
        msg = f"cannot unpack {archive.name} to {folder} ({error.strerror}); look after that disk"
        raise ServicesError(msg) from error


def _is_as_unpacked(folder: Path) -> bool:
    try:
        marks = json.loads((folder / "marks.json").read_text())
        return all(mark(folder / name) == marked for name, marked in marks.items())
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class SchemaRegistry:
    """The registry's program in its folder `home`; relative paths are relative to it."""

    home: Path
    port: int
    management_port: int
    cache_dir: Path
    java: Path = field(default_factory=locate_java)

    name = "registry"

    def prepare(self) -> list[str]:
        """Fetch and unpack the program, which all state directories share read-only; return the
        command that runs it.
        """
        app = unpack(LOCKS / "registry.lock", self.cache_dir)
        make_private(self.home / "tmp")
        flags = ["-Xmx128m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        flags.append("-XX:+ExitOnOutOfMemoryError")
        settings = {
            "java.io.tmpdir": "tmp",
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": self.management_port,
            "quarkus.http.access-log.enabled": "false",
            "apicurio.datasource.url": "jdbc:h2:file:./data;WRITE_DELAY=0",
            "apicurio.datasource.jdbc.initial-size": 1,
            "apicurio.datasource.jdbc.min-size": 1,
        }
        properties = [f"-D{key}={value}" for key, value in settings.items()]
        return [str(self.java), *flags, *properties, "-jar", str(app / "quarkus-run.jar")]

    def is_ready(self) -> bool:
        # Not urllib: it would use a configured proxy for a loopback address
        connection = http.client.HTTPConnection("127.0.0.1", self.management_port, timeout=2)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
