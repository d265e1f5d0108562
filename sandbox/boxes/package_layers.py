"""Images of packages: a base, and layers of wheels from the package index.

A layer holds the wheels that one list of requirements resolved to: it is named by the digest of its
lock, and stored once for all images. An image is a tree of hard links to the files of its base and
layers, so both drivers use it as any other image, and its packages need no network.
"""

import hashlib
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rollcall.sandbox.boxes.image_python import ImagePython, image_python
from rollcall.sandbox.boxes.image_store import (
    LAYERS,
    RECORD,
    BuiltImage,
    built,
    clear_disk,
    directory,
    is_built,
    layer_place,
    making,
    seal,
)
from rollcall.sandbox.boxes.wheels import Wheel, fetched, unpacked
from rollcall.schemas.errors import Refused

NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
TAKEN = ("base", "host", LAYERS)
LOCK = "lock.txt"


def build_packages(name: str, base: str, requirements: Sequence[str]) -> BuiltImage:
    """Build an image of this name from a base and a layer of packages that meet requirements.

    An existing image with the same content is left as it is. Raises Refused, Unavailable.
    """
    _check_name(name, base)
    below = built(base)
    clear_disk(directory())
    with making() as folder:
        python = image_python(below.tree, base)
        wheels = fetched(requirements, python, folder)
        layer = _layer_of(wheels, python)
        digests = *below.layers, layer.digest
        whole = hashlib.sha256(" ".join((below.digest, *digests)).encode()).hexdigest()
        image = BuiltImage(name, whole, base=base, layers=digests, packages=layer.packages)
        if not is_built(name):
            if not (layer_place(layer.digest) / RECORD).is_file():
                _make_layer(folder / "layer", layer, wheels, python)
            _make_image(folder / "image", image)
    return _same(built(name), image)


def lock_place(image: BuiltImage) -> Path:
    """Return the lock file of its own layer, from which the image can be rebuilt."""
    return layer_place(image.layers[-1]) / LOCK


def _check_name(name: str, base: str) -> None:
    if not NAME.fullmatch(name) or name in TAKEN:
        msg = f"{name[:100]!r} can be no name of an image of packages: small letters, digits and "
        msg += f"'-', none of {', '.join(TAKEN)}"
        raise Refused(msg)
    if not is_built(base):
        msg = f"image {name!r} stands on {base[:100]!r}, which is not in {directory()}; "
        msg += "`rollcall images build base` makes the first"
        raise Refused(msg)


def _same(there: BuiltImage, wanted: BuiltImage) -> BuiltImage:
    if there.digest != wanted.digest:
        msg = f"image {there.name!r} is there with other packages ({' '.join(there.packages)}); "
        msg += "give this one another name, or collect that one first"
        raise Refused(msg)
    return there


def _layer_of(wheels: Sequence[Wheel], python: ImagePython) -> BuiltImage:
    """Return the layer of these wheels, named by the digest of their lock."""
    whole = hashlib.sha256(b"rollcall layer 1\n")
    whole.update(f"python {python.version} {platform.machine()}\n{_lock(wheels)}".encode())
    digest = whole.hexdigest()
    return BuiltImage(digest[:12], digest, packages=tuple(wheel.pinned for wheel in wheels))


def _lock(wheels: Sequence[Wheel]) -> str:
    return "".join(f"{wheel.locked}\n" for wheel in wheels)


def _make_layer(
    folder: Path, layer: BuiltImage, wheels: Sequence[Wheel], python: ImagePython
) -> None:
    unpacked(wheels, python, folder / "tree")
    (folder / LOCK).write_text(_lock(wheels))
    seal(folder, layer, layer_place(layer.digest))


def _make_image(folder: Path, image: BuiltImage) -> None:
    """Make an image of hard links to the files of its base and its own layer."""
    folder.mkdir()
    for source in (directory() / image.base, layer_place(image.layers[-1])):
        _link(source / "tree", folder / "tree")
    seal(folder, image, directory() / image.name)


def _link(source: Path, tree: Path) -> None:
    """Hard-link a tree's files into another tree, replacing existing files. Raises Refused."""
    argv = ["cp", "-al", "--remove-destination", "-T", str(source), str(tree)]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [str(done.returncode)])[-1]
        msg = f"the files of {source} cannot be linked, which their owner can: {last[:500]}"
        raise Refused(msg)
