"""Images as directories: complete or absent, found by name, collected by age and size."""

import asyncio
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from rollcall.sandbox.boxes import base_image, disk_floor, engine_builds, image_store
from rollcall.sandbox.boxes.auto_driver import AutoDriver
from rollcall.sandbox.boxes.box import ImageBuild, Spec
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver
from rollcall.sandbox.boxes.engine_builds import FailedBuilds, engine_build
from rollcall.sandbox.boxes.image_rows import engine_rows
from rollcall.sandbox.boxes.images import engine_image
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.untrusted_text import REASON_CHARS
from tests.support.engines import has, left_out

DAY_S = 86_400


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that box users can reach, unlike pytest's own."""
    place = Path(tempfile.mkdtemp(prefix="images-"))
    place.chmod(0o755)
    monkeypatch.setenv(image_store.DIRECTORY, str(place))
    yield place
    shutil.rmtree(place)


def make(store: Path, name: str, size_bytes: int, idle_s: float) -> Path:
    """Create an image that was last used some seconds ago."""
    place = store / name
    (place / "tree").mkdir(parents=True)
    fields = {"name": name, "digest": "d" * 64, "size_bytes": size_bytes, "made_ms": 0}
    (place / "image.json").write_text(json.dumps(fields))
    os.utime(place / "image.json", (time.time() - idle_s,) * 2)
    return place


def test_image_lookup_by_name_marks_the_image_as_used(store: Path) -> None:
    make(store, "old", 7, 3 * DAY_S)

    assert [image.name for image in image_store.images()] == ["old"]
    assert image_store.images()[0].idle_s() > 2 * DAY_S
    assert image_store.built("old").tree == store / "old" / "tree"
    assert image_store.images()[0].idle_s() < DAY_S


@pytest.mark.parametrize("name", ["none", "../old", "old/", "", "python:3.11"])
def test_unknown_image_name_is_refused_with_the_remedy(store: Path, name: str) -> None:
    make(store, "old", 7, 0)
    with pytest.raises(WorkFailed, match="rollcall images") as refused:
        image_store.built(name)
    assert refused.value.code == "image"


def test_old_images_are_collected_first_and_then_least_recently_used_ones(store: Path) -> None:
    for name, size, days in (("a", 4, 2), ("b", 4, 5), ("c", 4, 9), ("d", 4, 30), ("e", 9, 0)):
        make(store, name, size, days * DAY_S)

    removed, in_use = image_store.collect(keep_bytes=17, older_than_s=14 * DAY_S)
    assert ([each.name for each in removed], in_use) == (["c", "d"], [])
    removed, in_use = image_store.collect(keep_bytes=0, older_than_s=14 * DAY_S)
    assert [each.name for each in removed] == ["a", "b"]
    assert [each.name for each in in_use] == ["e"]
    assert [path.name for path in store.iterdir()] == ["e"]


@pytest.mark.parametrize(("frees", "left"), [(1, ["a", "b"]), (2, ["a"]), (9, ["a"])])
def test_full_disk_is_cleared_of_unused_images_before_refusal(
    store: Path, monkeypatch: pytest.MonkeyPatch, frees: int, left: list[str]
) -> None:
    for name, days in (("a", 0), ("b", 5), ("c", 9)):
        make(store, name, 4, days * DAY_S)

    def usage(place: Path) -> SimpleNamespace:
        full = len(image_store.images()) > 3 - frees
        return SimpleNamespace(free=disk_floor.DISK_FLOOR_BYTES - full)

    monkeypatch.setattr(disk_floor.shutil, "disk_usage", usage)
    if frees > 3:
        with pytest.raises(Refused, match="no image is left that was not used within a day"):
            image_store.clear_disk(store)
    else:
        image_store.clear_disk(store)
    assert [image.name for image in image_store.images()] == left


