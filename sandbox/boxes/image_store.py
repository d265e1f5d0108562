"""Images as directories: what bubblewrap binds and docker imports, by name.

Each is a folder with `tree`, a system's files, and `image.json`, whose time of change is that of
its last use. Root has them at a place that all can walk to: its boxes run as other users.
"""

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

from sandbox.boxes.disk_floor import make_room
from schemas.errors import Refused, WorkFailed

DIRECTORY = "ROLLCALL_IMAGES"
"""The variable that names another directory for them."""
ROOTS = Path("/var/lib/rollcall/images")
PACKAGES = ("git", "procps", "python3", "python3-pip", "python3-pytest", "python3-venv")
"""What `base` has beside the least that Debian can be."""
IN_USE_S = 86_400.0
"""A box lives no longer: what was used in this time may be in one."""
BUILD_LINES = 15


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """One image of this host."""

    name: str
    digest: str
    size_bytes: int
    made_ms: int
    place: Path = field(default=Path(), compare=False)

    @property
    def tree(self) -> Path:
        return self.place / "tree"

    def idle_s(self) -> float:
        """Since it was used last."""
        return max(0.0, time.time() - (self.place / "image.json").stat().st_mtime)


def directory() -> Path:
    """Where images lie on this host."""
    if named := os.environ.get(DIRECTORY):
        return Path(named).absolute()
    return ROOTS if os.getuid() == 0 else Path.home() / ".cache" / "rollcall" / "images"


def images() -> list[BuiltImage]:
    """All that are whole, by name."""
    return [_read(path) for path in sorted(directory().glob("[a-z]*/image.json"))]


def is_built(name: str) -> bool:
    """Whether an image of this name is one of ours; names of an engine's have other letters too."""
    return name.replace("-", "").isalnum() and (directory() / name / "image.json").is_file()


def built(name: str) -> BuiltImage:
    """An image, which is in use from now on. Raises WorkFailed(`image`)."""
    if not is_built(name):
        msg = f"there is no image {name!r} in {directory()}; `rollcall images list` names those"
        msg += " that are, `rollcall images build base` makes the first"
        raise WorkFailed("image", msg, retriable=False)
    os.utime(directory() / name / "image.json")
    return _read(directory() / name / "image.json")


def build_base() -> BuiltImage:
    """Make `base` with debootstrap from apt's own mirror; takes a minute. Raises Refused."""
    place = directory() / "base"
    if is_built("base"):
        return built("base")
    _check_host()
    making = directory() / f".making-{secrets.token_hex(4)}"
    try:
        (making / "tree/etc/dpkg/dpkg.cfg.d").mkdir(parents=True)
        # Whoever loses it in a power cut makes another.
        (making / "tree/etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
        for parent in (making, making / "tree"):
            parent.chmod(0o755)
        _debootstrap(making / "tree")
        _seal(making, "base")
        making.rename(place)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return built("base")


def collect(keep_bytes: int, older_than_s: float) -> tuple[list[BuiltImage], list[BuiltImage]]:
    """Remove what was not used for so long, and the longest unused of what is too much.

    Returns what was removed, and what would have been but may be in use.
    """
    left = sorted(images(), key=BuiltImage.idle_s)
    removed, in_use, size = list[BuiltImage](), list[BuiltImage](), 0
    for image in left:
        size += image.size_bytes
        if size <= keep_bytes and image.idle_s() < older_than_s:
            continue
        if image.idle_s() < IN_USE_S:
            in_use.append(image)
            continue
        _remove(image)
        removed.append(image)
        size -= image.size_bytes
    return removed, in_use


def _check_host() -> None:
    if os.getuid() != 0:
        msg = "images are built by root alone: debootstrap makes the files of a system"
        raise Refused(msg)
    for program in ("debootstrap", "apt-get"):
        if not shutil.which(program):
            msg = f"{program} is not installed; `apt-get install debootstrap` on a Debian host"
            raise Refused(msg)
    directory().mkdir(parents=True, exist_ok=True)
    directory().chmod(0o755)
    clear_disk(directory())


def clear_disk(place: Path) -> None:
    """Where a disk has less than its floor, remove images that are in no box; Refused if need be.

    The longest unused go first.
    """
    unused = [each for each in images() if each.idle_s() >= IN_USE_S]
    unused.sort(key=BuiltImage.idle_s, reverse=True)
    remedy = ", and no image is left that was not used within a day; make room there"
    make_room(place, [partial(_remove, image) for image in unused], remedy)


def _remove(image: BuiltImage) -> None:
    (image.place / "image.json").unlink()  # from now on it is none
    shutil.rmtree(image.place, ignore_errors=True)


def _debootstrap(tree: Path) -> None:
    script = (
        "set -e; . /etc/os-release\n"
        "mirror=$(apt-get indextargets --format '$(REPO_URI)' "
        '"Codename: $VERSION_CODENAME" "Component: main" | head -n 1)\n'
        "http_proxy=; eval \"$(apt-config shell http_proxy Acquire::http::Proxy)\"\n"
        "test -z \"$http_proxy\" || export http_proxy\n"
        'debootstrap --variant=minbase --include="$2" "$VERSION_CODENAME" "$1" "$mirror"\n'
        'rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*\n'
    )  # fmt: skip
    argv = ["/bin/sh", "-c", script, "sh", str(tree), ",".join(PACKAGES)]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        last = (done.stdout + done.stderr).splitlines()[-BUILD_LINES:]
        msg = "image 'base' cannot be built; debootstrap ended with:\n" + "\n".join(last)
        raise Refused(msg)


def _seal(place: Path, name: str) -> None:
    """Write down what it is: last, so that what has been written down is whole."""
    digest = sha256((place / "tree/var/lib/dpkg/status").read_bytes()).hexdigest()
    made = BuiltImage(name, digest, _size(place), time.time_ns() // 1_000_000)
    fields = {key: value for key, value in asdict(made).items() if key != "place"}
    (place / "image.json").write_text(json.dumps(fields))


def _size(place: Path) -> int:
    return sum(os.lstat(path).st_blocks * 512 for path in _below(place))


def _below(place: Path) -> Iterable[str]:
    for folder, folders, files in os.walk(place):
        yield from (os.path.join(folder, name) for name in (*folders, *files))


def _read(path: Path) -> BuiltImage:
    return BuiltImage(**json.loads(path.read_text()), place=path.parent)
