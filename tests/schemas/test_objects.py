"""The object store on a disk: objects are complete or absent, unavailable or lost."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.schemas.claims import claim_of
from rollcall.schemas.errors import ObjectLost, Refused, Unavailable, WireError
from rollcall.schemas.messages import Claim
from rollcall.schemas.objects import MARK, ObjectStore

VALUE = b"\0\0\0\0\1" + b"heavy" * 1000


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path / "objects"))


def file_of(tmp_path: Path, claim: Claim) -> Path:
    return tmp_path / "objects" / claim.sha256[:2] / claim.sha256


def test_a_stored_value_is_read_by_a_store_of_another_process(
    store: ObjectStore, tmp_path: Path
) -> None:
    claim = store.put(VALUE)

    assert claim == claim_of(VALUE)
    assert ObjectStore(store.url).get(claim) == VALUE
    assert file_of(tmp_path, claim).read_bytes() == VALUE


def test_storing_the_same_value_again_renews_its_age(store: ObjectStore, tmp_path: Path) -> None:
    path = file_of(tmp_path, store.put(VALUE))
    os.utime(path, (0, 0))

    store.put(VALUE)

    (kept,) = store.kept()
    assert kept.size_bytes == len(VALUE)
    assert kept.age_s < 3600


@pytest.mark.parametrize("found", [b"", VALUE[:-1], VALUE + b"x", b"y" * len(VALUE)])
def test_an_altered_object_is_lost(store: ObjectStore, tmp_path: Path, found: bytes) -> None:
    claim = store.put(VALUE)
    file_of(tmp_path, claim).write_bytes(found)

    with pytest.raises(ObjectLost, match=claim.sha256):
        store.get(claim)


def test_a_removed_object_is_lost_and_an_unmounted_store_unavailable(
    store: ObjectStore, tmp_path: Path
) -> None:
    claim = store.put(VALUE)
    file_of(tmp_path, claim).unlink()

    with pytest.raises(ObjectLost, match=r"not in .* any more"):
        store.get(claim)
    with pytest.raises(Unavailable, match="cannot be read"):
        ObjectStore(str(tmp_path / "not mounted")).get(claim)
    (tmp_path / "objects" / MARK).unlink()
    with pytest.raises(Unavailable, match="cannot be read"):
        store.get(claim)


@pytest.mark.parametrize("name", ["", "../../secret", "0" * 63, "G" * 64])
def test_a_claim_without_a_valid_digest_is_lost(store: ObjectStore, name: str) -> None:
    with pytest.raises(ObjectLost, match="names no object"):
        store.get(Claim(name, name, 1))


def test_an_object_that_is_not_a_file_is_lost_and_not_read(
    store: ObjectStore, tmp_path: Path
) -> None:
    claim = store.put(VALUE)
    path = file_of(tmp_path, claim)

    path.unlink()
    path.mkdir()
    with pytest.raises(ObjectLost, match="is a directory, not a file"):
        store.get(claim)
    path.rmdir()
    os.mkfifo(path)  # to open it would wait for ever
    with pytest.raises(ObjectLost, match="not a file"):
        store.get(claim)
    path.unlink()
    path.parent.rmdir()
    path.parent.write_bytes(VALUE)
    with pytest.raises(ObjectLost, match=claim.sha256):
        store.get(claim)


def test_the_size_is_checked_before_an_object_is_read(store: ObjectStore, tmp_path: Path) -> None:
    claim = store.put(VALUE)
    with file_of(tmp_path, claim).open("wb") as file:
        file.truncate(3 << 30)  # a sparse file: reading it would take three GiB of memory

    for size_bytes in (len(VALUE), 3 << 30, -1, 0):
        with pytest.raises(ObjectLost, match=r"has 3,221,225,472 bytes, but .* at most"):
            store.get(replace(claim, size_bytes=size_bytes))


def test_a_value_above_the_size_limit_is_not_stored(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path), most_bytes=len(VALUE))

    assert store.get(store.put(VALUE)) == VALUE
    with pytest.raises(WireError, match="above the limit"):
        store.put(VALUE + b"x")


def test_an_unwritable_store_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")

    with pytest.raises(Unavailable, match="cannot be written to"):
        ObjectStore(str(tmp_path / "file" / "objects")).put(VALUE)


@pytest.mark.parametrize("url", ["nosuch://bucket/objects", "nosuch::file:///tmp/objects"])
def test_a_url_without_an_installed_driver_is_refused(url: str) -> None:
    with pytest.raises(Refused, match=r"objects.url is 'nosuch.*cannot be opened here.*install"):
        ObjectStore(url)


def test_a_removed_object_is_lost_and_removing_is_idempotent(store: ObjectStore) -> None:
    claim = store.put(VALUE)
    (kept,) = store.kept()

    store.remove(kept)
    store.remove(kept)

    assert list(store.kept()) == []
    with pytest.raises(ObjectLost):
        store.get(claim)


def test_an_in_memory_fsspec_store_works() -> None:
    store = ObjectStore("memory://test-objects")

    assert store.get(store.put(VALUE)) == VALUE
    assert [kept.size_bytes for kept in store.kept()] == [len(VALUE)]
