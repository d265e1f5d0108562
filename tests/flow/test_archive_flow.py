"""The archive group, export and query with real processes on the broker."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rollcall.compose.cluster import Cluster
from rollcall.consumers.audit.audit import audit
from tests.support.command_line import addresses, refused, rollcall
from tests.support.crew import Crew, Seen, lake_requests, publish
from tests.support.waiting import until

pytestmark = pytest.mark.broker
ROLLOUTS = 32
SPAN = 4


def archived(directory: Path) -> dict[tuple[int, int], int]:
    """How often each trajectory record is in whole files, by partition and offset."""
    found: dict[tuple[int, int], int] = {}
    for path in directory.glob("trajectories/*/*.parquet"):
        for row in pq.ParquetFile(path).read(columns=["partition", "offset"]).to_pylist():
            place = row["partition"], row["offset"]
            found[place] = found.get(place, 0) + 1
    return found


def test_archive_and_export_count_the_same_rollouts_as_verify(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    # Given a run whose archive worker is killed while it goes on
    cluster = make_cluster("p")
    crew, seen = Crew(cluster, tmp_path), Seen(cluster)
    history = tmp_path / "history"
    keep = ("--dir", str(history), "--span", str(SPAN))
    crew.start_all()
    crew.start("archive", 1, *keep)
    try:
        publish(cluster, lake_requests(ROLLOUTS))
        until(lambda: any(archived(history)), 90, lambda: f"{seen.count()}; {crew.dead()}")
        crew.kill("archive-1")
        until(lambda: seen.count() == ROLLOUTS, 90, lambda: f"{seen.count()}; {crew.dead()}")
        crew.start("archive", 1, *keep)
        bounds = cluster.log.bounds(cluster.topics.trajectories)
        full = {(n, at) for n, (_, end) in bounds.items() for at in range(end // SPAN * SPAN)}
        every = {(n, at) for n, (_, end) in bounds.items() for at in range(end)}
        until(lambda: set(archived(history)) >= full, 60, lambda: crew.words("archive-1"))
        crew.leave("archive-1")
    finally:
        crew.close()

    # Then every record is there once, the tail since the worker left, and the export adds none
    assert archived(history) == dict.fromkeys(every, 1)
    exported = rollcall(
        "export", "--parquet", "out", "--rate", "0", "--json", cwd=tmp_path, **addresses(cluster)
    )
    assert exported.returncode == 0, exported.stderr
    rows = json.loads(exported.stdout)["rows"]
    report = audit(cluster, drained=True)
    assert report.ok
    assert (rows["trajectories"], rows["scores"]) == (report.ended, report.ended)
    both = ("--dir", "out", "--dir", str(history))
    sql = "select count(*) as n, count(total) as scored, min(partition) >= 0 as sane"
    assert asked(tmp_path, f"{sql} from trajectories", *both) == [
        {"n": report.ended, "scored": report.ended, "sane": True}
    ]
    assert asked(tmp_path, "select count(*) as n from turns", *both) == [{"n": rows["turns"]}]

    # And invalid arguments are refused in one line
    again = rollcall("export", "--parquet", "out", cwd=tmp_path, **addresses(cluster))
    assert "already and not empty" in refused(again)
    wrong = rollcall("query", "select nope from turns", *both, cwd=tmp_path)
    assert "line 1, column 8 ('nope')" in refused(wrong)
    assert "rollcall export --parquet" in refused(rollcall("query", "select 1", cwd=tmp_path))


def asked(folder: Path, sql: str, *words: str) -> list[dict[str, Any]]:
    done = rollcall("query", sql, "--json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