def test_failed_base_image_build_leaves_no_files_and_reports_its_output(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, body in (("debootstrap", "echo E: no mirror; exit 3"), ("apt-get", "")):
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    said = "E: no mirror" if os.getuid() == 0 else "by root alone"
    with pytest.raises(Refused, match=said):
        base_image.build_base()
    assert list(store.iterdir()) == []


def test_box_of_a_directory_image_writes_to_a_copy(store: Path) -> None:
    if not has("bwrap"):
        left_out("bubblewrap", "a box of an image that is a directory")
    tree = make(store, "small", 0, 0) / "tree"
    (tree / "testbed" / "sub").mkdir(parents=True)
    (tree / "testbed" / "sub" / "file").write_text("of the image\n")
    (tree / "etc").mkdir()
    (tree / "etc" / "passwd").write_text("")
    for name in ("usr", "bin", "lib", "lib64"):
        (tree / name).symlink_to(f"/lent/{name}" if name == "usr" else f"usr/{name}")

    async def whole() -> None:
        (tree / "usr").unlink()
        (tree / "usr").mkdir()
        spec = Spec(image="small", writable=("/testbed",), mounts={"/usr": "/usr"})
        box = await BubblewrapDriver().open(spec)
        try:
            ran = await box.run(["sh", "-c", "cat sub/file; echo more >>sub/file; cat sub/file"],
                                cwd="/testbed")  # fmt: skip
            assert ran.output == "of the image\nof the image\nmore\n"
            assert (await box.run(["whoami"])).output == "agent\n"
        finally:
            await box.close()
        assert (tree / "testbed" / "sub" / "file").read_text() == "of the image\n"

    asyncio.run(whole())


def test_auto_driver_chooses_an_isolating_driver_by_image(store: Path) -> None:
    make(store, "ours", 0, 0)
    auto = AutoDriver()

    assert auto.of(Spec()).name == auto.of(Spec(image="host")).name == "bubblewrap"
    assert auto.of(Spec(image="ours")).name == "bubblewrap"
    assert auto.of(Spec(image="python:3.11")).name == "docker"
    assert asyncio.run(auto.found()) == []


def test_image_without_an_engine_is_refused_with_the_remedy(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{store}/no.socket")

    with pytest.raises(WorkFailed, match="rollcall boxes --drivers") as refused:
        asyncio.run(AutoDriver().open(Spec(image="python:3.11")))
    assert refused.value.code == "box_unavailable"


class Engine:
    """The part of an engine's client that these tests need: it imports and lists images."""

    def __init__(self) -> None:
        self.taken: dict[str, list[str]] = {}
        self.api = self.images = self

    def list(self, name: str) -> list[str]:
        return [each for each in self.taken if each == name]

    def import_image(
        self, stream: BinaryIO, *, repository: str, tag: str, stream_src: bool
    ) -> None:
        assert stream_src
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            self.taken[f"{repository}:{tag}"] = archive.getnames()

    def remove(self, name: str, *, force: bool) -> None:
        assert force
        del self.taken[name]


def test_directory_image_is_imported_once_per_digest(store: Path) -> None:
    (make(store, "ours", 0, 0) / "tree" / "file").write_text("")
    engine = Engine()

    for _ in range(2):
        assert engine_image(engine, "ours") == f"rollcall/ours:{'d' * 12}"
    assert engine.taken == {f"rollcall/ours:{'d' * 12}": [".", "./file"]}


class CountedEngine(Engine):
    """An engine that lists images and containers."""

    def containers(self, *, all: bool) -> list[dict[str, object]]:
        assert all
        return [{"ImageID": "sha256:a", "Names": [f"/{name}"]} for name in ("two", "one")]

    def df(self) -> dict[str, object]:
        common = {"Size": 90, "Created": 7, "RepoDigests": None}
        return {
            "Images": [
                {"Id": "sha256:a", "RepoTags": ["python:3.11"], "SharedSize": 50, **common},
                {"Id": "sha256:b", "RepoTags": None, "SharedSize": -1, **common},
            ]
        }


def test_engine_images_are_listed_with_their_containers() -> None:
    tagged, nameless = engine_rows(CountedEngine())

    assert (tagged.name, tagged.digest, tagged.size_bytes) == ("python:3.11", "a", 40)
    assert (tagged.users, tagged.made_ms, tagged.idle_s) == (["one", "two"], 7000, None)
    assert (nameless.name, nameless.size_bytes, nameless.users) == ("<none>", 90, [])


class BuildingEngine(Engine):
    """An engine that builds images and streams its build log."""

    def __init__(self, *said: dict[str, str], error: Exception | None = None) -> None:
        super().__init__()
        self.said, self.error, self.builds = said, error, 0

    def info(self) -> dict[str, str]:
        return {}

    def build(self, *, path: str, tag: str, **options: object) -> Iterator[dict[str, str]]:
        assert Path(path).is_dir()
        assert options["decode"]
        self.builds += 1
        yield from self.said
        if self.error:
            raise self.error
        if not any("error" in each for each in self.said):
            self.taken[tag] = []


class EngineError(Exception):
    """An error as in the library `docker`."""

    explanation = "no such instruction"


def test_dockerfile_is_built_once(tmp_path: Path) -> None:
    engine = BuildingEngine({"stream": "Step 1/1 : FROM base\n"})

    for _ in range(2):
        engine_build(engine, "rollcall/task:1", ImageBuild(str(tmp_path), 600), FailedBuilds())
    assert (engine.builds, list(engine.taken)) == (1, ["rollcall/task:1"])


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (BuildingEngine({"stream": "one\ntwo\n"}, {"error": "pip ended with 1"}), "pip ended"),
        (BuildingEngine(*[{"stream": f"{n} {'x' * 999}\n"} for n in range(99)],
                        {"error": "end\n"}), "end"),
        (BuildingEngine(error=EngineError("no such instruction")), "no such instruction"),
        (BuildingEngine({"stream": "slow\n"}, {"error": "later"}), "more than 0 s"),
        (BuildingEngine({"error": ""}), ": it says nothing"),
    ],
)  # fmt: skip
def test_last_lines_of_a_failed_build_are_the_reason(
    engine: BuildingEngine, says: str, tmp_path: Path
) -> None:
    build = ImageBuild(str(tmp_path), 0 if says.startswith("more") else 600)

    with pytest.raises(WorkFailed) as failed:
        engine_build(engine, "rollcall/task:1", build, FailedBuilds())
    assert says in str(failed.value)
    assert (failed.value.code, failed.value.retriable) == ("image", False)
    assert len(str(failed.value)) <= REASON_CHARS


