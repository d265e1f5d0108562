"""Rows of SWE-bench and similar data sets become tasks from a clone or an image."""

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from rollcall.sandbox.tasks.git_trees import git
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.proof import Proof, unproven
from rollcall.sandbox.tasks.swe import ImportedRow, import_rows

WRONG = "def add(a, b):\n    return a - b\n"
PATCH = """\
diff --git a/sums.py b/sums.py
--- a/sums.py
+++ b/sums.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
TEST_PATCH = """\
diff --git a/tests/test_sums.py b/tests/test_sums.py
--- a/tests/test_sums.py
+++ b/tests/test_sums.py
@@ -1,1 +1,4 @@
 from sums import add
+
+def test_adds():
+    assert add(2, 3) == 5
diff --git a/tests/old.py b/tests/moved.py
similarity index 100%
rename from tests/old.py
rename to tests/moved.py
"""
CONDA = "/opt/miniconda3/envs/testbed"


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one clone, whose author keeps its tests out of archives."""
    folder = tmp_path_factory.mktemp("clones")
    clone = folder / "acme__sums"
    (clone / "tests").mkdir(parents=True)
    (clone / "sums.py").write_text(WRONG)
    (clone / "tests" / "test_sums.py").write_text("from sums import add\n")
    (clone / "tests" / "old.py").write_text("moved = 1\n")
    (clone / ".gitattributes").write_text("tests export-ignore\n")
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "base")
    return folder


@pytest.fixture
def row(clones: Path) -> dict[str, Any]:
    base = git(clones / "acme__sums", "rev-parse", "HEAD").decode().strip()
    return {
        "instance_id": "acme__sums-1",
        "repo": "acme/sums",
        "base_commit": base,
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "problem_statement": "Sums are differences.",
        "FAIL_TO_PASS": '["tests/test_sums.py::test_adds"]',
        "PASS_TO_PASS": [],
        "version": "1.0",
    }


def one(row: object, into: Path, clones: Path | None) -> ImportedRow:
    (imported,) = import_rows([json.dumps(row).encode(), b""], into, clones, no_box)
    return imported


def no_box(task: HarborTask) -> Proof:
    return unproven(task, "no box of its image can be had here")


def test_dataset_row_becomes_a_task_from_a_clone(
    row: dict[str, Any], clones: Path, tmp_path: Path
) -> None:
    task = one(row, tmp_path, clones).task

    assert task is not None
    verifier = task.file.verifier
    assert verifier.fail_to_pass == ("tests/test_sums.py::test_adds",)
    assert verifier.command.endswith(" tests/test_sums.py")
    assert verifier.replace == ("tests/moved.py", "tests/old.py", "tests/test_sums.py")
    assert (task.test_files / "tests/test_sums.py").read_text().count("\n") == 4
    assert sorted(os.listdir(task.test_files / "tests")) == ["moved.py", "test_sums.py"]
    assert task.testbed is not None
    assert (task.testbed / "tests/test_sums.py").read_text() == "from sums import add\n"
    assert task.gold == PATCH.encode()
    assert task.instruction == "Sums are differences."
    assert stat.S_IMODE(task.directory.stat().st_mode) == 0o700  # in a folder that existed before


def test_install_config_of_swe_rebench_becomes_a_dockerfile(
    row: dict[str, Any], clones: Path, tmp_path: Path
) -> None:
    how = {
        "python": "3.9", "test_cmd": "pytest -rA --color=no", "log_parser": "parse_log_pytest_v2",
        "pre_install": ["apt-get install -y make"], "pip_packages": ["numpy==1.26"],
        "install": "pip install -e .", "env_vars": {"of": "no interest"},
    }  # fmt: skip
    task = one({**row, "install_config": how, "image_name": "away/x:1"}, tmp_path, clones).task

    assert task is not None
    assert task.file.verifier.command == "pytest -rA --color=no tests/test_sums.py"
    assert (task.directory / "environment" / "Dockerfile").read_text().splitlines() == [
        "FROM python:3.9",
        "COPY testbed /testbed",
        "WORKDIR /testbed",
        "RUN apt-get install -y make",
        "RUN python -m pip install 'numpy==1.26'",
        "RUN pip install -e .",
    ]


