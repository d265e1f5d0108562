"""Images as directories: what bubblewrap binds and docker imports, by name.

Each is a folder with `tree`, a system's files, and `image.json`, whose time of change is that of
its last use. Beside them lie the layers of packages that images share (`package_layers`), each by
its digest. Root has them at a place that all can walk to: its boxes run as other users.
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

from sandbox.boxes.disk_floor import make_room
from sandbox.held_folder import hold, locked, remove_unless_held
from schemas.bounded import json_object
from schemas.errors import WorkFailed

DIRECTORY = "ROLLCALL_IMAGES"
"""The variable that names another directory for them."""
ROOTS = Path("/var/lib/rollcall/images")
LAYERS = "layers"
RECORD = "image.json"
MAKING, HELD = ".making-", ".held-"
"""Begin the names of folders in which something is made: by older releases, which hold none of
them, and by this one."""
IN_USE_S = 86_400.0
"""A box lives no longer: what was used in this time may be in one."""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """One image of this host, or one layer of such."""

    name: str
    digest: str
    size_bytes: int = 0
    """Without what it shares with its base and its layers."""
    made_ms: int = 0
    base: str = ""
    """The image that it stands on."""
    layers: Sequence[str] = ()
    """The digests of all that lie above the first base."""
    packages: Sequence[str] = ()
    """Those of its own layer, or of this layer, by name and version."""
    place: Path = field(default=Path(), compare=False)

    @property
    def tree(self) -> Path:
        return self.place / "tree"

    def used_at(self) -> float:
        """When it was used last, in seconds of the epoch."""
        return (self.place / RECORD).stat().st_mtime

    def idle_s(self) -> float:
        """Since then."""
        return max(0.0, time.time() - self.used_at())

    def carries(self, other: "BuiltImage") -> bool:
        """Whether it stands on another image, or on a layer."""
        return other.place in (directory() / self.base, *map(layer_place, self.layers))


def directory() -> Path:
    """Where images lie on this host."""
    if named := os.environ.get(DIRECTORY):
        return Path(named).absolute()
    return ROOTS if os.getuid() == 0 else Path.home() / ".cache" / "rollcall" / "images"


def layer_place(digest: str) -> Path:
    return directory() / LAYERS / digest


def images() -> list[BuiltImage]:
    """All that are whole, by name."""
    return _whole(sorted(directory().glob(f"[a-z]*/{RECORD}")))


def layers() -> list[BuiltImage]:
    """All that are whole, by digest."""
    return _whole(sorted(layer_place("").glob(f"*/{RECORD}")))


def _whole(records: Iterable[Path]) -> list[BuiltImage]:
    return [image for path in records if (image := _image_at(path.parent))]


def users(image: BuiltImage, among: Iterable[BuiltImage]) -> list[str]:
    """The names of the images that stand on one, or on a layer."""
    return [each.name for each in among if each.carries(image)]


def is_built(name: str) -> bool:
    """Whether an image of this name is one of ours; names of an engine's have other letters too."""
    return name.replace("-", "").isalnum() and (directory() / name / RECORD).is_file()


def built(name: str) -> BuiltImage:
    """An image, which is in use from now on, with all that it stands on.

    Raises WorkFailed(`image`).
    """
    if not is_built(name):
        msg = f"there is no image {name!r} in {directory()}; `rollcall images list` names those"
        msg += " that are, `rollcall images build base` makes the first"
        raise WorkFailed("image", msg, retriable=False)
    image = read_image(directory() / name)
    for place in (image.place, *map(layer_place, image.layers)):
        with suppress(FileNotFoundError):  # somebody removed a layer: its files are here too
            os.utime(place / RECORD)
    if is_built(image.base):
        built(image.base)
    return image


def read_image(place: Path) -> BuiltImage:
    """An image or a layer that lies somewhere; raises WorkFailed(`image`)."""
    image = _image_at(place)
    if image is None:
        msg = f"{place / RECORD} is not as it was written; remove {place} and build the image again"
        raise WorkFailed("image", msg, retriable=False)
    return image


def _image_at(place: Path) -> BuiltImage | None:
    told = json_object((place / RECORD).read_bytes())
    try:
        return None if told is None else BuiltImage(**told, place=place)
    except TypeError:
        return None


@contextmanager
def making() -> Iterator[Path]:
    """A folder beside the images, of which what is left in the end is removed.

    What others have left whose end came first is removed before.
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
    """What a builder has left that was killed; of older releases who tells by its age alone."""
    with locked(directory()):
        left = sorted(directory().glob(f"{HELD}*"))
    for half_made in left:
        remove_unless_held(half_made)
    for half_made in directory().glob(f"{MAKING}*"):
        if time.time() - half_made.stat().st_mtime > IN_USE_S:
            shutil.rmtree(half_made, ignore_errors=True)


def seal(making: Path, image: BuiltImage, place: Path) -> None:
    """Write down what was made, and have it at its place: last, so that what is there is whole.

    Where it is there already it stays as it is.
    """
    whole = replace(image, size_bytes=_own_size(making), made_ms=time.time_ns() // 1_000_000)
    fields = {key: value for key, value in asdict(whole).items() if key != "place"}
    (making / RECORD).write_text(json.dumps(fields))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.parent.chmod(0o755)
    if not (place / RECORD).is_file():
        shutil.rmtree(place, ignore_errors=True)  # whoever removed it came half-way
        making.rename(place)


def collect(keep_bytes: int, older_than_s: float) -> tuple[list[BuiltImage], list[BuiltImage]]:
    """Remove what was not used for so long, and the longest unused of what is too much.

    What an image stands on stays as long as it. What was half made when its builder was killed goes
    too. Returns what was removed, and what would have been but may be in use.
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
    """Where a disk has less than its floor, remove images that are in no box; Refused if need be.

    The longest unused go first.
    """
    unused = [each for each in _longest_unused() if each.idle_s() >= IN_USE_S]
    remedy = ", and no image is left that was not used within a day; make room there"
    make_room(place, [partial(_remove, image) for image in unused], remedy)


def _longest_unused() -> list[BuiltImage]:
    """Images and layers, each before what it stands on where both were used last at once."""
    return sorted((*images(), *layers()), key=lambda each: (each.used_at(), -each.made_ms))


def _remove(image: BuiltImage) -> bool:
    """Whether it could be: not what another one stands on."""
    if users(image, images()):
        return False
    (image.place / RECORD).unlink()  # from now on it is none
    shutil.rmtree(image.place, ignore_errors=True)
    return True


def _own_size(place: Path) -> int:
    """Of folders, and of files that have no name elsewhere."""
    seen = [(path, os.lstat(path)) for path in _below(place)]
    return sum(
        each.st_blocks * 512 for path, each in seen if each.st_nlink == 1 or os.path.isdir(path)
    )


def _below(place: Path) -> Iterable[str]:
    for folder, folders, files in os.walk(place):
        yield from (os.path.join(folder, name) for name in (*folders, *files))
