"""Images of packages: wheels of an index, locked, in layers that images share."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.sandbox.boxes import image_store
from rollcall.sandbox.boxes.box import Spec
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver
from rollcall.sandbox.boxes.image_python import image_python
from rollcall.sandbox.boxes.image_rows import directory_rows
from rollcall.sandbox.boxes.image_store import BuiltImage, collect
from rollcall.sandbox.boxes.package_layers import build_packages, lock_place
from rollcall.sandbox.boxes.wheels import checked, requirement_lines
from rollcall.sandbox.locked_folder import hold
from rollcall.schemas.errors import Refused, RollcallError
from tests.support.engines import has, left_out

DAY_S = 86_400
PACKAGES = "usr/local/lib/python3.11/dist-packages"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An image store with a minimal base image, and a folder as package index."""
    place = Path(tempfile.mkdtemp(prefix="images-"))
    place.chmod(0o755)
    tree = place / "base" / "tree"
    for folder in ("usr/lib/python3.11", "usr/bin", "usr/local/bin", "var/lib/dpkg", "etc"):
        (tree / folder).mkdir(parents=True)
    (tree / "etc/passwd").write_text("")
    (tree / "usr/local/bin/greet").write_text("#!/bin/sh\necho of the base\n")
    (tree / "var/lib/dpkg/status").write_text(
        "Package: libc6-dev\nVersion: 2.99-1\n\nPackage: libc6\nArchitecture: amd64\nDepends: x\n"
        " libgcc\nVersion: 2.36-9\n\nPackage: zlib1g\nVersion: 1:1.2\n"
    )
    fields = {"name": "base", "digest": "b" * 64, "size_bytes": 300, "made_ms": 1}
    (place / "base" / "image.json").write_text(json.dumps(fields))
    (place / "index").mkdir()
    for name, value in {
        image_store.DIRECTORY: str(place), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": str(place / "index"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    yield place
    shutil.rmtree(place)


def wheel(store: Path, name: str, version: str = "1.0", *, tag: str = "py3-none-any",
          requires: str = "", program: bool = False) -> None:  # fmt: skip
    """Write a wheel to the index."""
    about = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}.py": f"def main():\n    print('{name} {version}')\n",
        f"{about}/METADATA": metadata,
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    if program:
        files[f"{about}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}:main\n"
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(store / "index" / f"{name}-{version}-{tag}.whl", "w") as packed:
        for path, content in files.items():
            packed.writestr(path, content)


def test_package_images_share_base_and_layers_and_count_them_once(
    store: Path,
) -> None:
    wheel(store, "greet", requires="words>=2", program=True)
    wheel(store, "words", "2.5")

    image = build_packages("polite", "base", ["greet"])
    lock = requirement_lines(lock_place(image).read_text(), "lock.txt")
    again = build_packages("kind", "base", lock)

    assert (image.base, list(image.packages)) == ("base", ["greet==1.0", "words==2.5"])
    assert image.digest == again.digest != "b" * 64
    assert (image.tree / PACKAGES / "words.py").stat().st_nlink == 3
    assert (image.tree / "etc/passwd").samefile(store / "base/tree/etc/passwd")
    program = (image.tree / "usr/local/bin/greet").read_text()
    assert program.startswith("#!/usr/bin/python3\n")
    assert "of the base" in (store / "base/tree/usr/local/bin/greet").read_text()
    rows = {(row.kind, row.name): row for row in directory_rows()}
    (layer,) = [row for row in rows.values() if row.kind == "layer"]
    assert layer.users == ["kind", "polite"] == rows["directory", "base"].users
    assert rows["directory", "kind"].base == "base"
    assert 0 < layer.size_bytes < 100_000
    assert not list(store.glob(".held-*"))

    wheel(store, "words", "2.5", requires="greet")  # another file of that name
    with pytest.raises(Refused, match="DO NOT MATCH THE HASHES"):
        build_packages("tampered", "base", lock)
    with pytest.raises(Refused, match=r"'polite' is there with other packages \(greet==1.0 words"):
        build_packages("polite", "base", ["words"])
    assert len(image_store.layers()) == 1
    assert not list(store.glob(".held-*"))


def test_stacked_package_layers_are_visible_in_a_box(store: Path) -> None:
    if not has("bwrap"):
        left_out("bubblewrap", "a box of an image of packages")
    wheel(store, "words")
    wheel(store, "greet", program=True)
    build_packages("wordy", "base", ["words"])
    image = build_packages("polite", "wordy", ["greet"])
    assert len(image.layers) == 2
    for name in ("bin", "lib", "lib64"):
        (image.tree / name).mkdir()

    async def seen() -> str:
        # Directories that a real base contains are mounted from the host.
        mounts = {f"/{name}": f"/{name}" for name in ("bin", "lib", "lib64", "usr/bin", "usr/lib")}
        mounts = {place: source for place, source in mounts.items() if os.path.isdir(source)}
        box = await BubblewrapDriver().open(Spec(image="polite", mounts=mounts))
        try:
            ran = await box.run(["cat", f"/{PACKAGES}/words.py", f"/{PACKAGES}/greet.py"])
            tried = await box.run(["touch", f"/{PACKAGES}/more.py"])
            assert tried.exit_code
            return ran.output
        finally:
            await box.close()

    told = asyncio.run(seen())
    assert "words 1.0" in told
    assert "greet 1.0" in told


def test_wheels_are_chosen_for_the_image_and_not_the_builder(store: Path) -> None:
    (store / "base/tree/usr/lib/python3.11").rename(store / "base/tree/usr/lib/python3.13")
    python = image_python(store / "base/tree", "base")
    assert python.glibc_minor == 36
    assert python.platforms[0].startswith("manylinux_2_36_")
    assert any(each.startswith("manylinux2014_") for each in python.platforms)

    wheel(store, "words", tag=f"cp313-cp313-{python.platforms[0]}")
    wheel(store, "words", "2.0", tag=f"cp312-cp312-{python.platforms[0]}")
    wheel(store, "words", "3.0", tag=f"cp313-cp313-{python.platforms[0].replace('36', '37')}")
    image = build_packages("wordy", "base", ["words"])
    assert list(image.packages) == ["words==1.0"]

    wheel(store, "greet", requires='words>=2; python_version >= "3.13"')
    with pytest.raises(Refused, match="greet requires words>=2") as missing:
        build_packages("polite", "base", ["greet"])
    assert "with Python 3.13: name what is missing too" in str(missing.value)
    assert [image.name for image in image_store.images()] == ["base", "wordy"]


def test_base_images_and_layers_are_collected_after_their_users(store: Path) -> None:
    for name, base, days, made in (("base", "", 9, 1), ("a", "base", 9, 3), ("b", "base", 3, 4)):
        lay(store / name, BuiltImage(name, name, 10, made, base, ("l1",) if base else ()), days)
    for name, days in (("l1", 3), ("l2", 5)):
        lay(store / "layers" / name, BuiltImage(name, name, 10, 2), days)

    # Old images without dependents are removed first, then the excess size.
    assert [each.name for each in collect(1000, 8 * DAY_S)[0]] == ["a"]
    assert [each.name for each in collect(30, 100 * DAY_S)[0]] == ["l2"]
    assert [each.name for each in collect(29, 100 * DAY_S)[0]] == ["b"]
    image_store.built("base")
    removed, in_use = collect(0, 0)
    assert ([each.name for each in removed], [each.name for each in in_use]) == (["l1"], ["base"])


def test_partial_images_do_not_block_later_builds(store: Path) -> None:
    (store / "wordy" / "tree").mkdir(parents=True)
    wheel(store, "words")

    collect(1 << 40, 100 * DAY_S)
    assert (build_packages("wordy", "base", ["words"]).tree / PACKAGES / "words.py").is_file()


def test_next_build_removes_only_folders_of_killed_builders(
    store: Path,
) -> None:
    def there() -> set[str]:
        return {path.name for path in store.glob(".held-*")}

    # Given a builder at work, one that was killed, and one that was killed before its program
    with image_store.making() as at_work:
        dead, outlived = store / ".held-dead", store / ".held-outlived"
        for folder in (dead, outlived):
            (folder / "tree").mkdir(parents=True)
        held = hold(outlived)
        program = subprocess.Popen(["sleep", "600"], pass_fds=[held])
        os.close(held)

        # When the next one begins
        with image_store.making() as second:
            assert there() == {at_work.name, outlived.name, second.name}

        # Then all folders without a holder are gone, and the program's folder after its end
        assert there() == {at_work.name, outlived.name}
        program.kill()
        program.wait(10)
        collect(1 << 40, 100 * DAY_S)
        assert there() == {at_work.name}
    assert there() == set()


def lay(place: Path, image: BuiltImage, days: float) -> None:
    place.mkdir(parents=True, exist_ok=True)
    fields = {name: getattr(image, name) for name in image.__slots__ if name != "place"}
    (place / "image.json").write_text(json.dumps(fields))
    os.utime(place / "image.json", (time.time() - days * DAY_S,) * 2)


@pytest.mark.parametrize(
    ("name", "base", "asked", "says"),
    [
        ("Words", "base", "words", "'Words' can be no name of an image of packages"),
        ("../up", "base", "words", "can be no name"),
        ("layers", "base", "words", "none of base, host, layers"),
        ("host", "base", "words", "none of base, host, layers"),
        ("wordy", "bass", "words", "stands on 'bass', which is not in"),
        ("wordy", "bare", "words", "has no Python that packages could be for: 0 folders"),
        ("wordy", "base", "words==9", "words==9 cannot be had as wheels for Python 3.11"),
    ],
)
def test_invalid_package_image_is_refused_and_leaves_no_files(
    store: Path, name: str, base: str, asked: str, says: str
) -> None:
    (store / "bare/tree").mkdir(parents=True)
    (store / "bare/image.json").write_text((store / "base/image.json").read_text())
    with pytest.raises(RollcallError, match=says) as refused:
        build_packages(name, base, [asked])
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in store.iterdir()) == ["bare", "base", "index"]