def test_code_in_a_local_image_needs_no_clone(
    row: dict[str, Any], clones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an engine that has one image, and runs commands in it
    engine = tmp_path / "programs" / "docker"
    engine.parent.mkdir()
    clone = tmp_path / "in the image"
    shutil.copytree(clones / "acme__sums", clone)
    engine.write_text(
        f'#!/bin/sh\ncase "$*" in *--network\\ none*acme/image*) ;; *) exit 125;; esac\n'
        f'case "$*" in *"--entrypoint /bin/sh"*) printf "{CONDA}\\n/usr/bin:/bin\\n"; exit;; esac\n'
        f'for commit; do :; done; exec git -C "{clone}" archive --format=tar "$commit"\n'
    )
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
    # And an override that archives the files which the author excludes
    (clone / ".git" / "info" / "attributes").write_text("tests -export-ignore\n")

    task = one({**row, "docker_image": "acme/image:1"}, tmp_path / "into", None).task
    other = one({**row, "docker_image": "acme/other:1"}, tmp_path / "into2", None)

    assert task is not None
    assert task.testbed is None
    assert task.file.environment.docker_image == "acme/image:1"
    assert task.file.environment.env == {
        "PATH": f"{CONDA}/bin:/usr/bin:/bin", "CONDA_PREFIX": CONDA, "CONDA_DEFAULT_ENV": "testbed",
    }  # fmt: skip
    assert (task.test_files / "tests/test_sums.py").is_file()
    assert "image 'acme/other:1' is not in an engine of this machine" in other.refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS is empty: there is nothing to mend"),
        ({"FAIL_TO_PASS": "[1"}, "FAIL_TO_PASS: is text, and no JSON list"),
        ({"FAIL_TO_PASS": {"a": 1}}, "FAIL_TO_PASS: "),
        ({"instance_id": "../up"}, "instance_id: "),
        ({"instance_id": "a/b"}, "instance_id: "),
        ({"base_commit": "--output=x"}, "base_commit: "),
        ({"repo": "acme/../../etc"}, "repo: "),
        ({"repo": "acme/other"}, "no clone of acme/other is in "),
        ({"base_commit": "0" * 40}, "has no commit 000000000000; fetch it there"),
        ({"patch": "garbage"}, "its patch does not apply to its base commit"),
        ({"test_patch": TEST_PATCH.replace("import add", "import x")}, "its test_patch does not"),
        ({"test_patch": ""}, "its test_patch does not apply"),
        ({"test_patch": TEST_PATCH.replace("tests/moved", "../moved")}, "its test_patch does not"),
        ({"FAIL_TO_PASS": ["test_adds (tests.Sums)"]}, "how its tests are run is not said in"),
        ({"install_config": {"test_cmd": "x", "log_parser": "odd"}}, "how its tests are run"),
        ({"docker_image": "-v/:/x"}, "docker_image: "),
        ({"problem_statement": ""}, "instruction.md: is empty"),
    ],
)
def test_invalid_row_is_refused_in_one_line_and_leaves_no_files(
    row: dict[str, Any], clones: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    imported = one({**row, **changes}, tmp_path / "into", clones)

    assert said in imported.refused
    assert "\n" not in imported.refused
    assert os.listdir(tmp_path / "into") == []


def test_rows_after_an_invalid_one_are_imported_and_duplicates_are_refused(
    row: dict[str, Any], clones: Path, tmp_path: Path
) -> None:
    lines = [b"{", b'{"repo": "a/b"}', json.dumps(row).encode(), json.dumps(row).encode()]

    first, second, third, fourth = import_rows(lines, tmp_path, clones, no_box)

    assert (first.instance, second.instance) == ("line 1", "line 2")
    assert second.refused.startswith("instance_id: Field required")
    assert third.task is not None
    assert "is there already" in fourth.refused
