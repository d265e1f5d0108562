"""The store of images as directories, by name; bubblewrap binds them and docker imports them.

Each is a folder with `tree`, a system's files, and `image.json`, whose modification time is that of
its last use. Beside them lie the layers of packages that images share (`package_layers`), each by
its digest. Root stores them where all users have access, since its boxes run as other users.
"""

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from rollcall.sandbox.boxes.disk_floor import make_room
from rollcall.sandbox.locked_folder import hold, locked, remove_unless_held
from rollcall.schemas.bounded import json_object
from rollcall.schemas.errors import FailureCode, WorkFailed

DIRECTORY = "ROLLCALL_IMAGES"
"""The environment variable that names another directory for them."""
ROOTS = Path("/var/lib/rollcall/images")
LAYERS = "layers"
RECORD = "image.json"
HELD = ".held-"
"""The prefix of folders in which an image is being made; their builder holds a lock on them."""
IN_USE_S = 86_400.0
"""The longest life of a box, in seconds: an image that was used since may be in a box."""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image of this host, or a layer of one."""

    name: str
    digest: str
    size_bytes: int = 0
    """Its size without the files that it shares with its base and its layers."""
    made_ms: int = 0
    base: str = ""
    """The name of its base image."""
    layers: Sequence[str] = ()
    """The digests of all layers above the first base."""
    packages: Sequence[str] = ()
    """The packages of its own layer, or of this layer, by name and version."""
    place: Path = field(default=Path(), compare=False)

    @property
    def tree(self) -> Path:
        return self.place / "tree"

    def used_at(self) -> float:
        """Return the time of its last use, in seconds since the epoch."""
        return (self.place / RECORD).stat().st_mtime

    def idle_s(self) -> float:
        """Return the seconds since its last use."""
        return max(0.0, time.time() - self.used_at())

    def carries(self, other: "BuiltImage") -> bool:
        """Return True if `other` is its base image or one of its layers."""
        return other.place in (directory() / self.base, *map(layer_place, self.layers))


def directory() -> Path:
    """Return the directory of this host's images."""
    if named := os.environ.get(DIRECTORY):
        return Path(named).absolute()
    return ROOTS if os.getuid() == 0 else Path.home() / ".cache" / "rollcall" / "images"


def layer_place(digest: str) -> Path:
    return directory() / LAYERS / digest


def images() -> list[BuiltImage]:
    """Return all complete images, sorted by name."""
    return _whole(sorted(directory().glob(f"[a-z]*/{RECORD}")))


def layers() -> list[BuiltImage]:
    """Return all complete layers, sorted by digest."""
    return _whole(sorted(layer_place("").glob(f"*/{RECORD}")))


def _whole(records: Iterable[Path]) -> list[BuiltImage]:
    return [image for path in records if (image := _image_at(path.parent))]


def users(image: BuiltImage, among: Iterable[BuiltImage]) -> list[str]:
    """Return the names of the images that are based on an image or a layer."""
    return [each.name for each in among if each.carries(image)]


def is_built(name: str) -> bool:
    """Return True if the store has an image of this name (an engine's names have other letters)."""
    return name.replace("-", "").isalnum() and (directory() / name / RECORD).is_file()


def built(name: str) -> BuiltImage:
    """Return an image, and mark it and all that it is based on as used now.

    Raises WorkFailed(`image`).
    """
    if not is_built(name):
        msg = f"there is no image {name!r} in {directory()}; `rollcall images list` names those"
        msg += " that are, `rollcall images build base` makes the first"
        raise WorkFailed(FailureCode.IMAGE, msg, retriable=False)
    image = read_image(directory() / name)
    for place in (image.place, *map(layer_place, image.layers)):
        with suppress(FileNotFoundError):  # a removed layer: the image links its files
            os.utime(place / RECORD)
    if is_built(image.base):
        built(image.base)
    return image


