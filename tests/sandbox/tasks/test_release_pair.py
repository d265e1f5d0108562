"""Tasks made of two releases, from an index that is a folder."""

import asyncio
import os
import stat
import sys
from pathlib import Path

import pytest

from rollcall.sandbox.tasks.git_trees import git, patch_between
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.release_layout import in_words
from rollcall.sandbox.tasks.release_pair import ReleasePair, build_pair
from rollcall.sandbox.tasks.sdists import Sdist, fetch
from rollcall.sandbox.tasks.suite_runs import (
    PYTEST,
    SuiteBox,
    SuiteRuns,
    run_once,
    runs_of,
    suite_box,
)
from rollcall.schemas.errors import Refused, RollcallError, Unavailable
from tests.support import local_index
from tests.support.source_releases import (
    BUG,
    FIX,
    NEW_TESTS,
    OLD_TESTS,
    RIGHT,
    WRONG,
    source_release,
)
from tests.support.tiers import cases

PROGRAMS = Path(sys.executable).parent
PAIR = ReleasePair("tiny", "1.0", "1.1")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    source_release(folder, "tiny", "1.0", BUG)
    source_release(folder, "tiny", "1.1", FIX)
    local_index.use(folder, monkeypatch)
    return folder


def build(pair: ReleasePair, into: Path, index: Path | None = None) -> HarborTask:
    """Build with the index's client, or from a folder without it."""

    def get(name: str, version: str, folder: Path) -> Sdist:
        return Sdist(Path(index or folder) / f"{name}-{version}.tar.gz", "0" * 64)

    async def whole() -> HarborTask:
        box = await suite_box("local", programs=PROGRAMS)
        return await build_pair(pair, into, box, print, get=get if index else fetch)

    return asyncio.run(whole())


def runs(tree: Path, command: str) -> SuiteRuns:
    async def whole() -> SuiteRuns:
        return await runs_of(await suite_box("local", programs=PROGRAMS), tree, command)

    return asyncio.run(whole())


def test_older_code_and_newer_tests_become_a_task(index: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir(mode=0o755)

    task = build(PAIR, tmp_path / "tasks")

    assert stat.S_IMODE(task.directory.stat().st_mode) == 0o700
    verifier = task.file.verifier
    assert task.directory == tmp_path / "tasks" / "tiny-1.0-1.1"
    assert verifier.fail_to_pass == ("tests/test_tiny.py::test_of_some",)
    assert verifier.pass_to_pass == ("tests/test_tiny.py::test_of_none",)
    assert "src/tiny.py" in (task.gold or b"").decode()
    assert "test_tiny" not in (task.gold or b"").decode()
    assert task.file.metadata["sdists"].keys() == {"tiny-1.0.tar.gz", "tiny-1.1.tar.gz"}
    assert "(tiny: of some)" in task.instruction
    assert "sum(numbers)" not in task.instruction

    # And an existing task is not overwritten
    with pytest.raises(Refused, match="is there already and not empty"):
        build(PAIR, tmp_path / "tasks")


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (ReleasePair("tiny", "1.1", "1.0"), "tiny 1.1 is not older than 1.0"),
        (ReleasePair("tiny", "1.0", "1.0"), "tiny 1.0 is not older than 1.0"),
        (ReleasePair("tiny", "one", "1.1"), "Invalid version: 'one'"),
        (ReleasePair("../tiny", "1.0", "1.1"), "'../tiny' is no name of a package"),
        (ReleasePair("--index-url=x", "1.0", "1.1"), "is no name of a package"),
        (ReleasePair("untested", "1.0", "1.1"), "untested-1.1.tar.gz has no tests in it"),
        (ReleasePair("tiny", "1.0", "1.1", ("", "f" * 64)), "has sha256 000000"),
        (ReleasePair("broken", "1.0", "1.1"), "broken-1.0.tar.gz cannot be unpacked"),
    ],
)
def test_invalid_release_pair_is_refused_in_one_line_and_leaves_no_files(
    index: Path, tmp_path: Path, pair: ReleasePair, said: str
) -> None:
    for version in ("1.0", "1.1"):
        source_release(index, "untested", version, {"untested.py": ""})
    (index / "broken-1.0.tar.gz").write_bytes((index / "tiny-1.0.tar.gz").read_bytes()[:200])

    with pytest.raises(Refused) as refused:
        build(pair, tmp_path / "tasks", index)

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "tasks").exists()


