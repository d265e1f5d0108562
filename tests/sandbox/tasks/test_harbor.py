"""Tasks as directories: their digests, and the messages for invalid ones."""

import os
import shutil
from pathlib import Path

import pytest

from rollcall.sandbox.tasks.harbor import FILE_BYTES, examine, read_task
from rollcall.schemas.errors import Refused
from tests.support.task_directories import FILES, GOLD, TASK, write_task

NAMED = '[environment]\ndocker_image = "python:3.11"'


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "sums")


def said_of(directory: Path) -> list[str]:
    """The errors of a task directory."""
    found, faults = examine(directory)
    assert (found is None) == bool(faults)
    return [str(fault) for fault in faults]


def test_complete_task_directory_is_read(task: Path) -> None:
    read = read_task(task)

    assert read.name == "sums"
    assert read.instruction.startswith("Mend `add`")
    assert read.file.verifier.parser == "unittest"
    assert read.file.verifier.fail_to_pass == ("tests.test_sums.Sums.test_adds",)
    assert read.file.environment.memory_mb == 512
    assert read.gold == GOLD.encode()


def test_task_digest_is_independent_of_path_and_timestamps(task: Path) -> None:
    digest = read_task(task).digest
    moved = task.parent / "deeper" / "other"
    shutil.copytree(task, moved)
    for path in moved.rglob("*"):
        os.utime(path, (1, 1))
    (moved / "task.toml").chmod(0o600)

    assert len(digest) == 64
    assert read_task(moved).digest == digest


@pytest.mark.parametrize("name", [*FILES, "environment/testbed/new"])
def test_task_digest_changes_with_every_file_content(task: Path, name: str) -> None:
    digest = read_task(task).digest
    with (task / name).open("a") as file:
        file.write("\n")

    assert read_task(task).digest != digest


def test_tasks_with_equal_build_contexts_share_one_image(task: Path) -> None:
    assert (read_task(task).image, read_task(task).build) == ("", None)
    (task / "environment" / "Dockerfile").write_text("FROM base\n")
    other = task.parent / "other"
    shutil.copytree(task, other)
    (other / "instruction.md").write_text("Say it otherwise.")
    image = read_task(task).image

    assert image.startswith("rollcall/task:")
    assert read_task(other).image == image
    build = read_task(other).build
    assert build is not None
    assert (build.directory, build.timeout_s) == (str(other / "environment"), 600.0)
    (other / "environment" / "testbed" / "more").write_text("")
    assert read_task(other).image != image
    text = (other / "task.toml").read_text().replace("[environment]", NAMED)
    (other / "task.toml").write_text(text)
    assert (read_task(other).image, read_task(other).build) == ("python:3.11", None)


def test_task_digest_covers_names_folders_links_and_executable_bits(task: Path) -> None:
    digests = [read_task(task).digest]
    (task / "environment/testbed/empty").mkdir()
    digests.append(read_task(task).digest)
    (task / "environment/testbed/sums.py").chmod(0o755)
    digests.append(read_task(task).digest)
    (task / "environment/testbed/link").symlink_to("sums.py")
    digests.append(read_task(task).digest)
    (task / "environment/testbed/link").unlink()
    (task / "environment/testbed/link").write_text("sums.py")
    digests.append(read_task(task).digest)
    (task / "environment/testbed/link").rename(task / "environment/testbed/knil")
    digests.append(read_task(task).digest)

    assert len(set(digests)) == len(digests)