def read_image(place: Path) -> BuiltImage:
    """Read the image or layer in a folder. Raises WorkFailed(`image`)."""
    image = _image_at(place)
    if image is None:
        msg = f"{place / RECORD} is not as it was written; remove {place} and build the image again"
        raise WorkFailed(FailureCode.IMAGE, msg, retriable=False)
    return image


def _image_at(place: Path) -> BuiltImage | None:
    told = json_object((place / RECORD).read_bytes())
    try:
        return None if told is None else BuiltImage(**told, place=place)
    except TypeError:
        return None


@contextmanager
def making() -> Iterator[Path]:
    """Make a folder beside the images, and remove its remains at the end.

    The remains of builders that were killed are removed first.
    """
    directory().mkdir(parents=True, exist_ok=True)
    _remove_half_made()
    folder = directory() / f"{HELD}{secrets.token_hex(4)}"
    with locked(directory()):
        folder.mkdir()
        held = hold(folder)
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _remove_half_made() -> None:
    """Remove the folders of killed builders."""
    with locked(directory()):
        left = sorted(directory().glob(f"{HELD}*"))
    for half_made in left:
        remove_unless_held(half_made)


def seal(making: Path, image: BuiltImage, place: Path) -> None:
    """Write the record of an image, then move it to its place: so an image there is complete.

    An image that exists there already is left as it is.
    """
    whole = replace(image, size_bytes=_own_size(making), made_ms=time.time_ns() // 1_000_000)
    fields = {key: value for key, value in asdict(whole).items() if key != "place"}
    (making / RECORD).write_text(json.dumps(fields))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.parent.chmod(0o755)
    if not (place / RECORD).is_file():
        shutil.rmtree(place, ignore_errors=True)  # remains of an interrupted removal
        making.rename(place)


def collect(keep_bytes: int, older_than_s: float) -> tuple[list[BuiltImage], list[BuiltImage]]:
    """Remove images unused for `older_than_s`, and the longest unused beyond `keep_bytes`.

    The base and the layers of an image stay as long as the image. The folders of killed builders
    are removed too. Returns the removed images, and those that may be in use and so were kept.
    """
    if directory().is_dir():
        _remove_half_made()
    left = _longest_unused()
    removed, in_use = list[BuiltImage](), list[BuiltImage]()
    size = sum(each.size_bytes for each in left)
    for image in left:
        if size <= keep_bytes and image.idle_s() < older_than_s:
            continue
        if image.idle_s() < IN_USE_S:
            in_use.insert(0, image)
        elif _remove(image):
            removed.insert(0, image)
            size -= image.size_bytes
    return removed, in_use


def clear_disk(place: Path) -> None:
    """Remove images that are in no box, the longest unused first, while a disk is below its floor.

    Raises Refused if that is not enough.
    """
    unused = [each for each in _longest_unused() if each.idle_s() >= IN_USE_S]
    remedy = ", and no image is left that was not used within a day; make room there"
    make_room(place, [partial(_remove, image) for image in unused], remedy)


def _longest_unused() -> list[BuiltImage]:
    """Sort images and layers by last use; at equal times the younger, dependent one first."""
    return sorted((*images(), *layers()), key=lambda each: (each.used_at(), -each.made_ms))


def _remove(image: BuiltImage) -> bool:
    """Remove an image; return False if another one is based on it."""
    if users(image, images()):
        return False
    (image.place / RECORD).unlink()  # from here on it does not count as an image
    shutil.rmtree(image.place, ignore_errors=True)
    return True


def _own_size(place: Path) -> int:
    """Sum the disk space of folders, and of files without another hard link."""
    seen = [(path, os.lstat(path)) for path in _below(place)]
    return sum(
        each.st_blocks * 512 for path, each in seen if each.st_nlink == 1 or os.path.isdir(path)
    )


def _below(place: Path) -> Iterable[str]:
    for folder, folders, files in os.walk(place):
        yield from (os.path.join(folder, name) for name in (*folders, *files))
