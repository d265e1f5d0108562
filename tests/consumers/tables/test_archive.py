"""The archive group on the in-memory log: every span once, at any kill."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.tables.archive import HOLD_S, ArchiveRole
from rollcall.consumers.tables.parquet import ParquetWriters
from rollcall.schemas.errors import JournalGone, Unfit
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, StepTaken, Task, Trajectory
from tests.support.rig import Rig, role_of, source_of
from tests.support.tiers import examples

SPAN = 3
GROUP = "t.archive"
Told = Counter[tuple[str, int, int]]
"""How often each record is in the tables, by topic, partition and offset."""


class Killed(Exception):
    """The process is gone."""


def ended(number: int) -> Trajectory:
    steps = (StepTaken(0, "main", None, "hall", 0.0, True, False),)
    asked = RolloutRequest(f"r{number}", Task())
    return Trajectory(f"r{number}", 1, "finished", asked, (), (), steps, 0, 0, 0, 0, 3, 9, 100, 200)


def write(rig: Rig, count: int, partition: int = 0) -> None:
    for number in range(count):
        trajectory = ended(number)
        scored = ScoredTrajectory("s", trajectory, (), 1.0, rig.topics.trajectories, 0, number)
        rig.write(rig.topics.trajectories, "k", trajectory, partition)
        rig.write(rig.topics.scored, "k", scored, partition)


def archive(
    rig: Rig,
    directory: Path,
    name: str = "a1",
    make: type[ArchiveRole] = ArchiveRole,
    **options: Any,
) -> Loop:
    role = make(name, rig.log, rig.topics, directory, span=SPAN, clock=rig.clock)
    return rig.loop(role, rig.log.publisher(), GROUP, **options)


def told(directory: Path) -> Told:
    """Whole files only; a reader sees no others."""
    counts: Told = Counter()
    for table, topic in (("trajectories", "trajectories"), ("scores", "trajectories.scored")):
        for path in directory.glob(f"{table}/*/*.parquet"):
            for row in pq.ParquetFile(path).read().to_pylist():
                counts[topic, row["partition"], row["offset"]] += 1
    return counts


def records(count: int) -> Told:
    """Each of the first records, once."""
    topics = ("trajectories", "trajectories.scored")
    return Counter({(topic, 0, n): 1 for topic in topics for n in range(count)})


def spans(count: int) -> Told:
    """Each record of the full spans among this many records, once."""
    full = count // SPAN * SPAN
    return Counter(
        {(t, 0, n): 1 for t in ("trajectories", "trajectories.scored") for n in range(full)}
    )


def test_only_full_spans_are_written_and_committed(rig: Rig, tmp_path: Path) -> None:
    loop = archive(rig, tmp_path)
    write(rig, 8)

    rig.settle(loop)
    rig.commit(loop)

    assert told(tmp_path) == spans(8)
    assert rig.committed(GROUP, rig.topics.trajectories) == 6
    names = sorted(path.name for path in tmp_path.glob("turns/day=*/*.parquet"))
    assert names == ["t.trajectories-0-0-0-3.parquet", "t.trajectories-0-0-3-6.parquet"]


def test_a_stopping_worker_leaves_no_temporary_files(rig: Rig, tmp_path: Path) -> None:
    loop = archive(rig, tmp_path)
    write(rig, 4)
    rig.settle(loop)

    loop.stop()

    assert [path for path in tmp_path.rglob("*") if path.name.startswith(".")] == []
    other = archive(rig, tmp_path, "a2")
    write(rig, 2)
    rig.settle(other)
    assert told(tmp_path) == spans(6)


def test_a_partial_span_is_written_after_an_hour_or_on_leaving(rig: Rig, tmp_path: Path) -> None:
    loop = archive(rig, tmp_path)
    write(rig, 1)
    rig.settle(loop)
    assert told(tmp_path) == Counter()

    rig.clock.pass_by(HOLD_S)
    rig.settle(loop)
    assert told(tmp_path) == records(1)
    source_of(loop).kill()
    heir = archive(rig, tmp_path, "a2")
    write(rig, 1)
    rig.settle(heir)
    assert told(tmp_path) == records(1)
    heir.stop()

    assert told(tmp_path) == records(2)
    assert rig.committed(GROUP, rig.topics.trajectories) == 2


DOINGS = st.lists(
    st.sampled_from(["write", "write 4", "settle", "hour", "day", "commit", "leave", "kill"]),
    max_size=25,
)


@settings(max_examples=examples(15), deadline=None)
@given(DOINGS)
def test_every_record_is_in_one_file_in_any_span_history(doings: list[str]) -> None:
    with TemporaryDirectory() as folder:
        rig, directory, count = Rig(), Path(folder), 0
        loop = archive(rig, directory)
        for number, doing in enumerate(doings):
            if doing.startswith("write"):
                write(rig, added := 4 if "4" in doing else 1)
                count += added
            elif doing in ("hour", "day"):
                rig.clock.pass_by(HOLD_S if doing == "hour" else 86_400.0)
            elif doing in ("leave", "kill"):
                loop.stop() if doing == "leave" else source_of(loop).kill()
                loop = archive(rig, directory, f"a{number}")
            elif doing == "commit":
                rig.commit(loop)
            if doing != "write":
                rig.settle(loop)
            assert max(told(directory).values(), default=1) == 1
        rig.settle(loop)
        loop.stop()

        assert told(directory) == records(count)


def test_a_span_written_by_another_worker_ends_this_one(rig: Rig, tmp_path: Path) -> None:
    loop = archive(rig, tmp_path)
    write(rig, 1)
    rig.settle(loop)
    source_of(loop).expel()
    other = archive(rig, tmp_path, "a2")
    write(rig, 1)
    rig.settle(other)
    for each in role_of(loop).spans.copy():
        role_of(loop)._close(each)

    with pytest.raises(Unfit, match="another archive worker wrote the span from"):
        other.stop()
    source_of(other).kill()
    heir = archive(rig, tmp_path, "a3")
    rig.settle(heir)
    heir.stop()
    assert told(tmp_path) == records(2)


def test_a_hole_at_the_end_of_a_span_also_closes_it(rig: Rig, tmp_path: Path) -> None:
    loop = archive(rig, tmp_path)
    write(rig, 2)
    rig.log.hole(rig.topics.trajectories, 0)

    rig.settle(loop)

    rows = told(tmp_path)
    assert {offset for topic, _, offset in rows if topic == "trajectories"} == {0, 1}


def test_an_unreadable_record_is_buried_and_its_span_written(rig: Rig, tmp_path: Path) -> None:
    loop = archive(rig, tmp_path)
    rig.log.append(rig.topics.trajectories, b"k", b"rubbish", 0)
    write(rig, 3)

    rig.settle(loop)
    rig.commit(loop)

    assert {at[2] for at in told(tmp_path) if at[0] == "trajectories"} == {1, 2}
    assert len(rig.log.all(rig.topics.dead_letters)) == 1
    assert rig.committed(GROUP, rig.topics.trajectories) == 3


def test_a_recreated_topic_has_its_own_files(rig: Rig, tmp_path: Path) -> None:
    loop = archive(rig, tmp_path)
    write(rig, 3)
    rig.settle(loop)
    loop.stop()
    for topic in (rig.topics.trajectories, rig.topics.scored):
        rig.log.recreate(topic)
    write(rig, 3)

    rig.settle(archive(rig, tmp_path))

    assert told(tmp_path) == Counter({at: 2 for at in spans(3)})


class Kafkas(MemoryLog):
    """Its topics have ids such as Kafka's."""

    def topic_id(self, topic: str) -> str:
        return f"yJ6ljan/R32oVOB+{super().topic_id(topic)}Q=="