PLACES = {
    "a folder at the top": ("tests/test_tiny.py", "tests"),
    "a folder of another name": ("test/test_tiny.py", "test"),
    "yet another": ("testing/test_tiny.py", "testing"),
    "a folder in the package": ("tiny/tests/test_tiny.py", "tiny/tests"),
    "one in a package below src": ("src/tiny/test/test_tiny.py", "src/tiny/test"),
    "a file that pytest does not look for": ("tiny/tests/tests.py", "tiny/tests/tests.py"),
    "a single file": ("test_tiny.py", "test_tiny.py"),
    "a single file of tests": ("tiny_test.py", "tiny_test.py"),
}


@pytest.mark.parametrize("where", cases(PLACES))
def test_tests_are_found_in_all_usual_places_of_a_release(tmp_path: Path, where: str) -> None:
    index, (file, place) = tmp_path / "index", PLACES[where]
    for version, code, tests in (("1.0", WRONG, OLD_TESTS), ("1.1", RIGHT, NEW_TESTS)):
        home = "src/tiny" if file.startswith("src") else "tiny"
        files = {f"{home}/__init__.py": code, file: tests, "docs/test_tiny.py": "1 / 0"}
        source_release(index, "tiny", version, files)

    task = build(PAIR, tmp_path / "tasks", index)

    assert task.file.verifier.replace == (place,)
    assert task.file.verifier.fail_to_pass == (f"{file}::test_of_some",)
    assert f"lies at {place} is of this release" in task.instruction
    assert task.testbed
    assert (task.testbed / file).read_text() == OLD_TESTS
    assert (task.test_files / file).read_text() == NEW_TESTS


