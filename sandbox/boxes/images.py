"""The file systems of boxes: the programs of this host, or a directory with a system's files."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall.sandbox.boxes.image_store import built, is_built
from rollcall.schemas.errors import FailureCode, WorkFailed

HOST_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
HOST_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")
"""The first holds links to awk, which and vi, the others locate libraries."""
SOURCES = ("/usr/src", "/usr/local/src")
"""Directories that often hold checkouts and that no program needs; shown empty."""
EMPTY = frozenset(
    "boot dev home lost+found media mnt proc root run srv sys tmp w".split()  # noqa: SIM905
)
"""Top-level directories of an image that no box shows."""


@dataclass(frozen=True, slots=True)
class ImageTree:
    """A directory with a system's files, or the host itself."""

    root: Path = Path("/")

    def arguments(self, staged: Mapping[str, str] | None = None) -> list[str]:
        """Return bubblewrap's arguments that show it read-only; `staged` replaces paths."""
        argv = []
        for name in self._names():
            path = self.root / name
            if path.is_symlink():
                argv += ["--symlink", os.readlink(path), f"/{name}"]
            elif path.exists():
                argv += ["--ro-bind", (staged or {}).get(str(path), str(path)), f"/{name}"]
        for place in SOURCES:
            if (self.root / place.lstrip("/")).is_dir():
                argv += ["--perms", "0555", "--size", "4096", "--tmpfs", place]
                argv += ["--remount-ro", place]
        return argv

    def directories(self) -> list[str]:
        """List the directories of this host that `arguments` shows."""
        paths = [self.root / name for name in self._names()]
        return [str(path) for path in paths if path.is_dir() and not path.is_symlink()]

    def _names(self) -> Sequence[str]:
        if self.root == Path("/"):
            return ("usr", *HOST_LINKS, *(f"etc/{name}" for name in HOST_ETC))
        return sorted(set(os.listdir(self.root)) - EMPTY)

    def may_hold(self, path: str) -> bool:
        """Return True if a file can be bound at a path: read-only directories take no new ones."""
        return self.root == Path("/") or (self.root / path.lstrip("/")).is_file()

    def directory(self, place: str) -> Path | None:
        """Return the image's own directory at a path; None if it has none."""
        path = self.root / place.lstrip("/")
        return path if self.root != Path("/") and path.is_dir() and not path.is_symlink() else None


HOST = ImageTree()


def image_tree(name: str) -> ImageTree:
    """Return the tree of an image; empty, or `host`, is this host. Raises WorkFailed(`image`)."""
    return HOST if name in ("", "host") else ImageTree(built(name).tree)


def engine_image(client: Any, name: str) -> str:
    """Return an engine's name of an image; import an image of the store that the engine lacks.

    Raises exceptions of the library `docker`, and WorkFailed(`image`).
    """
    if not is_built(name):
        return str(client.images.get(name).id)
    image = built(name)
    repository, tag = f"rollcall/{image.name}", image.digest[:12]
    called = f"{repository}:{tag}"
    if not client.images.list(called):
        argv = ["tar", "-C", str(image.tree), "-c", "."]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as packing:
            client.api.import_image(packing.stdout, repository=repository, tag=tag, stream_src=True)
        if packing.returncode:
            client.images.remove(called, force=True)
            msg = f"image {name!r} cannot be packed: tar ended with {packing.returncode}"
            raise WorkFailed(FailureCode.IMAGE, msg, retriable=False)
    return called