def toml(old: str, new: str) -> dict[str, str | None]:
    assert old in TASK
    return {"task.toml": TASK.replace(old, new)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task.toml": None}, "task.toml: is missing"),
        ({"task.toml": "version = "}, "task.toml: is not TOML"),
        ({"task.toml": "version = '1.0'"}, "task.toml: verifier is missing"),
        ({"instruction.md": None}, "instruction.md: is missing"),
        ({"instruction.md": " \n"}, "instruction.md: is empty"),
        (
            {"tests/testbed/tests/__init__.py": None, "tests/testbed/tests/test_sums.py": None},
            "tests/testbed/: is missing or empty",
        ),
        (
            {"environment/testbed/sums.py": None, "environment/testbed/tests/__init__.py": None},
            "environment/testbed/: is missing, and so are a Dockerfile",
        ),
        ({"solution/gold.patch": None, "solution/x": ""}, "solution/: holds neither gold.patch"),
        (toml("parser =", "praser ="), "verifier.praser is no key"),
        (toml("parser =", "praser ="), "did you mean 'verifier.parser'"),
        (
            toml('"unittest"', '"unitest"'),
            "verifier.parser: unknown parser 'unitest'; did you mean",
        ),
        (toml('"unittest"', '"no_such:thing"'), "there is no module 'no_such'"),
        (toml('["tests"]', '["../tests"]'), "verifier.replace: '../tests' is no plain path"),
        (toml('["tests"]', '["/etc"]'), "verifier.replace: '/etc' is no plain path"),
        (toml("512", '"2G"'), "environment.memory_mb"),
        (toml("memory_mb = 512", "allow_internet = true"), "environment.allow_internet"),
        (toml('["tests.test_sums.Sums.test_adds"]', "[]"), "verifier: fail_to_pass is empty"),
        (toml("test_keeps_zero", "test_adds"), "stands in fail_to_pass and in pass_to_pass"),
        (toml('"unittest"', '"exit-code"'), "knows no tests by name"),
        (toml("python3 -m unittest -v tests.test_sums", " "), "verifier.command: is empty"),
    ],
)
def test_missing_or_invalid_task_parts_are_reported_by_file_and_key(
    tmp_path: Path, changes: dict[str, str | None], said: str
) -> None:
    write_task(tmp_path / "bad", changes)

    assert any(said in each for each in said_of(tmp_path / "bad")), said_of(tmp_path / "bad")
    with pytest.raises(Refused, match="cannot be used"):
        read_task(tmp_path / "bad")


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "../../../..", "../../tests", "../testbed/../Dockerfile", "../../task.toml"],
)
def test_link_out_of_the_testbed_is_refused(task: Path, target: str) -> None:
    (task / "environment/testbed/out").symlink_to(target)

    (said,) = said_of(task)
    assert said.startswith("environment/testbed/out: is a link to ")
    assert said.endswith("which leads out of environment/testbed/")


def test_link_within_the_testbed_is_accepted(task: Path) -> None:
    (task / "environment/testbed/tests/up").symlink_to("../sums.py")
    (task / "environment/testbed/gone").symlink_to("nowhere")

    assert said_of(task) == []


def test_task_part_that_is_a_link_is_refused(task: Path) -> None:
    (task / "tests").rename(task / "solution/tests")
    (task / "tests").symlink_to("solution/tests")

    assert "tests: is a link; it must be there itself" in said_of(task)


@pytest.mark.parametrize("name", [b"new\nline", b"caf\xe9", b"bell\x07"])
def test_unprintable_file_names_are_refused(task: Path, name: bytes) -> None:
    (task / "environment/testbed" / os.fsdecode(name)).write_text("")

    (said,) = said_of(task)
    assert "has a name" in said
    assert "\n" not in said.encode().decode()


def test_repositories_pipes_and_huge_files_are_refused(task: Path) -> None:
    testbed = task / "environment/testbed"
    (testbed / ".git").mkdir()
    os.mkfifo(testbed / "pipe")
    with (testbed / "huge").open("wb") as file:
        file.truncate(FILE_BYTES + 1)
    (testbed / "suid").write_text("")
    (testbed / "suid").chmod(0o4755)

    said = " ".join(said_of(task))
    for wrong in (".git: is a repository's", "pipe: is neither", "huge: has 67", "suid: runs as"):
        assert f"environment/testbed/{wrong}" in said


def test_missing_task_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no such directory"):
        read_task(tmp_path / "nothing")
