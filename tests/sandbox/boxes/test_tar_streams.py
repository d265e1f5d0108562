"""A tar stream is refused as a whole if one member leads out of its directory."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcall.sandbox.boxes import tar_streams
from rollcall.schemas.errors import WorkFailed

Change = Callable[[tarfile.TarInfo], None]


def stream(*members: tuple[str, bytes, str], tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    """A stream of members: name, type, where a link leads."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as tar:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            tar.addfile(member)
    return out.getvalue()


FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    "members",
    [
        [("/etc/passwd", FILE, "")],
        [("..", FOLDER, "")],
        [("a/../../b", FILE, "")],
        [("a/..", FOLDER, "")],
        [("x", LINK, "/etc")],
        [("x", LINK, "..")],
        [("a/x", LINK, "./.././..")],
        [("./x", LINK, "./../y")],
        [("x", LINK, "../x")],
        [("a/x", LINK, "../../x")],
        [("a/b/c", LINK, "../.."), ("z", LINK, "a/b/c/..")],
        [("l", LINK, "."), ("l/k/m", LINK, "../..")],
        [("l", LINK, "a"), ("l/passwd", FILE, "")],
        [("./l", LINK, "a"), ("l//passwd", FILE, "")],
        [("x", HARD, "/etc/passwd")],
        [("x", HARD, "../x")],
        [("l", LINK, "a"), ("x", HARD, "l")],
        [("l", LINK, "a"), ("x", HARD, "l/b")],
        [("x", tarfile.CHRTYPE, "")],
        [("x", tarfile.BLKTYPE, "")],
        [("x", tarfile.FIFOTYPE, "")],
        [("good", FILE, ""), ("/bad", FILE, "")],
    ],
    ids=str,
)
def test_tar_stream_with_an_unsafe_member_is_refused(
    members: list[tuple[str, bytes, str]],
) -> None:
    for tar_format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with pytest.raises(WorkFailed, match="tar stream") as refused:
            tar_streams.checked(stream(*members, tar_format=tar_format))
        assert (refused.value.code, refused.value.retriable) == ("bad_archive", False)


@pytest.mark.parametrize(
    "members",
    [
        [("a", FOLDER, ""), ("a/x", LINK, "../b/c"), ("b", FOLDER, ""), ("b/c", FILE, "")],
        [("./a", FILE, ""), ("x", HARD, "a")],
        [("x", LINK, "nowhere/yet")],
        [("a/b/x", LINK, "../../c")],
        [("./a/x", LINK, "./..")],
        [("a\nb", FILE, ""), ("..a", FILE, ""), ("a..", FILE, "")],
        [],
    ],
    ids=str,
)
def test_tar_stream_within_its_directory_is_accepted(members: list[tuple[str, bytes, str]]) -> None:
    assert len(tar_streams.checked(stream(*members))) == len(members)


@pytest.mark.parametrize(
    "tar", [b"rubbish", b"\x1f\x8b" + b"x" * 1024, b"x" * 1024, stream(("a", FILE, ""))[:300]]
)
def test_invalid_or_compressed_tar_stream_is_refused(tar: bytes) -> None:
    with pytest.raises(WorkFailed) as refused:
        tar_streams.checked(tar)
    assert refused.value.code == "bad_archive"


def test_tar_stream_that_is_too_large_is_refused() -> None:
    with pytest.raises(WorkFailed, match="too much"):
        tar_streams.checked(b"\0" * 4096, most_bytes=4095)
    many = tar_streams.of_files({f"{number}": b"" for number in range(tar_streams.MOST_FILES + 1)})
    with pytest.raises(WorkFailed, match="too much"):
        tar_streams.checked(many)


def test_packed_files_are_unpacked_unchanged(tmp_path: Path) -> None:
    contents = {"a/b/c.txt": b"\0odd\xff", "run.sh": b"#!/bin/sh\n", "ä\n": b""}
    assert tar_streams.files(tar_streams.of_files(contents)) == contents

    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one").write_bytes(b"1")
    (tmp_path / "two").hardlink_to(tmp_path / "sub" / "one")
    (tmp_path / "link").symlink_to("two")
    assert tar_streams.files(tar_streams.of_directory(tmp_path)) == {"sub/one": b"1", "two": b"1"}


def test_owner_of_a_tar_stream_can_be_changed() -> None:
    given = tar_streams.of_files({"a/b": b"1", "go": b"#!/bin/sh\n"})
    made = tar_streams.owned_by(7, given)

    assert tar_streams.files(made) == tar_streams.files(given)
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        assert {(each.uid, each.gid) for each in archive} == {(7, 7)}