def test_unreachable_package_index_is_named_in_the_error(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setattr("rollcall.sandbox.boxes.wheels.QUIETLY", ("--quiet", "--retries", "1"))
    with pytest.raises(RollcallError, match="words cannot be fetched: the package index does not"):
        build_packages("wordy", "base", ["words"])


@pytest.mark.parametrize(
    "line",
    [
        "-e .", "--index-url http://x", "./words", "/etc", "words @ file:///etc/words.whl",
        "git+https://x/words", "words==1.0 --hash=md5:abc", "words==1.0\n-e /etc", "",
        f"words==1.0 --hash=sha256:{'a' * 64} -e /etc", "wörds==1", "words==",
    ],
)  # fmt: skip
def test_requirement_other_than_name_and_version_is_refused(line: str) -> None:
    with pytest.raises(Refused, match="in --with"):
        checked(line, "--with")


def test_requirements_file_is_read_in_pip_format() -> None:
    text = f"# a lock\n\nsix==1.16.0 \\\n    --hash=sha256:{'a' * 64}\n"
    six, words = requirement_lines(f"{text}words>=1 ; os_name == 'posix' # why\n", "lock.txt")

    assert six.split() == ["six==1.16.0", f"--hash=sha256:{'a' * 64}"]
    assert words == "words>=1 ; os_name == 'posix'"