def test_a_topic_id_is_escaped_in_file_names(tmp_path: Path) -> None:
    rig = Rig(make_log=Kafkas)
    loop = archive(rig, tmp_path, "host/archive-1")
    write(rig, 3)

    rig.settle(loop)

    assert told(tmp_path) == spans(3)
    [path] = tmp_path.glob("scores/day=*/*")
    assert path.name == "t.trajectories.scored-yJ6ljan_R32oVOB-0Q==-0-0-3.parquet"


def test_records_lost_to_retention_before_archiving_are_a_named_error(
    rig: Rig, tmp_path: Path
) -> None:
    loop = archive(rig, tmp_path)
    write(rig, 4)
    rig.settle(loop)
    rig.commit(loop)
    source_of(loop).kill()
    write(rig, 4)
    rig.log.delete_before(rig.topics.trajectories, 0, 5)

    refusing = archive(rig, tmp_path)
    with pytest.raises(JournalGone, match="accept-truncation"):
        rig.settle(refusing)
    source_of(refusing).kill()
    rig.settle(archive(rig, tmp_path, accept_truncation=True))

    assert {at[2] for at in told(tmp_path) if at[0] == "trajectories"} == {0, 1, 2, 5}


Kill = Callable[[str], None]


def dying(kill: Kill) -> type[ArchiveRole]:
    """An archive worker that calls `kill` with the name of every step it reaches."""

    class Dying(ArchiveRole):
        def handle(self, batch: Any) -> None:
            for record, message in batch:
                kill("before a record")
                super().handle([(record, message)])
                kill("after a record")

        def _close(self, tp: Any) -> None:
            span = self.spans[tp]
            span.writers = DyingWriters(span.writers)
            super()._close(tp)
            kill("closed, not committed")

    class DyingWriters(ParquetWriters):
        def __init__(self, writers: ParquetWriters) -> None:
            vars(self).update(vars(writers))

        def _appear(self, hidden: Path, path: Path) -> None:
            kill("written, not renamed")
            super()._appear(hidden, path)
            kill("renamed")

    return Dying


