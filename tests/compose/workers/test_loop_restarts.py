"""An archive without its disk waits in its process, and no record is buried for it."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rollcall.compose.workers.shutdown import run_with_restarts
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.tables.archive import ArchiveRole
from rollcall.consumers.tables.parquet import ParquetWriters
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.messages import RolloutRequest, Task, Trajectory
from tests.support.rig import Rig

RECORDS = 12
STEPS = {
    "write": "_write", "finish": "finish", "appear": "_appear", "trajectory": "trajectory",
}  # fmt: skip


class Away:
    """Raises at the given step of the writers while the disk is away; counts its errors."""

    def __init__(self, patch: pytest.MonkeyPatch, step: str, error: Exception) -> None:
        self.times = 0
        self.error = error
        real = getattr(ParquetWriters, STEPS[step])

        def call(writers: ParquetWriters, *args: object) -> object:
            if self.times:
                self.times -= 1
                raise self.error
            return real(writers, *args)

        patch.setattr(ParquetWriters, STEPS[step], call)


def archived(directory: Path) -> Counter[int]:
    rows = (
        pq.ParquetFile(p).read().to_pylist() for p in directory.glob("trajectories/*/*.parquet")
    )
    return Counter(row["offset"] for each in rows for row in each)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [OSError(28, "no space"), TimeoutError("nfs")])
def test_archive_waits_for_its_disk_and_writes_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    rig = Rig()
    away = Away(monkeypatch, step, error)
    for number in range(RECORDS):
        asked = RolloutRequest(f"r{number}", Task())
        ended = Trajectory(f"r{number}", 1, "finished", asked, (), (), (), 0, 0, 0, 0, 3, 9, 1, 2)
        rig.write(rig.topics.trajectories, "k", ended, 0)
    made: list[Loop] = []
    pauses: list[float] = []
    away.times = 10

    def begin() -> Loop:
        role = ArchiveRole("a1", rig.log, rig.topics, tmp_path, span=3, clock=rig.clock)
        made.append(rig.loop(role, rig.log.publisher(), "t.archive"))
        return made[-1]

    def stopping() -> bool:
        rig.clock.pass_by(0.2)
        return rig.committed("t.archive", rig.topics.trajectories) == RECORDS

    run_with_restarts(begin, stopping, pause=pauses.append)

    assert len(pauses) == 10
    assert archived(tmp_path) == Counter(range(RECORDS))
    assert rig.log.all(rig.topics.dead_letters) == []
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(".")] == []


def test_other_errors_end_the_worker() -> None:
    def begin() -> Loop:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_with_restarts(begin, lambda: False)


def test_stop_request_ends_the_wait_for_an_unavailable_service() -> None:
    asked: list[float] = []

    def begin() -> Loop:
        msg = "no disk"
        raise Unavailable(msg)

    run_with_restarts(begin, lambda: len(asked) == 3, pause=asked.append)

    assert len(asked) == 3