def test_flaky_test_is_excluded_from_the_criteria(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = tmp_path / "count"
    flaky = f"""

def test_now_and_then():
    from pathlib import Path
    path = Path({str(count)!r})
    path.write_text(path.read_text() + "." if path.exists() else ".")
    assert len(path.read_text()) % 5
"""
    source_release(index, "tiny", "1.1", {**FIX, "tests/test_tiny.py": NEW_TESTS + flaky})

    verifier = build(PAIR, tmp_path / "tasks", index).file.verifier

    assert verifier.fail_to_pass == ("tests/test_tiny.py::test_of_some",)
    assert verifier.pass_to_pass == ("tests/test_tiny.py::test_of_none",)
    said = "tiny-1.0-1.1: 1 flaky tests count for nothing: tests/test_tiny.py::test_now_and_then"
    assert said in capsys.readouterr().out


ABOUT = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\nRequires-Dist: needed-thing>=1\n"
ABOUT += "Requires-Dist: more_things; extra == 'all'\n"
UNIMPORTABLE = {
    "import needed_thing\n": "module 'needed_thing', of its requirement 'needed-thing'; name an",
    "import more_things.x\n": "module 'more_things', of its extra 'all'; name an image that has",
    "import odd_thing\n": "module 'odd_thing', which is none of its requirements",
    "from tiny._version import v\n": "module 'tiny._version', which the build of tiny makes: it is",
    "from importlib.metadata import version\nversion('other')\n": "metadata of other, which only",
    "1 / 0\n": "ZeroDivisionError: division by zero",
}


@pytest.mark.parametrize("code", cases(UNIMPORTABLE))
def test_unimportable_package_is_reported_with_its_error(tmp_path: Path, code: str) -> None:
    index = tmp_path / "index"
    for version, tests in (("1.0", OLD_TESTS), ("1.1", NEW_TESTS)):
        files = {"tiny/__init__.py": code + RIGHT, "tests/test_tiny.py": tests, "PKG-INFO": ABOUT}
        source_release(index, "tiny", version, files)

    with pytest.raises(Refused) as refused:
        build(PAIR, tmp_path / "tasks", index)

    said = f"tiny 1.0 cannot be imported in the box: {UNIMPORTABLE[code]}"
    assert said in str(refused.value).replace("the metadata", "metadata")
    assert not (tmp_path / "tasks").exists()


def test_package_version_metadata_and_conftest_are_available_to_tests(tmp_path: Path) -> None:
    index = tmp_path / "index"
    own = "from importlib.metadata import version\n__version__ = version('tiny')\n"
    configured = "import pytest\n@pytest.fixture\ndef five():\n    return {}\n"
    tests = OLD_TESTS + "\ndef test_of_some(five):\n    assert total([2, 3]) == five\n"
    for version, code, five in (("1.0", WRONG, "None"), ("1.1", RIGHT, "5")):
        files = {"tiny/__init__.py": own + code, "tests/test_tiny.py": tests, "PKG-INFO": ABOUT}
        source_release(index, "tiny", version, {**files, "conftest.py": configured.format(five)})

    verifier = build(PAIR, tmp_path / "tasks", index).file.verifier

    assert verifier.fail_to_pass == ("tests/test_tiny.py::test_of_some",)
    assert verifier.replace == ("tests", "conftest.py")


def test_release_that_changes_only_test_configuration_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "index"
    for version, tests in (("1.0", OLD_TESTS), ("1.1", NEW_TESTS)):
        files = {"tiny/__init__.py": RIGHT, "tests/test_tiny.py": tests}
        files |= {"setup.cfg": f"[tool]\nx = {version}\n", "own_backend.py": ""}
        files |= {"PKG-INFO": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n"}
        source_release(index, "tiny", version, files)

    with pytest.raises(Refused, match="changes nothing but its tests, how they are run, and docs"):
        build(PAIR, tmp_path / "tasks", index)


def test_release_pair_without_a_fail_to_pass_test_is_refused(index: Path, tmp_path: Path) -> None:
    source_release(index, "tiny", "1.0", {**BUG, "src/tiny.py": RIGHT})

    with pytest.raises(Refused, match="newer code passes no test that older code fails; 2 pass"):
        build(PAIR, tmp_path / "tasks", index)

    assert not (tmp_path / "tasks").exists()


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("tiny", "1.2", "no source release of tiny==1.2; did you mean '1.1'"),
        ("wheels", "1.0", "the index has no source release of wheels at all"),
    ],
)
def test_package_without_a_source_release_is_refused(
    index: Path, tmp_path: Path, name: str, version: str, said: str
) -> None:
    local_index.wheel(index, "wheels", "1.0", "")

    with pytest.raises(Refused, match=said):
        fetch(name, version, tmp_path / "fetched")