def test_failed_build_is_not_retried_for_five_minutes(tmp_path: Path) -> None:
    now = [0.0]
    engine, failed = BuildingEngine({"error": "pip ended with 1"}), FailedBuilds(lambda: now[0])
    build = ImageBuild(str(tmp_path), 600)

    def told(name: str = "rollcall/task:1") -> str:
        with pytest.raises(WorkFailed) as error:
            engine_build(engine, name, build, failed)
        assert (error.value.code, error.value.retriable) == ("image", False)
        return str(error.value).partition("\n")[0]

    assert told() == "image 'rollcall/task:1' cannot be built: pip ended with 1"
    now[0] = 40.0
    again = [told() for _ in range(9)]
    assert set(again) == {
        "image 'rollcall/task:1' cannot be built: pip ended with 1 (40 s ago; it is built again in "
        "260 s)"
    }
    assert engine.builds == 1

    # Another image is built; this one is built again after a while, or after many other failures
    told("rollcall/task:2")
    now[0] = 301.0
    assert "ago" not in told()
    assert engine.builds == 3
    for number in range(engine_builds.KEPT):
        told(f"rollcall/task:other{number}")
    assert "ago" not in told()


def test_connection_loss_during_a_build_is_not_an_image_error(tmp_path: Path) -> None:
    engine = BuildingEngine({"stream": "one"}, error=ConnectionResetError("gone"))

    with pytest.raises(ConnectionResetError):
        engine_build(engine, "rollcall/task:1", ImageBuild(str(tmp_path), 600), FailedBuilds())


def test_full_engine_disk_is_cleared_of_the_oldest_built_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = BuildingEngine()
    built = [SimpleNamespace(id=n, attrs={"Created": f"2026-0{n}"}) for n in (2, 1, 3)]
    removed: list[int] = []

    def remove(ident: int) -> None:
        if ident == 2:
            raise EngineError
        removed.append(ident)

    monkeypatch.setattr(engine, "info", lambda: {"DockerRootDir": str(tmp_path)})
    monkeypatch.setattr(engine, "list", lambda name="", filters=None: built if filters else [])
    monkeypatch.setattr(engine, "remove", remove)
    monkeypatch.setattr(
        disk_floor.shutil, "disk_usage", lambda place: SimpleNamespace(free=len(removed))
    )

    with pytest.raises(WorkFailed, match="`docker image prune` makes room") as failed:
        engine_build(engine, "rollcall/task:1", ImageBuild(str(tmp_path), 600), FailedBuilds())
    assert (removed, engine.builds) == ([1, 3], 0)
    assert (failed.value.code, failed.value.retriable) == ("image", False)


def test_bubblewrap_refuses_images_that_need_a_build(tmp_path: Path) -> None:
    if not has("bwrap"):
        left_out("bubblewrap", "that it builds no Dockerfile")
    spec = Spec(image="rollcall/task:1", build=ImageBuild(str(tmp_path), 600))

    async def whole() -> None:
        await BubblewrapDriver().open(spec)

    with pytest.raises(WorkFailed, match="take box 'docker' or 'auto'") as refused:
        asyncio.run(whole())
    assert (refused.value.code, refused.value.retriable) == ("image", False)
    assert AutoDriver().of(spec).name == "docker"


def test_failed_directory_import_leaves_no_image_in_the_engine(store: Path) -> None:
    shutil.rmtree(make(store, "ours", 0, 0) / "tree")
    engine = Engine()
    engine.import_image = lambda stream, repository, tag, stream_src: engine.taken.update(  # type: ignore[method-assign]
        {f"{repository}:{tag}": []}
    )

    with pytest.raises(WorkFailed, match="image 'ours' cannot be packed: tar ended") as refused:
        engine_image(engine, "ours")
    assert (refused.value.code, engine.taken) == ("image", {})
