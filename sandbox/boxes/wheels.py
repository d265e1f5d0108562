"""Packages as wheels: downloaded from the index, locked by their digests, unpacked for an image.

None of their code is run: source packages are not taken, and wheels are only unpacked.
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

from rollcall.sandbox.boxes.image_python import INTERPRETER, ImagePython
from rollcall.sandbox.package_index import QUIETLY, last_error, pip, refuse_without_index
from rollcall.schemas.errors import Refused
from rollcall.schemas.untrusted_text import clean_text

SHEBANG_BYTES = 1024
HASH = " --hash="
DIGEST = re.compile("sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that was downloaded."""

    path: Path
    name: str
    version: str
    sha256: str

    @property
    def pinned(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def locked(self) -> str:
        """The requirement line for pip that matches this file alone."""
        return f"{self.pinned} --hash=sha256:{self.sha256}"


def requirement_lines(text: str, source: str) -> list[str]:
    """Return the requirements of a file such as a lock, with their digests. Raises Refused.

    A requirement names releases of the index: options, URLs and paths are refused.
    """
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        words = line.partition(" #")[0].strip()
        if words and not words.startswith("#"):
            lines.append(checked(words, source))
    return lines


def checked(line: str, source: str) -> str:
    """Return a requirement line unchanged if it is valid. Raises Refused."""
    stated, *hashes = line.split(HASH)
    try:
        requirement = Requirement(stated)
    except InvalidRequirement as error:
        said = clean_text(str(error).partition("\n")[0], 200)
        found = clean_text(repr(line), 200)
        msg = f"{found} in {source} is no requirement such as six==1.16.0: {said}"
        raise Refused(msg) from error
    if requirement.url or not all(DIGEST.fullmatch(each.strip()) for each in hashes):
        msg = f"{clean_text(repr(line), 200)} in {source}: packages come from the index, by their "
        msg += "names, and their digests are sha256"
        raise Refused(msg)
    return line


def fetched(requirements: Sequence[str], python: ImagePython, folder: Path) -> list[Wheel]:
    """Download wheels for requirements and dependencies. Raises Refused, Unavailable."""
    asked = folder / "requirements.txt"
    asked.write_text("".join(f"{each}\n" for each in requirements))
    found = folder / "wheels"
    what = clean_text(", ".join(each.partition(HASH)[0] for each in requirements), 200)
    places = "-d", str(found), "-r", str(asked)
    code, said = pip("download", *QUIETLY, *python.options(), *places, what=what, scratch=folder)
    if code:
        refuse_without_index(what, said)
        msg = f"{what} cannot be had as wheels for Python {python.version}, which is all that is "
        msg += f"taken: {clean_text(last_error(said), 500)}"
        raise Refused(msg)
    return sorted(map(_read, found.iterdir()), key=lambda wheel: wheel.name)


def unpacked(wheels: Sequence[Wheel], python: ImagePython, tree: Path) -> None:
    """Unpack wheels into a tree's package directory for the image's Python. Raises Refused."""
    place = tree / python.packages
    place.mkdir(parents=True)
    options = "--no-index", "--no-deps", "--no-compile", "--target", str(place)
    words = *python.options(), *options, *(str(wheel.path) for wheel in wheels)
    code, said = pip("install", "--quiet", *words, what="wheels", scratch=tree.parent)
    if code:
        msg = f"wheels cannot be unpacked: {clean_text(last_error(said), 500)}"
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
    """Yield unmet requirements: pip resolved markers for its own Python, not the image's."""
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
    """Change a program's `#!` line from the Python that unpacked it to the image's."""
    content = program.read_bytes()
    head, rest = content[:SHEBANG_BYTES], content[SHEBANG_BYTES:]
    if head.startswith(b"#!"):
        program.write_bytes(head.replace(os.fsencode(sys.executable), INTERPRETER) + rest)


def _own_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
