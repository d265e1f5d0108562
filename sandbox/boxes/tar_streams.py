"""Tar streams from untrusted sources, which are checked before they are unpacked.

A stream is refused as a whole if one of its members has an absolute name or `..` in it, is a link
that leads out of the directory that the stream is unpacked in, is a device or a pipe, or if it is
too large. Streams from boxes are untrusted: read them with `files`, which writes to no disk.
"""

import io
import os
import stat
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NoReturn

from rollcall.schemas.errors import FailureCode, WorkFailed

BORN_S = 946_684_800
"""The modification time of a box's initial files (2000-01-01 UTC), the same in every box."""
MOST_FILES = 20_000
MOST_BYTES = 256 << 20


def checked(tar: bytes, *, most_bytes: int = MOST_BYTES) -> list[tarfile.TarInfo]:
    """Return the members of an uncompressed stream. Raises WorkFailed(`bad_archive`)."""
    if len(tar) > most_bytes:
        msg = f"a tar stream of {len(tar):,} bytes is too much; {most_bytes:,} can be"
        raise refusal(msg)
    try:
        members = _members(tar)
        links = {_path(member.name) for member in members if member.issym()}
        for member in members:
            _check(member, links)
    except (tarfile.TarError, ValueError, OverflowError, OSError) as error:
        msg = f"what should be a tar stream is none that is taken: {error}"
        raise refusal(msg) from error
    return members


def files(tar: bytes, *, most_bytes: int = MOST_BYTES) -> Mapping[str, bytes]:
    """Return the regular files of a stream by name; links and directories are left out.

    Raises WorkFailed(`bad_archive`).
    """
    contents: dict[str, bytes] = {}
    for member in checked(tar, most_bytes=most_bytes):
        if member.isreg():
            begin = member.offset_data
            contents[str(_path(member.name))] = tar[begin : begin + member.size]
    return contents


def of_files(contents: Mapping[str, bytes]) -> bytes:
    """Make a stream of files, given by name; a file is executable if it begins with `#!`."""
    stream = io.BytesIO()
    folders = {str(up) for name in contents for up in _path(name).parents} - {"."}
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder in sorted(folders):
            tar.addfile(_member(folder, tarfile.DIRTYPE, 0o755))
        for name, content in contents.items():
            mode = 0o755 if content.startswith(b"#!") else 0o644
            tar.addfile(_member(name, tarfile.REGTYPE, mode, len(content)), io.BytesIO(content))
    return stream.getvalue()


def of_directory(source: Path) -> bytes:
    """Make a stream of a directory's content, without owners and times; blocks.

    Symbolic links stay links. Raises OSError, and WorkFailed(`bad_config`) for too much.
    """
    measure(source)
    stream = io.BytesIO()

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        if member.islnk():  # a second name of a file is a second file
            member.type, member.linkname = tarfile.REGTYPE, ""
            member.size = os.lstat(source / member.name).st_size
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = BORN_S
        return member

    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in sorted(os.listdir(source)):
            tar.add(source / entry, arcname=entry, filter=plain)
    return stream.getvalue()


def of_own_directories(places: Iterable[str], user: int) -> bytes:
    """Make a stream of directories, given by absolute names, that belong to a user."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for place in places:
            member = _member(place.strip("/"), tarfile.DIRTYPE, 0o755)
            member.uid = member.gid = user
            tar.addfile(member)
    return stream.getvalue()


def owned_by(user: int, tar: bytes) -> bytes:
    """Return the same stream with a user as the owner of every member."""
    stream = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(tar)) as given,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as made,
    ):
        for member in given:
            member.uid = member.gid = user
            member.uname = member.gname = ""
            made.addfile(member, given.extractfile(member) if member.isreg() else None)
    return stream.getvalue()


def measure(source: Path) -> None:
    """Refuse a directory that is too large or holds pipes or devices, whose reads may never end.

    Raises OSError, WorkFailed(`bad_config`).
    """
    taken, size = 0, 0
    for directory, folders, names in os.walk(source, onerror=_raise):
        for name in (*folders, *names):
            seen = os.lstat(os.path.join(directory, name))
            taken, size = taken + 1, size + seen.st_size
            if not any(kind(seen.st_mode) for kind in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)):
                msg = f"{directory}/{name} is neither a file, a directory nor a link"
                raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
        if taken > MOST_FILES or size > MOST_BYTES:
            most = f"{MOST_FILES:,} files and {MOST_BYTES:,} bytes"
            msg = f"{source} is too much for a box, which takes {most}"
            raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)


def refusal(message: str) -> WorkFailed:
    """Return the error for a stream that is refused or cannot be read."""
    return WorkFailed(FailureCode.BAD_ARCHIVE, message, retriable=False)


def _member(name: str, kind: bytes, mode: int, size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.size, member.mtime = kind, mode, size, BORN_S
    return member


def _members(tar: bytes) -> list[tarfile.TarInfo]:
    members = []
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as stream:
        for member in stream:
            members.append(member)
            if len(members) > MOST_FILES:
                msg = f"a tar stream of more than {MOST_FILES:,} members is too much"
                raise refusal(msg)
    return members


def _check(member: tarfile.TarInfo, links: Iterable[PurePosixPath]) -> None:
    """Raise ValueError for an unsafe member. (Older Pythons have no `tarfile` filters.)"""
    _check_name(member.name, links)
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        _wrong(member.name, "is neither a file, a directory nor a link")
    if member.issparse():
        _wrong(member.name, "is a sparse file")
    if member.islnk():
        _check_name(member.linkname, links)
        if _path(member.linkname) in links:
            _wrong(member.linkname, "is a link, and can have no second name")
    if member.issym():
        _check_link(member)


def _check_link(member: tarfile.TarInfo) -> None:
    if "\0" in member.linkname or member.linkname.startswith("/"):
        _wrong(member.name, f"is a link to the absolute path {member.linkname[:100]!r}")
    if leads_out(member.linkname, above=len(_path(member.name).parts) - 1):
        _wrong(member.name, f"is a link that leads out: {member.linkname[:100]!r}")


def leads_out(target: str, *, above: int) -> bool:
    """Return True unless a link's target surely lies in the tree; `above` counts its folders.

    The target is known without a file system only if each `..` comes before all other parts: a
    name before it could be another link.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = parts.count("..")
    return target.startswith("/") or ".." in parts[climbs:] or climbs > above


def _check_name(name: str, links: Iterable[PurePosixPath]) -> None:
    if "\0" in name:
        _wrong(name, "has a NUL in it")
    if name.startswith("/") or ".." in name.split("/"):
        _wrong(name, "does not stay below the directory")
    if not set(_path(name).parents).isdisjoint(links):
        _wrong(name, "lies below a link of the same stream")


def _path(name: str) -> PurePosixPath:
    return PurePosixPath(name)


def _wrong(name: str, why: str) -> NoReturn:
    msg = f"{name[:100]!r} {why}"
    raise ValueError(msg)


def _raise(error: OSError) -> NoReturn:
    raise error
