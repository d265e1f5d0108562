"""Caches of a JVM's classes: made once, beside the starts, and read only as they were made."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from rollcall.compose.services.aot_cache import KEPT, AotCache
from rollcall.compose.services.aot_training import train, train_all, train_beside
from rollcall.compose.services.service_errors import ServicesError
from tests.support.waiting import until


@pytest.fixture
def aot(tmp_path: Path) -> AotCache:
    """The cache of a fake Java runtime that writes its cache file when it gets SIGTERM."""
    java = tmp_path / "jre" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        "trap 'printf classes > \"${1#*=}\"; exit 143' TERM\n"
        "mkfifo never; touch ready; read line < never\n"
    )
    java.chmod(0o755)
    modules = tmp_path / "jre" / "lib" / "modules"
    modules.parent.mkdir()
    modules.write_text("runtime")
    (tmp_path / "a.jar").write_text("program")
    return AotCache(tmp_path / "cache", "kafka", java, [tmp_path / "a.jar"])


@dataclass
class Stub:
    """A service that is ready when its program says so."""

    home: Path
    aot: AotCache
    name = "kafka"

    def prepare(self) -> list[str]:
        return [str(self.aot.java), *self.aot.flags()]

    def is_ready(self) -> bool:
        return (self.home / "ready").exists()


def trained(aot: AotCache) -> AotCache:
    aot.folder.mkdir(parents=True, exist_ok=True)
    train(aot.cache_dir, lambda home: Stub(home, aot), lambda: True)
    return aot


def test_exactly_one_start_makes_the_cache_and_not_the_first(
    aot: AotCache,
) -> None:
    assert not aot.is_due()

    with ThreadPoolExecutor(8) as pool:
        due = list(pool.map(lambda _: aot.is_due(), range(32)))

    assert sum(due) == 1
    assert aot.flags() == []


def test_service_starts_with_the_cache_that_training_wrote(aot: AotCache) -> None:
    trained(aot)

    assert aot.flags()[0] == f"-XX:AOTCache={aot.file()}"
    assert aot.file().read_text() == "classes"
    assert sorted(path.suffix for path in aot.folder.iterdir()) == [".aot", ".mark"]


@pytest.mark.parametrize(
    "harm",
    [lambda file: file.write_text("clasSes"), Path.touch, Path.unlink, lambda f: os.truncate(f, 3)],
    ids=["altered", "touched", "removed", "cut short"],
)
def test_altered_cache_is_not_read(aot: AotCache, harm: Callable[[Path], object]) -> None:
    harm(trained(aot).file())

    assert aot.flags() == []


def test_another_runtime_jar_or_class_path_needs_another_cache(
    aot: AotCache, tmp_path: Path
) -> None:
    (tmp_path / "b.jar").write_text("library")
    both = [tmp_path / "a.jar", tmp_path / "b.jar"]
    names = {aot.file(), replace(aot, class_path=both).file()}
    names.add(replace(aot, class_path=both[::-1]).file())
    (tmp_path / "a.jar").write_text("program, mended")
    names.add(aot.file())
    (tmp_path / "jre" / "lib" / "modules").write_text("next runtime")
    names.add(aot.file())

    assert len(names) == 5


def test_no_cache_is_due_without_a_java_runtime(tmp_path: Path) -> None:
    aot = AotCache(tmp_path, "kafka", tmp_path / "java-of-yore", [])

    assert not aot.is_due()
    assert aot.flags() == []


@pytest.mark.parametrize("says", ["echo no such option; exit 1", "touch ready; exec sleep 60"])
def test_runtime_without_cache_support_is_asked_once(aot: AotCache, says: str) -> None:
    aot.java.write_text(f"#!/bin/sh\n{says}\n")
    aot.is_due()
    assert aot.is_due()

    with pytest.raises(ServicesError, match="no cache was made for kafka"):
        trained(aot)

    assert aot.flags() == []
    assert not aot.is_due()
    assert not list(aot.folder.glob(".training-*"))


def test_files_of_a_killed_training_are_removed_by_a_later_one(aot: AotCache) -> None:
    left, other = (aot.folder / f".training-{name}" for name in ("of-yore", "of-somebody"))
    for each in (left, other):
        each.mkdir(parents=True)
    os.utime(left, (0, 0))

    trained(aot)

    assert list(aot.folder.glob(".training-*")) == [other]


def test_training_stops_with_its_parent_and_a_later_start_repeats_it(
    aot: AotCache,
) -> None:
    aot.java.write_text("#!/bin/sh\ntrap '' TERM\ntouch began; mkfifo never; read line < never\n")
    both = [replace(aot, service=name) for name in ("kafka", "registry")]
    for each in both:
        each.is_due()
        assert each.is_due()
    makers = {each.service: partial(Stub, aot=each) for each in both}

    train_all(aot.cache_dir, makers, lambda: not list(aot.folder.glob(".training-*/began")))

    assert not list(aot.folder.glob(".training-*"))
    assert [each.is_due() for each in both] == [True, True]


def test_caches_of_old_runtimes_are_removed(aot: AotCache) -> None:
    for number in range(KEPT + 1):
        aot.class_path[0].write_text("program" * number)
        trained(aot)

    assert len(list(aot.folder.glob("*.aot"))) == len(list(aot.folder.glob("*.mark"))) == KEPT
    assert aot.flags()


def test_training_inherits_no_rollcall_settings_from_its_start(
    aot: AotCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    telling = "import os; open('.told', 'w').write(' '.join(os.environ)); "
    (tmp_path / "sitecustomize.py").write_text(f"{telling}os.rename('.told', 'told'); os._exit(0)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ROLLCALL_STATE_DIR", str(tmp_path / "state"))
    aot.folder.mkdir(parents=True)

    train_beside(aot.cache_dir, os.getpid(), ["kafka"])

    told = aot.folder / "told"
    until(told.exists, 60, lambda: "it did not begin")
    assert "PYTHONPATH" in told.read_text()
    assert "ROLLCALL" not in told.read_text()
