"""Source releases from the package index, fetched by pip.

To find a source release's name pip runs its build back end, as this user, on this machine: so it is
used only to build tasks, never in a worker.
"""

import gzip
import hashlib
import io
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from rollcall.sandbox.boxes.tar_streams import MOST_BYTES, checked
from rollcall.sandbox.package_index import QUIETLY, last_error, pip, refuse_without_index
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.names import hint
from rollcall.schemas.untrusted_text import clean_text

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = re.compile(r"[A-Za-z0-9.!+_-]+")


@dataclass(frozen=True, slots=True)
class Sdist:
    """A source release that was fetched."""

    path: Path
    sha256: str

    @property
    def file(self) -> str:
        return self.path.name


def fetch(name: str, version: str, folder: Path) -> Sdist:
    """Fetch a source release into an empty folder. Raises Refused and Unavailable.

    Only this package must be a source release: its build requirements may be wheels.
    """
    wanted = f"{name}=={version}"
    options = "--no-deps", "--no-binary", name, "-d", str(folder)
    code, said = pip("download", *QUIETLY, *options, wanted, what=wanted, scratch=folder.parent)
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if code or not found:
        raise _refusal(name, version, said)
    if len(found) != 1 or not found[0].name.endswith((".tar.gz", ".tgz")):
        names = ", ".join(path.name for path in found)
        msg = f"the source release of {wanted} is {names!r}; only a .tar.gz is read"
        raise Refused(msg)
    return Sdist(found[0], hashlib.sha256(found[0].read_bytes()).hexdigest())


def unpack(sdist: Sdist, into: Path) -> Path:
    """Unpack it and return its only folder. Raises Refused if it is not a source release."""
    try:
        with gzip.open(sdist.path) as packed:
            unpack_tar(packed.read(MOST_BYTES + 1), into)
    except (WorkFailed, OSError, EOFError, zlib.error) as error:
        msg = f"{sdist.file} cannot be unpacked: {clean_text(str(error), 200)}"
        raise Refused(msg) from error
    folders = list(into.iterdir())
    if len(folders) != 1 or not folders[0].is_dir():
        msg = f"{sdist.file} holds {len(folders)} things at its top, not one folder"
        raise Refused(msg)
    return folders[0]


def unpack_tar(tar: bytes, into: Path) -> None:
    """Unpack a tar stream without owners. Raises WorkFailed(`bad_archive`), OSError."""
    members = checked(tar)
    for member in members:
        executable = member.isdir() or member.mode & 0o100
        member.mode, member.uid, member.gid = (0o755 if executable else 0o644), -1, -1
        member.uname = member.gname = ""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        # The members were checked above; Python before 3.11.4 has no filters.
        same = getattr(tarfile, "fully_trusted_filter", None)
        if same:
            archive.extraction_filter = same
        archive.extractall(into, members)


def _refusal(name: str, version: str, said: str) -> Refused:
    """Turn the output of a failed pip into one line. Raises as `refuse_without_index` does."""
    wanted = f"{name}=={version}"
    versions = re.search(r"\(from versions: ([^)]+)\)", said)
    if versions and versions[1] != "none":
        known = versions[1].split(", ")
        return Refused(f"the index has no source release of {wanted}; {hint(version, known[-8:])}")
    refuse_without_index(wanted, said)
    if versions:
        return Refused(f"the index has no source release of {name} at all")
    return Refused(f"{wanted} cannot be fetched: {last_error(said)}")
