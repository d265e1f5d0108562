"""Repositories of an image show later commits neither to an agent nor to code under test."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcall.sandbox.boxes.box import Spec, driver
from rollcall.sandbox.environment import Observation, make_environment
from rollcall.sandbox.grading.grading import grade
from rollcall.sandbox.grading.reference import reference_of
from rollcall.sandbox.tasks.git_trees import git
from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.sandbox.tasks.task_names import environment_config
from rollcall.sandbox.tasks.testbed import commit_all
from rollcall.schemas.errors import WorkFailed
from tests.support.directory_image import IMAGE, ImageHost, directory_image, opened
from tests.support.engines import has, left_out
from tests.support.task_directories import RIGHT, TASK, WRONG, write_task

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CANARY = "yellowcanary"
FIX = RIGHT + f"# {CANARY}\n"
# Looks through all that a repository may hold: files as they are, what git has compressed, packs.
SEARCH = f"""
import os, subprocess, sys, zlib
word, found = {CANARY.encode()!r}, []
for folder, folders, files in os.walk(sys.argv[1]):
    if os.path.isdir(folder + "/objects"):
        command = ["git", "--git-dir", folder, "cat-file", "--batch-all-objects", "--batch"]
        if word in subprocess.run(command, capture_output=True).stdout:
            found.append(folder)
    for name in files:
        path = os.path.join(folder, name)
        content = open(path, "rb").read() if os.path.isfile(path) else b""
        try:
            content += zlib.decompress(content)
        except zlib.error:
            pass
        if word in content + name.encode():
            found.append(path)
print(sorted(os.path.relpath(each, sys.argv[1]) for each in found))
"""


@pytest.fixture
def tree() -> Iterator[Path]:
    if not has("bwrap"):
        left_out("bubblewrap", "images whose repositories tell what came later")
    with directory_image() as tree:
        yield tree


@pytest.fixture
def task(tree: Path, tmp_path: Path) -> HarborTask:
    """A task whose image holds the code and a full git history."""
    remembering(tree / "testbed", tmp_path)
    named = f'[environment]\ndocker_image = "{IMAGE}"\nworkdir = "/testbed"\n'
    files: dict[str, str | None] = {
        "task.toml": TASK.replace("[environment]\n", named),
        "environment/testbed/sums.py": None,
        "environment/testbed/tests/__init__.py": None,
    }
    return read_task(write_task(tmp_path / "sums", files))


def remembering(work: Path, scratch: Path) -> None:
    """A repository at its base commit, with the later commit stored in many places."""
    bare = work / "tests" / "data.git"
    for place in (bare / "objects", bare / "refs"):
        place.mkdir(parents=True)
        (place / "kept").write_text("of the project\n")
    (bare / "HEAD").write_text("ref: refs/heads/main\n")
    (work / "sums.py").write_text(WRONG)
    (work / "tests" / "__init__.py").write_text("")
    committed(work, "base")
    (scratch / "dependency").mkdir()
    (scratch / "dependency" / "sums.py").write_text(WRONG)
    committed(scratch / "dependency", "as it was")
    (scratch / "dependency" / "sums.py").write_text(FIX)
    committed(scratch / "dependency", CANARY)
    local = ("-c", "protocol.file.allow=always")
    git(work, *local, "submodule", "add", "-q", str(scratch / "dependency"), "lib")
    git(work / "lib", "checkout", "-q", "HEAD~1")
    committed(work, "with a submodule")
    git(work, "clone", "-q", str(scratch / "dependency"), str(work / "vendor" / "nested"))
    git(work / "vendor" / "nested", "checkout", "-q", "HEAD~1")
    git(work, "branch", "-q", "start")
    (work / "sums.py").write_text(FIX)
    committed(work, f"the fix, {CANARY}")
    git(work, "tag", "-a", "-m", CANARY, "v2.0")
    git(work, "branch", f"fix-{CANARY}")
    git(work, "bundle", "create", "-q", ".git/all.bundle", "--all")
    git(work, "clone", "-q", "--bare", ".", "mirror.git")
    git(work, "fetch", "-q", "./mirror.git", f"fix-{CANARY}")
    git(work, "worktree", "add", "-q", "beside", "v2.0")
    (work / "beside" / ".git").write_text("gitdir: ../.git/worktrees/beside\n")
    git(work, "reset", "-q", "--hard", "start")
    (work / "sums.py").write_text(FIX)
    git(work, "stash", "-q")
    git(work, "pack-refs", "--all")
    git(work, "repack", "-q", "-a")
    (work / ".git" / "objects" / "info" / "alternates").write_text("../../mirror.git/objects\n")
    (work / ".git" / "hooks" / "post-commit").write_text(f"#!/bin/sh\necho {CANARY}\n")
    git(work, "config", "alias.fix", f"show {CANARY}")


def committed(work: Path, said: str) -> None:
    git(work, "init", "-q")
    git(work, "add", "-A")
    git(work, "commit", "-q", "--allow-empty", "-m", said)


def played(task: HarborTask, *actions: str) -> tuple[list[Observation], ImageHost]:
    async def whole() -> list[Observation]:
        config = json.dumps(environment_config(task, box="bubblewrap"))
        made: Any = make_environment("shell", config, host)  # type: ignore[arg-type]
        try:
            return [await made.open(0), *[await made.step(action) for action in actions]]
        finally:
            await made.close()

    host = ImageHost(lambda *moment: None)
    return asyncio.run(whole()), host


def test_agent_sees_one_commit_and_its_patch_holds_only_its_work(
    task: HarborTask, tree: Path
) -> None:
    # Given an image whose repositories hold the fix in many places
    search = [sys.executable, "-c", SEARCH, str(tree / "testbed")]
    held = subprocess.run(search, capture_output=True, text=True, check=True).stdout
    places = (
        ".git'", ".git/all.bundle", ".git/config", "hooks/post-commit", "packed-refs", "FETCH_HEAD",
        "logs/HEAD", "mirror.git", "beside/sums.py", ".git/modules/lib'", "vendor/nested/.git'",
    )  # fmt: skip
    assert [place for place in places if place not in held] == []

    # When an agent looks for it, and works
    quoted = SEARCH.replace("'", "'\\''")
    seen, host = played(
        task,
        f"python3 -c '{quoted}' /testbed",
        "git log --all --format=%s; git for-each-ref --format='%(refname)'; git stash list; "
        "git reflog --format=%gs; git fsck --lost-found; git status --short",
        "ls -a . lib vendor/nested tests/data.git",
        "sed -i 's/a - b/a + b/' sums.py; echo new > lib/new; echo new > vendor/nested/new; "
        "git add -A; git commit -qm mine",
        SUBMIT,
    )

    # Then it finds nothing
    texts = [each.text.partition("\n")[2] for each in seen]
    assert texts[1] == "[]\n"
    assert texts[2] == "base\nrefs/heads/master\nrefs/tags/base\ncommit (initial): base\n"
    assert texts[3].split("\n\n") == [
        ".:\n.\n..\n.git\n.gitmodules\nlib\nsums.py\ntests\nvendor",
        "lib:\n.\n..\nsums.py",
        "tests/data.git:\n.\n..\nHEAD\nobjects\nrefs",
        "vendor/nested:\n.\n..\nsums.py\n",
    ]
    left: Any = seen[-1].info
    assert "no_patch" not in left
    patch = host.kept[left["artefacts"][0]["uri"]].decode()
    assert [line for line in patch.splitlines() if line.startswith("+++ ")] == [
        "+++ b/lib/new", "+++ b/sums.py", "+++ b/vendor/nested/new",
    ]  # fmt: skip


PEEK = """\
diff --git a/sums.py b/sums.py
--- a/sums.py
+++ b/sums.py
@@ -1,2 +1,4 @@
-def add(a, b):
-    return a - b
+import subprocess
+
+FIX = ["git", "-C", "/testbed", "show", "v2.0:sums.py"]
+exec(subprocess.run(FIX, capture_output=True, text=True).stdout)
"""
MENDED = """\
diff --git a/sums.py b/sums.py
--- a/sums.py
+++ b/sums.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


