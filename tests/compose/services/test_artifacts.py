"""Locked downloads: every returned file has the digest in its lock."""

import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcall.compose.services.artifacts import LOCKS, Artifact, fetch, parse_lock, require_space
from rollcall.compose.services.schema_registry import unpack
from rollcall.compose.services.service_errors import ServicesError

BYTES = {"first": b"one", "second": b"two"}


class Mirror:
    """A repository that can be made to serve other bytes; records its requests."""

    def __init__(self) -> None:
        self.serves = dict(BYTES)
        self.asked: list[str] = []

    def __call__(self, artifact: Artifact, cache_dir: Path) -> None:
        self.asked.append(artifact.name)
        if artifact.name not in self.serves:
            raise ConnectionError
        path = artifact.path(cache_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.serves[artifact.name])


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in BYTES.items()}
    file = tmp_path / "some.lock"
    file.write_text("".join(f"a.b:{n}:1.0:jar sha256={d}\n" for n, d in digests.items()))
    return file


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_kafka_lock_names_one_kafka_version_and_a_log_binding() -> None:
    artifacts = parse_lock((LOCKS / "kafka.lock").read_text(), where="kafka.lock")

    assert len(artifacts) == 46
    assert {a.version for a in artifacts if a.group == "org.apache.kafka"} == {"4.3.1"}
    assert "log4j-slf4j-impl" in {a.name for a in artifacts}
    assert len({(a.group, a.name) for a in artifacts}) == len(artifacts)


def test_artifact_matches_its_lock_line_and_the_maven_layout() -> None:
    text = (LOCKS / "registry.lock").read_text()
    (artifact,) = parse_lock(text, where="registry.lock")

    assert text == f"{artifact} sha256={artifact.sha256}\n"
    assert artifact.path(Path("c")) == Path(
        "c/maven/io/apicurio/apicurio-registry-app/3.3.3/apicurio-registry-app-3.3.3-all.tar.gz"
    )


@pytest.mark.parametrize("line", ["", "a:b:1:jar", "a:b:1:jar sha256=12", "a:b:1:war sha256="])
def test_unreadable_lock_line_is_named_with_its_number(line: str) -> None:
    good = f"a:b:1:jar sha256={'0' * 64}"

    with pytest.raises(ServicesError, match=r"line 2 of my\.lock"):
        parse_lock(f"{good}\n{line}\n", where="my.lock")


def test_files_come_in_lock_order_and_are_downloaded_once(lock: Path, cache: Path) -> None:
    mirror = Mirror()

    files = fetch(lock, cache, download=mirror)
    again = fetch(lock, cache, download=mirror)

    assert [file.read_bytes() for file in files] == [b"one", b"two"]
    assert again == files
    assert sorted(mirror.asked) == ["first", "second"]


def test_bytes_with_another_digest_are_refused_and_removed(lock: Path, cache: Path) -> None:
    mirror = Mirror()
    mirror.serves["second"] = b"forged"

    with pytest.raises(ServicesError, match=r"a\.b:second:1\.0:jar was downloaded with SHA-256"):
        fetch(lock, cache, download=mirror)
    assert not list(cache.rglob("second*.jar"))

    mirror.serves["second"] = b"two"
    assert len(fetch(lock, cache, download=mirror)) == 2
    assert sorted(mirror.asked) == ["first", "second", "second"]


def test_unreachable_mirror_is_one_clear_error(lock: Path, cache: Path) -> None:
    mirror = Mirror()
    del mirror.serves["first"]

    with pytest.raises(ServicesError, match=r"first.*could not be downloaded.*ConnectionError"):
        fetch(lock, cache, download=mirror)


@pytest.mark.parametrize("content", [b"o", b"eno", b""], ids=["truncated", "altered", "emptied"])
def test_altered_file_is_fetched_again(lock: Path, cache: Path, content: bytes) -> None:
    mirror = Mirror()
    first, _ = fetch(lock, cache, download=mirror)
    times = first.stat()

    first.write_bytes(content)
    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))  # and it hides its traces

    assert fetch(lock, cache, download=mirror)[0].read_bytes() == b"one"
    assert mirror.asked.count("first") == 2


def test_partial_download_is_fetched_again(lock: Path, cache: Path) -> None:
    first = parse_lock(lock.read_text(), where="")[0].path(cache)
    first.parent.mkdir(parents=True)
    first.write_bytes(b"on")

    assert fetch(lock, cache, download=Mirror())[0].read_bytes() == b"one"


def test_copied_cache_is_not_downloaded_again(lock: Path, cache: Path) -> None:
    mirror = Mirror()
    first, second = fetch(lock, cache, download=mirror)
    for file in (first, second):
        file.write_bytes(file.read_bytes())

    assert fetch(lock, cache, download=mirror) == [first, second]
    assert len(mirror.asked) == 2


def test_two_concurrent_first_runs_download_every_file_once(lock: Path, cache: Path) -> None:
    script = f"""
import pathlib, sys, time
from rollcall.compose.services.artifacts import fetch
cache = pathlib.Path({str(cache)!r})
bytes_of = {BYTES!r}
def download(artifact, cache_dir):
    with (cache / "asked").open("a") as log:
        log.write(artifact.name + chr(10))
    path = artifact.path(cache_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for byte in bytes_of[artifact.name]:
            file.write(bytes([byte]))
            file.flush()
            time.sleep(0.02)
fetch(pathlib.Path({str(lock)!r}), cache, download=download)
"""
    runs = [subprocess.Popen([sys.executable, "-c", script], cwd=LOCKS.parents[2]) for _ in "ab"]

    assert [run.wait(timeout=30) for run in runs] == [0, 0]
    assert sorted((cache / "asked").read_text().split()) == ["first", "second"]


def test_lack_of_space_is_refused_with_the_place_and_both_figures() -> None:
    require_space(Path("here"), needed_bytes=10**9, free_bytes=10**9)

    with pytest.raises(ServicesError, match=r"here .*999 MB.*1,000 MB"):
        require_space(Path("here"), needed_bytes=10**9, free_bytes=10**9 - 10**6)


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"x")])
def test_damaged_unpacked_tree_is_unpacked_again(
    tmp_path: Path, cache: Path, harm: Callable[[Path], object]
) -> None:
    (tmp_path / "run.jar").write_bytes(b"whole")
    placed = Artifact("a", "app", "1", "", "tar.gz", "").path(cache)
    placed.parent.mkdir(parents=True)
    with tarfile.open(placed, "w:gz") as tar:
        tar.add(tmp_path / "run.jar", "lib/run.jar")
    lock = tmp_path / "app.lock"
    lock.write_text(f"a:app:1:tar.gz sha256={hashlib.sha256(placed.read_bytes()).hexdigest()}\n")

    first = unpack(lock, cache) / "lib" / "run.jar"
    left_alone = first.stat()
    assert unpack(lock, cache) / "lib" / "run.jar" == first
    assert first.stat() == left_alone

    harm(first)
    assert (unpack(lock, cache) / "lib" / "run.jar").read_bytes() == b"whole"