@pytest.mark.parametrize("name", ["the same name", "another name"])
def test_a_kill_at_any_step_neither_loses_nor_doubles_a_row(tmp_path: Path, name: str) -> None:
    steps: Counter[str] = Counter()
    number, finished = 0, False
    while not finished:
        finished = survived(tmp_path / str(number), number, name, steps)
        number += 1

    assert min(steps.values()) >= 2, steps
    assert len(steps) == 5, steps


def survived(directory: Path, at: int, name: str, seen: Counter[str]) -> bool:
    """Kill a worker at its n-th step and start another; True if the first survived all steps."""
    rig, left, killed = Rig(), [at], False

    def kill(step: str) -> None:
        if left[0] == 0:
            seen[step] += 1
            raise Killed(step)
        left[0] -= 1

    first = archive(rig, directory, make=dying(kill))
    write(rig, 5)
    try:
        rig.settle(first)
        rig.commit(first)
    except Killed:
        killed = True
    before = {path: path.read_bytes() for path in directory.glob("*/*/*.parquet")}
    source_of(first).kill()
    second = archive(rig, directory, "a1" if name == "the same name" else "a2")
    write(rig, 2)
    rig.settle(second)
    rig.commit(second)

    assert told(directory) == spans(7)
    assert all(path.read_bytes() == value for path, value in before.items())
    assert rig.committed(GROUP, rig.topics.scored) == 6
    if name == "the same name":
        hidden = [path for path in directory.rglob(".*") if "-0-3." in path.name]
        assert hidden == []
    return not killed


def test_a_zombie_writes_the_same_files(rig: Rig, tmp_path: Path) -> None:
    zombie = archive(rig, tmp_path, "a1")
    write(rig, 2)
    rig.settle(zombie)
    source_of(zombie).expel()
    other = archive(rig, tmp_path, "a2")
    write(rig, 1)
    rig.settle(other)
    rig.commit(other)
    first = {path: path.read_bytes() for path in tmp_path.glob("*/*/*.parquet")}

    rig.settle(zombie)

    assert role_of(zombie).counts["spans"] == 2
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*/*.parquet")} == first
    assert told(tmp_path) == spans(3)
