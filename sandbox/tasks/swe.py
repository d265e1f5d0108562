"""The import of SWE-bench-style rows as task directories, if their code is available.

The code comes from a clone in a folder of repositories, or from an image that this machine's docker
engine has. The test patch is applied to it, and the files that it touches become the task's tests.
SWE-rebench's `install_config` defines how tests are run and what is installed. If a box of a task
can be opened, the task is proven (`rollcall.sandbox.tasks.proof`); else it is marked as not proven.
"""

import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcall.sandbox.grading.parsers import unittest_name
from rollcall.sandbox.locked_folder import scratch_folder
from rollcall.sandbox.tasks.git_trees import git, tar_of_commit, tree_of
from rollcall.sandbox.tasks.harbor import (
    DOCKERFILE,
    GOLD,
    INSTRUCTION,
    TASK_FILE,
    TEST_FILES,
    TESTBED,
    HarborTask,
    read_task,
)
from rollcall.sandbox.tasks.proof import Prover
from rollcall.sandbox.tasks.sdists import unpack_tar
from rollcall.sandbox.tasks.suite_runs import PYTEST
from rollcall.sandbox.tasks.swe_rows import InstallConfig, SweRow, as_lines, row_of
from rollcall.schemas.atomic_files import atomic_path
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.private_folders import PRIVATE, make_private
from rollcall.schemas.untrusted_text import clean_text

PARSERS = {"pytest": "pytest", "unittest": "unittest", "django": "unittest"}
"""Our parsers, by a word in the name of a row's parser."""
ENGINE_S = 300.0
ARCHIVE = ("-c", "safe.directory=*", "-C", "/testbed", "archive", "--format=tar")
CONDA = """for place in /opt/*conda*/envs/testbed; do
  [ ! -x "$place/bin/python" ] || { echo "$place"; echo "$PATH"; exit; }
done"""
"""A script that prints the conda environment for tests in SWE-bench and SWE-rebench images."""


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """The result of importing one line."""

    instance: str
    task: HarborTask | None = None
    refused: str = ""
    unproven: str = ""
    """The reason why the task was not proven with its gold patch."""
    dropped: int = 0
    """The number of the row's tests that do not always pass with its gold patch; not used."""


@dataclass(frozen=True, slots=True)
class _Code:
    """The files of a row's base commit, and the image that has them, if any."""

    tar: bytes
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the image does not set itself, for the environment of its test programs."""


def import_rows(
    lines: Sequence[bytes], into: Path, repositories: Path | None, prover: Prover
) -> Iterator[ImportedRow]:
    """Import rows one by one and yield each result; a refused row leaves no files."""
    make_private(into)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name = f"line {number}"
        try:
            row = row_of(line)
            name = row.instance_id
            yield _imported(row, into, repositories, prover)
        except Refused as error:
            yield ImportedRow(name, refused=clean_text(str(error)))


def _imported(row: SweRow, into: Path, repositories: Path | None, prover: Prover) -> ImportedRow:
    """Import one row. Raises Refused, and then leaves no files."""
    place = into / row.instance_id
    if place.exists():
        msg = f"{place} is there already; remove it to import it anew"
        raise Refused(msg)
    says = _says(row)
    with scratch_folder("swe") as scratch:
        code = _code(row, repositories, scratch / "objects")
        directory = scratch / row.instance_id
        says["verifier"]["replace"] = _write_code(row, code, directory, scratch)
        says["environment"] |= {"docker_image": code.image, "env": dict(code.env)}
        _write_words(row, says, directory, dockerfile=not code.image)
        proof = prover(read_task(directory))
        says["metadata"]["proven"] = not proof.lacking
        says["verifier"] |= {
            "fail_to_pass": list(proof.fail_to_pass),
            "pass_to_pass": list(proof.pass_to_pass),
        }
        _write_task_file(says, directory)
        with atomic_path(place) as hidden:
            shutil.copytree(directory, hidden, symlinks=True)
            hidden.chmod(PRIVATE)
    task = read_task(place)
    return ImportedRow(task.name, task, unproven=proof.lacking, dropped=proof.dropped)


def _says(row: SweRow) -> dict[str, Any]:
    """Return the content of `task.toml`, without the parts that need the code. Raises Refused."""
    how = row.install_config
    named = all("::" in test for test in row.fail_to_pass)
    command = " && ".join(as_lines(how.test_cmd)) or (PYTEST if named else "")
    known = (ours for word, ours in PARSERS.items() if word in how.log_parser.lower())
    parser = next(known, "" if how.log_parser else "pytest" if named else "")
    if not command or not parser:
        msg = (
            "how its tests are run is not said in install_config.test_cmd and .log_parser (found "
            f"{how.test_cmd!r:.80}, {how.log_parser!r}), and their names are not those of pytest"
        )
        raise Refused(msg)
    mend, keep = [
        {unittest_name(test) if parser == "unittest" else test for test in tests}
        for tests in (row.fail_to_pass, row.pass_to_pass)
    ]
    return {
        "version": "1.0",
        "metadata": {"source": "swe", "repo": row.repo, "base_commit": row.base_commit},
        "environment": {"memory_mb": 4096},
        "verifier": {
            "command": " ".join([command, *_test_modules(row)]) if parser == "pytest" else command,
            "parser": parser,
            "timeout_sec": 1800.0,
            "fail_to_pass": sorted(mend),
            "pass_to_pass": sorted(keep - mend),
        },
    }


def _test_modules(row: SweRow) -> list[str]:
    """Return the files in the names of tests that have pytest's form."""
    tests = (*row.fail_to_pass, *row.pass_to_pass)
    return sorted({shlex.quote(test.partition("::")[0]) for test in tests if "::" in test})


