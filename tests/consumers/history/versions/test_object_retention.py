"""The store of heavy records: only objects that no record can claim are removed."""

import os
from pathlib import Path

import pytest

from rollcall.compose.settings import ObjectSettings, Settings
from rollcall.consumers.history.versions.object_retention import needed_s
from rollcall.schemas.errors import Refused
from rollcall.schemas.objects import ObjectStore
from tests.support.command_line import call
from tests.support.memory_cluster import MemoryCluster

DAY_S = 86_400


class Storing(MemoryCluster):
    objects: ObjectStore


@pytest.fixture
def cluster(tmp_path: Path) -> Storing:
    return Storing(objects=ObjectStore(str(tmp_path)))


def put(cluster: Storing, value: bytes, days: float) -> None:
    """An object that was put some days ago."""
    before = {kept.path for kept in cluster.objects.kept()}
    cluster.objects.put(value)
    (path,) = {kept.path for kept in cluster.objects.kept()} - before
    at = os.stat(path).st_mtime - days * DAY_S
    os.utime(path, (at, at))


def there(cluster: Storing) -> int:
    return len(list(cluster.objects.kept()))


def test_an_object_is_needed_for_the_longest_retention(cluster: Storing) -> None:
    assert needed_s(cluster) == (30 + 30 + 7) * DAY_S


def test_old_objects_are_removed_only_with_yes(
    cluster: Storing, capsys: pytest.CaptureFixture[str]
) -> None:
    for days in (0, 66, 68, 100):
        put(cluster, b"%d" % days, days)

    call(cluster, "objects", "gc")
    assert "would remove 2 objects" in capsys.readouterr().out
    assert there(cluster) == 4

    call(cluster, "objects", "gc", "--older-than=90d", "--yes")
    assert there(cluster) == 3
    call(cluster, "objects", "gc", "--yes")
    assert there(cluster) == 2


def test_temporary_files_left_by_a_crash_are_removed_after_a_day(
    cluster: Storing, tmp_path: Path
) -> None:
    for name, days in (("a.tmp", 0.5), ("b.tmp", 2)):
        (tmp_path / name).write_bytes(b"torn")
        at = os.stat(tmp_path / name).st_mtime - days * DAY_S
        os.utime(tmp_path / name, (at, at))

    call(cluster, "objects", "gc", "--yes")

    assert [path.name for path in tmp_path.glob("*.tmp")] == ["a.tmp"]


def test_an_age_within_record_retention_is_refused(cluster: Storing) -> None:
    with pytest.raises(Refused, match="67 days"):
        call(cluster, "objects", "gc", "--older-than=30d", "--yes")


def test_no_object_is_removed_while_a_topic_is_kept_for_ever(
    cluster: Storing, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = cluster.admin.configs
    forever = {"t.trajectories": {"retention.ms": "-1"}}
    cluster.admin.configs = lambda topics: configs(topics) | forever

    with pytest.raises(Refused, match=r"^t\.trajectories "):
        call(cluster, "objects", "gc", "--older-than=100d", "--yes")
    call(cluster, "objects", "list")
    assert "keeps its records for ever" in capsys.readouterr().out


def test_the_list_shows_size_age_and_need_of_objects(
    cluster: Storing, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster, b"x" * 2_000_000, 1)
    put(cluster, b"y" * 1_000_000, 80)

    call(cluster, "objects", "list")

    said = capsys.readouterr().out
    assert "2 objects, 3.0 MB in" in said
    assert "from 1.0 to 80.0 days old" in said
    assert "1 of them are no longer needed" in said


def test_a_missing_store_is_refused_with_its_setting(cluster: Storing) -> None:
    cluster.objects = None

    with pytest.raises(Refused, match="ROLLCALL_OBJECTS__URL"):
        call(cluster, "objects", "list")


@pytest.mark.parametrize(
    ("servers", "url", "where"),
    [
        ("127.0.0.1:9092", "", "services/objects"),
        ("localhost:9092,127.0.0.1:9093", "", "services/objects"),
        ("kafka-1:9092", "", None),
        ("kafka-1:9092", "memory://bucket/objects", "memory://bucket/objects"),
    ],
)
def test_heavy_records_lie_in_a_store_that_every_worker_reaches(
    tmp_path: Path, servers: str, url: str, where: str | None
) -> None:
    from rollcall.compose.cluster import Cluster

    settings = Settings(state_dir=tmp_path, objects=ObjectSettings(url=url))

    store = Cluster(servers, "http://registry", settings).objects

    if where is None:
        assert store is None
    else:
        assert store is not None
        assert store.url.endswith(where)
