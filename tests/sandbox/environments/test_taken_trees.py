"""For any tree and edits, the taken patch gives the same tree, or names the files left out."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rollcall.sandbox.artefacts import ArtefactSpool
from rollcall.sandbox.boxes.box import Box, Spec, driver
from rollcall.sandbox.boxes.tar_streams import of_directory
from rollcall.sandbox.environments import work_patch
from rollcall.sandbox.environments.work_patch import WorkPatch, take_patch
from rollcall.sandbox.grading.patches import MOST_BYTES
from rollcall.sandbox.tasks.git_trees import git
from rollcall.schemas.errors import Refused
from tests.support.tiers import examples

NAMES = (
    "a", "b", "c.py", "sp ace", "ü", "-x", ".hid", "x.log", "build", 'q"t', "n\nl", "*", "[z]",
    ":(top)m", "back\\slash", "end ", "t\tb",
)  # fmt: skip
CONTENTS = (b"", b"one\n", b"no end", b"one\r\ntwo\n", b"\0\1\xff" * 40, b"caf\xe9\n" * 30)
TARGETS = ("a", "b", "../a", "../../c.py", "nowhere", "./build", "sp ace/b")
IGNORES = b"build/\n*.log\n/b\n"
# git writes no line for the content of an empty file, and cannot read its own header where the
# name of a folder ends with a space.
paths = (
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)
    .map("/".join)
    .filter(lambda path: " /" not in path)
)
Tree = dict[str, tuple[str, bytes, bool]]
"""By path: `file` or `link`, its content or target, whether it can be run."""


def write(tree: Path, path: str, content: bytes) -> None:
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_bytes(content)


def link(tree: Path, path: str, target: str) -> None:
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).symlink_to(target)


def remove(tree: Path, path: str) -> None:
    place = tree / path
    shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()


def repository(tree: Path, path: str, commits: bool) -> None:
    (tree / path).mkdir(parents=True, exist_ok=True)
    git(tree / path, "init", "-q")
    if commits:
        git(tree / path, "add", "-A", "-f")
        git(tree / path, "commit", "-q", "--allow-empty", "-m", "theirs")


def add_by_force(tree: Path, path: str) -> None:
    git(tree, "--literal-pathspecs", "add", "-f", "--", path)


Edit = tuple[Callable[..., object], tuple[object, ...]]
writes = st.tuples(st.just(write), st.tuples(paths, st.sampled_from(CONTENTS)))
edits = st.one_of(
    writes,
    st.tuples(st.just(link), st.tuples(paths, st.sampled_from(TARGETS))),
    st.tuples(st.just(remove), st.tuples(paths)),
    st.tuples(st.just(lambda tree, old, new: (tree / old).rename(tree / new)),
              st.tuples(paths, paths)),
    st.tuples(st.just(lambda tree, path, mode: (tree / path).chmod(mode)),
              st.tuples(paths, st.sampled_from([0o755, 0o644, 0o000]))),
    st.tuples(st.just(lambda tree, path: (tree / path).mkdir(parents=True)), st.tuples(paths)),
    st.tuples(st.just(lambda tree, path: os.mkfifo(tree / path)), st.tuples(paths)),
    st.tuples(st.just(repository), st.tuples(paths, st.booleans())),
    st.tuples(st.just(add_by_force), st.tuples(paths)),
    st.tuples(st.just(write), st.tuples(st.just(".gitignore"), st.just(IGNORES))),
)  # fmt: skip


def edit(tree: Path, edits: list[Edit]) -> None:
    """Apply the edits that are possible: a path may not exist, or lead through a file or a link."""

    for change, words in edits:
        if all(not (tree / str(word)).parent.is_symlink() for word in words[:2]):
            with suppress(OSError, Refused):
                change(tree, *words)


def listed(tree: Path) -> Tree:
    found: Tree = {}
    for folder, folders, files in os.walk(tree):
        folders[:] = [each for each in folders if each != ".git"]
        links = [each for each in folders if (Path(folder) / each).is_symlink()]
        for name in {*files, *links} - {".git"}:
            path = Path(folder) / name
            if path.is_symlink():
                entry = "link", os.readlink(path).encode(), False
            elif path.is_file():
                path.chmod(path.stat().st_mode | 0o600)
                entry = "file", path.read_bytes(), bool(path.stat().st_mode & 0o100)
            else:
                continue
            found[str(path.relative_to(tree))] = entry
    return found


def taken(base: Path, work: Path) -> tuple[WorkPatch, bytes]:
    async def whole(box: Box) -> tuple[WorkPatch, bytes]:
        with closing(ArtefactSpool(MOST_BYTES)) as spool:
            told = await take_patch(box, spool, workdir=str(work), base=of_directory(base), tree="")
            return told, spool.read()

    async def in_a_box() -> tuple[WorkPatch, bytes]:
        box = await driver("local").open(Spec())
        try:
            return await whole(box)
        finally:
            await box.close()

    return asyncio.run(in_a_box())


def apply(tree: Path, patch: bytes) -> None:
    env = {"GIT_CEILING_DIRECTORIES": str(tree.parent), "PATH": os.environ["PATH"]}
    words = ["git", "apply", "--whitespace=nowarn", "-"]
    done = subprocess.run(words, cwd=tree, input=patch, capture_output=True, env=env, check=False)
    assert not patch or done.returncode == 0, done.stderr.decode(errors="replace")


@pytest.fixture(autouse=True)
def all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_patch, "MOST_NAMED", 1000)


@settings(
    phases=[Phase.generate],
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(writes, max_size=6), st.lists(edits, max_size=8))
def test_taken_patch_reproduces_the_tree_or_names_left_out_files(
    before: list[Edit], changes: list[Edit]
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        base, work, judged = (Path(scratch) / name for name in ("base", "work", "judged"))
        base.mkdir()
        edit(base, before)
        for copy in (work, judged):
            shutil.copytree(base, copy, symlinks=True)
        repository(work, ".", commits=True)
        edit(work, changes)

        told, patch = taken(base, work)

        assert told.untaken == ""
        apply(judged, patch)
        theirs, ours, known = listed(work), listed(judged), listed(base)
        different = {path for path in theirs.keys() | ours if theirs.get(path) != ours.get(path)}
        assert different <= set(told.left_out)
        assert not different & known.keys()  # a file that was there is always taken
