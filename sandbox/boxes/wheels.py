"""Packages as wheels: asked of the package index, locked by their digests, unpacked for an image.

Nothing of theirs is run: what would have to be built is not taken, and a wheel is only unpacked.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from sandbox.boxes.image_python import INTERPRETER, ImagePython
from sandbox.package_index import QUIETLY, last_error, pip, refuse_without_index
from schemas.errors import Refused
from schemas.foreign_text import plain

SHEBANG_BYTES = 1024
HASH = " --hash="
DIGEST = re.compile("sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Wheel:
    """One, fetched."""

    path: Path
    name: str
    version: str
    sha256: str

    @property
    def pinned(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def locked(self) -> str:
        """A line that pip takes as a requirement, and that fits this very file alone."""
        return f"{self.pinned} --hash=sha256:{self.sha256}"


def requirement_lines(text: str, source: str) -> list[str]:
    """The requirements of a file such as a lock, digests with them. Raises Refused.

    A requirement names releases of the index: no options, no addresses, no paths.
    """
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        words = line.partition(" #")[0].strip()
        if words and not words.startswith("#"):
            lines.append(checked(words, source))
    return lines


def checked(line: str, source: str) -> str:
    """One of them, as it is. Raises Refused."""
    stated, *hashes = line.split(HASH)
    try:
        requirement = Requirement(stated)
    except InvalidRequirement as error:
        said = plain(str(error).partition("\n")[0], 200)
        msg = f"{plain(repr(line), 200)} in {source} is no requirement such as six==1.16.0: {said}"
        raise Refused(msg) from error
    if requirement.url or not all(DIGEST.fullmatch(each.strip()) for each in hashes):
        msg = f"{plain(repr(line), 200)} in {source}: packages come from the index, by their "
        msg += "names, and their digests are sha256"
        raise Refused(msg)
    return line


def fetched(requirements: Sequence[str], python: ImagePython, folder: Path) -> list[Wheel]:
    """What fulfils requirements, and what that requires, by name. Raises Refused, Unavailable."""
    asked = folder / "requirements.txt"
    asked.write_text("".join(f"{each}\n" for each in requirements))
    found = folder / "wheels"
    what = plain(", ".join(each.partition(HASH)[0] for each in requirements), 200)
    code, said = pip(
        "download", *QUIETLY, *python.options(), "-d", str(found), "-r", str(asked),
        what=what, scratch=folder,
    )  # fmt: skip
    if code:
        refuse_without_index(what, said)
        msg = f"{what} cannot be had as wheels for Python {python.version}, which is all that is "
        msg += f"taken: {plain(last_error(said), 500)}"
        raise Refused(msg)
    return sorted(map(_read, found.iterdir()), key=lambda wheel: wheel.name)


def unpacked(wheels: Sequence[Wheel], python: ImagePython, tree: Path) -> None:
    """Unpack them below a root, where the image's Python looks for them. Raises Refused."""
    place = tree / python.packages
    place.mkdir(parents=True)
    code, said = pip(
        "install", "--quiet", *python.options(), "--no-index", "--no-deps", "--no-compile",
        "--target", str(place), *(str(wheel.path) for wheel in wheels), what="wheels",
        scratch=tree.parent,
    )  # fmt: skip
    if code:
        msg = f"wheels cannot be unpacked: {plain(last_error(said), 500)}"
        raise Refused(msg)
    if missing := sorted(set(_missing(place, python))):
        msg = "; ".join(missing[:5])
        msg += f": name what is missing too, for the index was asked by Python {_own_version()}"
        raise Refused(msg)
    if (place / "bin").is_dir():
        (place / "bin").rename(tree / "usr/local/bin")
        for program in (tree / "usr/local/bin").iterdir():
            _begin_there(program)
    for folder in (tree, *(path for path in tree.rglob("*") if path.is_dir())):
        folder.chmod(0o755)


def _read(path: Path) -> Wheel:
    name, version, _, _ = parse_wheel_filename(path.name)
    return Wheel(path, name, str(version), hashlib.sha256(path.read_bytes()).hexdigest())


def _missing(place: Path, python: ImagePython) -> Iterable[str]:
    """What is required there and is not; pip asks for what its own Python would need."""
    found = {canonicalize_name(each.name): each for each in distributions(path=[str(place)])}
    for name, each in found.items():
        for requirement in map(Requirement, each.requires or ()):
            marker = requirement.marker
            if marker and not marker.evaluate({**python.environment()}):
                continue
            held = found.get(canonicalize_name(requirement.name))
            if held is None or not requirement.specifier.contains(held.version, prereleases=True):
                yield f"{name} requires {requirement} with Python {python.version}"


def _begin_there(program: Path) -> None:
    """Have the image's Python run what would begin with the one that unpacked it."""
    content = program.read_bytes()
    head, rest = content[:SHEBANG_BYTES], content[SHEBANG_BYTES:]
    if head.startswith(b"#!"):
        program.write_bytes(head.replace(os.fsencode(sys.executable), INTERPRETER) + rest)


def _own_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