def test_unreachable_package_index_is_reported_as_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr(
        "rollcall.sandbox.tasks.sdists.QUIETLY", ("--quiet", "--no-deps", "--retries", "1")
    )

    with pytest.raises(Unavailable, match="the package index does not answer"):
        fetch("tiny", "1.0", tmp_path / "fetched")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo no tests ran; exit 5", "cannot be run: exit code 5: no tests ran"),
        ("echo No module named pytest; exit 1", "the box has no pytest for its python3; install"),
        ("exit 3", "cannot be run: exit code 3: nothing was printed"),
    ],
)
def test_runs_without_test_results_are_refused(tmp_path: Path, command: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        runs(tmp_path, command)


def test_tests_that_exceed_the_timeout_are_refused(tmp_path: Path) -> None:
    async def whole() -> None:
        box = await suite_box("local")
        await runs_of(SuiteBox(box.driver, timeout_s=0.2), tmp_path, "sleep 60")

    with pytest.raises(Refused, match=r"they take more than 0\.2 s"):
        asyncio.run(whole())


def test_failing_teardown_makes_its_test_not_pass(tmp_path: Path) -> None:
    (tmp_path / "test_ends.py").write_text(
        "import pytest\n@pytest.fixture\ndef ends():\n    yield\n    assert False\n"
        "def test_torn(ends):\n    print('PASSED tests/test_of_nobody.py::test')\n"
        "@pytest.mark.parametrize('x', ['a - b'])\ndef test_whole(x):\n    pass\n"
    )

    async def whole() -> frozenset[str]:
        box = await suite_box("local", programs=PROGRAMS)
        return (await run_once(box, tmp_path, PYTEST.format(tests=".")))[0]

    assert asyncio.run(whole()) == {"test_ends.py::test_whole[a - b]"}


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("tests/test_parse.py::test_too_many_fields", "parse: too many fields"),
        ("tests/a/test_b.py::PathSpecTest::test_01_match[x_y]", "b, path spec: 01 match"),
        ("tests/test_x.py::test", "x: test"),
    ],
)
def test_id_of_a_test_is_converted_to_words(test: str, words: str) -> None:
    assert in_words(test) == words


def test_patch_between_trees_handles_binary_mode_link_and_ignored_files(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for tree in (old, new):
        (tree / "tests").mkdir(parents=True)
        (tree / ".gitattributes").write_text("* text=auto eol=crlf\n*.bin filter=lfs\n")
        (tree / ".gitignore").write_text("*\n")
    (old / "gone").write_text("no newline at the end")
    (old / "data.bin").write_bytes(bytes(range(256)))
    (new / "data.bin").write_bytes(bytes(range(255, -1, -1)))
    (new / "ends").write_bytes(b"one\r\ntwo\nthree\r")
    (new / "run").write_text("#!/bin/sh\n")
    (new / "run").chmod(0o755)
    (new / "link").symlink_to("run")
    for tree, text in ((old, "a = 1"), (new, "a = 2")):
        (tree / "same_size_and_time").write_text(text)
        os.utime(tree / "same_size_and_time", (1, 1))
    (new / "tests" / "test_new.py").write_text("")

    patch = patch_between(old, new, tmp_path / "work", without=["tests"])

    git(old, "init", "-q")
    git(old, "apply", "-", stdin=patch)
    assert (old / "ends").read_bytes() == b"one\r\ntwo\nthree\r"
    assert (old / "data.bin").read_bytes() == bytes(range(255, -1, -1))
    assert (old / "same_size_and_time").read_text() == "a = 2"
    assert (old / "run").stat().st_mode & 0o111
    assert (old / "link").is_symlink()
    assert not (old / "gone").exists()
    assert not (old / "tests" / "test_new.py").exists()


def test_unknown_box_name_or_program_directory_is_refused(tmp_path: Path) -> None:
    async def box(name: str, programs: Path | None = None) -> SuiteBox:
        return await suite_box(name, programs=programs)

    with pytest.raises(RollcallError, match="unknown box 'locl'; did you mean 'local'"):
        asyncio.run(box("locl"))
    with pytest.raises(Refused, match="is no directory of programs"):
        asyncio.run(box("local", tmp_path / "nothing"))


def test_missing_image_is_reported_before_any_download() -> None:
    async def box() -> SuiteBox:
        return await suite_box("bubblewrap", "nowhere")

    with pytest.raises(
        Refused, match=r"no box of (image 'nowhere'|driver 'bubblewrap') can be had"
    ):
        asyncio.run(box())


def test_missing_box_driver_is_reported_before_any_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def box(image: str) -> SuiteBox:
        return await suite_box("auto", image)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.socket")

    with pytest.raises(Refused, match=r"not installed.*`--box local` isolates nothing"):
        asyncio.run(box(""))
    with pytest.raises(Refused, match="no box of driver 'docker' can be had here"):
        asyncio.run(box("python:3.11"))