def _code(row: SweRow, repositories: Path | None, work: Path) -> _Code:
    """Read the code from the image, which can also run tests, else a clone. Raises Refused."""
    if row.image and (tar := _in_image(row, "git", *ARCHIVE, row.base_commit)):
        found = _in_image(row, "/bin/sh", "-c", CONDA).decode("utf-8", "replace").split("\n")
        return _Code(tar, row.image, _conda(*found[:2]) if len(found) > 1 else {})
    clone = _clone(row.repo, repositories) if repositories else None
    if clone is None:
        image = "it names no image"
        if row.image:
            image = f"image {row.image!r} is not in an engine of this machine"
        where = f"in {repositories}" if repositories else "named by --repositories"
        msg = f"its code is not at hand: no clone of {row.repo} is {where}, and {image}"
        raise Refused(msg)
    try:
        return _Code(tar_of_commit(clone, row.base_commit, work))
    except Refused as error:
        msg = f"{clone} has no commit {row.base_commit[:12]}; fetch it there"
        raise Refused(msg) from error


def _clone(repo: str, repositories: Path) -> Path | None:
    """Find a clone by its possible names; None if there is none."""
    owner, _, name = repo.rpartition("/")
    for each in (repo, f"{owner}__{name}", name):
        for path in (repositories / each, repositories / f"{each}.git"):
            if (path / ".git").exists() or (path / "HEAD").is_file():
                return path
    return None


def _in_image(row: SweRow, program: str, *words: str) -> bytes:
    """Return the output of a program in the image; empty if the image or the engine is missing."""
    run = ["docker", "run", "--rm", "--pull", "never", "--network", "none", "--cap-drop", "ALL"]
    run += ["--read-only", "--entrypoint", program, row.image, *words]
    try:
        done = subprocess.run(run, capture_output=True, check=False, timeout=ENGINE_S)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return b""
    return b"" if done.returncode else done.stdout


def _conda(place: str, path: str) -> dict[str, str]:
    """Return the variables of an activated conda environment, which the images' profile sets."""
    return {"PATH": f"{place}/bin:{path}", "CONDA_PREFIX": place, "CONDA_DEFAULT_ENV": "testbed"}


def _write_code(row: SweRow, code: _Code, directory: Path, scratch: Path) -> list[str]:
    """Write the testbed and the tests; return the files that the test patch touches.

    Raises Refused if a patch does not apply.
    """
    tree = scratch / "tree"
    try:
        unpack_tar(code.tar, tree)
    except (WorkFailed, OSError) as error:
        msg = f"the files of {row.base_commit[:12]} cannot be unpacked: {error}"
        raise Refused(msg) from error
    if not code.image:
        shutil.copytree(tree, directory / TESTBED, symlinks=True)
    git(tree, "init", "-q")
    before = tree_of(tree)
    _apply(tree, row.patch, "patch", only_checked=True)
    _apply(tree, row.test_patch, "test_patch")
    changed = git(tree, "diff", "--name-only", "--no-renames", "-z", before, tree_of(tree))
    touched = [path for path in changed.decode("utf-8", "replace").split("\0") if path]
    for path in touched:
        if (tree / path).is_file():
            target = directory / TEST_FILES / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / path, target, follow_symlinks=False)
    return touched


def _apply(tree: Path, patch: str, what: str, *, only_checked: bool = False) -> None:
    words = ["apply", *(["--check"] if only_checked else []), "-"]
    try:
        git(tree, *words, stdin=patch.encode("utf-8", "replace"))
    except Refused as error:
        msg = f"its {what} does not apply to its base commit"
        raise Refused(msg) from error


def _write_words(
    row: SweRow, says: Mapping[str, Any], directory: Path, *, dockerfile: bool
) -> None:
    directory.mkdir(exist_ok=True)
    _write_task_file(says, directory)
    (directory / INSTRUCTION).write_text(row.problem_statement)
    (directory / GOLD).parent.mkdir()
    (directory / GOLD).write_text(row.patch)
    if dockerfile:
        (directory / DOCKERFILE).write_text(_dockerfile(row.install_config))


def _write_task_file(says: Mapping[str, Any], directory: Path) -> None:
    import tomli_w

    (directory / TASK_FILE).write_text(tomli_w.dumps(says))


def _dockerfile(how: InstallConfig) -> str:
    """Return a Dockerfile for the row's tests, for engines that can fetch its base image."""
    steps = as_lines(how.pre_install)
    if how.pip_packages:
        steps.append("python -m pip install " + " ".join(f"'{each}'" for each in how.pip_packages))
    steps += as_lines(how.install)
    return "\n".join(
        [
            f"FROM python:{how.python or '3.11'}",
            "COPY testbed /testbed",
            "WORKDIR /testbed",
            *(f"RUN {step}" for step in steps),
            "",
        ]
    )
