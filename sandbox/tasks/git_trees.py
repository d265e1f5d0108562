"""Patches between two directories, and tree ids, made by git.

The attributes and ignore rules in a tree have no effect, and neither have the user's own settings
of git.
"""

import shutil
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path

from rollcall.schemas.errors import Refused

CONFIG = (
    "user.name=rollcall",
    "user.email=rollcall@localhost",
    "core.autocrlf=false",
    "core.hooksPath=/dev/null",
    "commit.gpgSign=false",
    "gc.auto=0",
    "safe.directory=*",
)
SETTINGS = tuple(word for setting in CONFIG for word in ("-c", setting))
BORN = "2000-01-01T00:00:00Z"
VARIABLES = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_DATE": BORN,
    "GIT_COMMITTER_DATE": BORN,
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
}
ATTRIBUTES = "* -text -eol -filter -ident -export-subst -export-ignore -working-tree-encoding\n"
"""The content of `info/attributes`, which takes precedence over attributes in a tree."""


def patch_between(old: Path, new: Path, work: Path, *, without: Collection[str] = ()) -> bytes:
    """Make the patch from old to new, without some paths, and verify it by applying it.

    `work` is a new directory that it is made in. Raises Refused.
    """
    shutil.copytree(old, work, symlinks=True, ignore=_these(old, without))
    git(work, "init", "-q")
    (work / ".git" / "info" / "attributes").write_text(ATTRIBUTES)
    before = tree_of(work)
    _clear(work)
    shutil.copytree(new, work, symlinks=True, dirs_exist_ok=True, ignore=_these(new, without))
    after = tree_of(work)
    patch = git(work, "diff", "--binary", "--full-index", "--no-renames", before, after)
    git(work, "read-tree", before)
    _clear(work)
    git(work, "checkout-index", "-a", "-f")
    if patch:
        git(work, "apply", "-", stdin=patch)
    if tree_of(work) != after:
        msg = f"the patch from {old.name} to {new.name} does not lead there when it is applied"
        raise Refused(msg)
    return patch


def tar_of_commit(clone: Path, commit: str, work: Path) -> bytes:
    """Return all files of a commit as a tar stream, also those with `export-ignore`.

    `work` is a new directory; the clone is only read. Raises Refused.
    """
    objects = git(clone, "rev-parse", "--path-format=absolute", "--git-path", "objects").strip()
    work.mkdir()
    git(work, "init", "-q", "--bare")
    (work / "objects" / "info" / "alternates").write_bytes(objects + b"\n")
    (work / "info").mkdir(exist_ok=True)
    (work / "info" / "attributes").write_text(ATTRIBUTES)
    return git(work, "archive", "--format=tar", commit)


def git(directory: Path, *words: str, stdin: bytes = b"") -> bytes:
    """Run a command of git and return its output. Raises Refused if it fails."""
    command = ["git", *SETTINGS, "-C", str(directory), *words]
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            check=False,
            env={**VARIABLES, "HOME": str(directory)},
        )
    except FileNotFoundError as error:
        msg = "git is not installed here, and patches are made by it; install it"
        raise Refused(msg) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        msg = f"`git {words[0]}` failed in {directory}: {(said or ['it says nothing'])[-1][:300]}"
        raise Refused(msg)
    return done.stdout


def tree_of(work: Path) -> str:
    """Return the tree id of the current files.

    The index is emptied first: releases are packed with arbitrary times, so by time and size a
    changed file may look the same as the one in the index.
    """
    git(work, "read-tree", "--empty")
    git(work, "add", "-A", "-f", ".")
    return git(work, "write-tree").decode().strip()


def _clear(work: Path) -> None:
    for path in work.iterdir():
        if path.name != ".git":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _these(root: Path, paths: Collection[str]) -> Callable[[str, list[str]], set[str]]:
    """Return a filter for `shutil.copytree` that skips these paths below the root."""

    def ignored(directory: str, found: list[str]) -> set[str]:
        here = Path(directory).relative_to(root)
        return {name for name in found if str(here / name) in paths}

    return ignored