@pytest.mark.parametrize(("patch", "resolved"), [(PEEK, False), (MENDED, True)])
def test_code_under_test_finds_no_fix_in_its_repository(
    task: HarborTask, patch: str, resolved: bool
) -> None:
    verdict = asyncio.run(grade(opened, reference_of(task), patch.encode()))

    assert verdict.resolved == resolved, verdict


ELSEWHERE = {
    "a worktree": "rm -rf .git; echo 'gitdir: {other}/.git' > .git",
    "a link": "rm -rf .git; ln -s {other}/.git .git",
    "linked objects": "rm -rf .git/objects; ln -s {other}/.git/objects .git/objects",
    "alternates": "mkdir -p .git/objects/info; echo {other}/.git/objects > "
    ".git/objects/info/alternates",
    "alternates by a relative path": "mkdir -p .git/objects/info; "
    "echo ../../../other/.git/objects > .git/objects/info/alternates",
    "a remote": "git remote add origin {other}",
    "a remote by an address": "git remote add origin file://{other}",
    "a nested one": "mkdir -p a/b; echo 'gitdir: {other}/.git' > a/b/.git",
}


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("there", [True, False])
def test_repository_that_depends_on_a_readable_external_one_is_refused(
    name: str, there: bool
) -> None:
    async def whole() -> str:
        box = await driver("local").open(Spec())
        try:
            home = box.directory.decode()
            made = "mkdir work other; git init -q work; git init -q other; cd work; "
            made += ELSEWHERE[name].format(other=f"{home}/other")
            made += "" if there else f"; rm -rf {home}/other"
            assert (await box.run(["sh", "-c", made])).exit_code == 0
            return await commit_all(box, f"{home}/work", "task 'sums'")
        finally:
            await box.close()

    if there:
        with pytest.raises(WorkFailed, match=r"task 'sums' stands on .*/other") as failed:
            asyncio.run(whole())
        assert (failed.value.code, failed.value.retriable) == ("bad_config", False)
    else:
        assert len(asyncio.run(whole())) == len("4b825dc642cb6eb9a060e54bf8d69288fbee4904")
