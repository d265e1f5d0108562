"""An image that is a directory, with this host's programs, for boxes of bubblewrap."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.sandbox.boxes import image_store
from rollcall.sandbox.boxes.box import Box, Spec
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver
from rollcall.sandbox.boxes.pool import Mode
from tests.support.mortal_boxes import MortalHost

IMAGE = "small"


@contextmanager
def directory_image() -> Iterator[Path]:
    """Its tree, at a place that users of boxes can walk to, unlike pytest's own."""
    place = Path(tempfile.mkdtemp(prefix="images-"))
    place.chmod(0o755)
    tree = place / IMAGE / "tree"
    (tree / "usr").mkdir(parents=True)
    shutil.copytree("/etc/alternatives", tree / "etc" / "alternatives", symlinks=True)
    (tree / "etc" / "passwd").write_text("")
    for name in ("bin", "lib", "lib64"):
        (tree / name).symlink_to(f"usr/{name}")
    fields = {"name": IMAGE, "digest": "d" * 64, "size_bytes": 0, "made_ms": 0}
    (place / IMAGE / "image.json").write_text(json.dumps(fields))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(image_store.DIRECTORY, str(place))
        yield tree
    shutil.rmtree(place)


async def opened(spec: Spec) -> Box:
    """A box that has its programs of this host."""
    return await BubblewrapDriver().open(replace(spec, mounts={**spec.mounts, "/usr": "/usr"}))


class ImageHost(MortalHost):
    """Lends such boxes."""

    async def lend(self, name: str | None, spec: Spec, mode: Mode = "persistent") -> Box:
        del name, mode
        return await opened(spec)
