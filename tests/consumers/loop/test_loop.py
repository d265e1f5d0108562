"""The loop on the in-memory log: commits, repetitions, dead letters."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.finished_offsets import METADATA_BYTES, above_commit, finished_above
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.role import SPAN_RECORDS
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import DeadLetterStorm, DeliveryFailed, WireError
from rollcall.schemas.messages import (
    CallFailed,
    Control,
    Event,
    ModelAnswered,
    Sampling,
    ScoredTrajectory,
    Trajectory,
)
from tests.support.journals import request
from tests.support.rig import InHand, Rig, role_of, source_of

TOPIC, ANSWERS = "t.control", "t.train.steps"


def working(rig: Rig, group: str = "g", **options: Any) -> tuple[Loop, InHand]:
    publisher = rig.log.publisher()
    role = InHand(TOPIC, publisher, ANSWERS)
    return rig.loop(role, publisher, group, **options), role


def words(rig: Rig, count: int) -> None:
    for n in range(count):
        rig.order("pause", reason=str(n))


def bury_bytes(rig: Rig, value: bytes | None = b"no magic", key: bytes | None = b"k") -> None:
    rig.log.append(TOPIC, key, value, 0, [("h", b"1")])


# Sending


def test_handled_records_are_pushed_before_anything_else(rig: Rig) -> None:
    words(rig, 2)
    loop, role = working(rig)
    done: list[str] = []
    publisher: Any = loop.publishers[0]
    publisher.push = lambda: done.append(f"pushed {len(role.hand)}")
    role.tick = lambda: done.append("ticked")  # type: ignore[method-assign]

    loop.turn(0.0)
    loop.turn(0.0)

    assert done == ["pushed 2", "ticked", "ticked"]


# Commits


def test_a_commit_is_the_next_offset_to_read(rig: Rig) -> None:
    words(rig, 3)
    loop, role = working(rig)
    loop.turn(0.0)

    role.close()
    rig.commit(loop)
    rig.commit(loop)

    assert rig.committed("g", TOPIC) == 3


def test_a_commit_stops_before_the_first_unfinished_record(rig: Rig) -> None:
    words(rig, 5)
    loop, role = working(rig)
    loop.turn(0.0)

    role.close(0, 1, 3, 4)
    loop.publishers[0].poll()
    rig.commit(loop)
    assert rig.committed("g", TOPIC) == 2
    role.close(2)
    rig.commit(loop)
    rig.commit(loop)

    assert rig.committed("g", TOPIC) == 5


def test_a_commit_waits_for_the_acks_of_every_answer(rig: Rig) -> None:
    words(rig, 2)
    loop, role = working(rig)
    loop.turn(0.0)
    loop.publishers[0].hold_acks = True  # type: ignore[attr-defined]

    role.close()
    for _ in range(3):
        rig.commit(loop)
    assert rig.committed("g", TOPIC) == 0
    loop.publishers[0].hold_acks = False  # type: ignore[attr-defined]
    rig.commit(loop)

    assert rig.committed("g", TOPIC) == 2


def test_commits_are_made_once_a_second_and_only_after_progress(rig: Rig) -> None:
    words(rig, 1)
    loop, role = working(rig)
    loop.turn(0.0)
    role.close()
    loop.turn(0.0)
    assert rig.committed("g", TOPIC) == 0

    rig.commit(loop)
    rig.log.group("g").committed.clear()
    rig.commit(loop)

    assert rig.committed("g", TOPIC) is None


def test_holes_at_the_end_are_committed(rig: Rig) -> None:
    words(rig, 1)
    loop, role = working(rig)
    loop.turn(0.0)
    role.close()
    loop.publishers[0].poll()
    rig.commit(loop)
    rig.log.hole(TOPIC, 0)

    for _ in range(3):
        rig.commit(loop)

    assert rig.committed("g", TOPIC) == 2


def test_only_unfinished_records_are_repeated_after_a_restart(rig: Rig) -> None:
    words(rig, 6)
    loop, role = working(rig)
    loop.turn(0.0)
    role.close(1, 2, 5)
    loop.publishers[0].poll()
    rig.commit(loop)

    source_of(loop).kill()
    loop, role = working(rig)
    loop.turn(0.0)

    assert [offset for _, offset in role.seen] == [0, 3, 4]
    assert loop.counts["finished_before"] == 3
    role.close()
    loop.publishers[0].poll()
    rig.commit(loop)
    assert rig.committed("g", TOPIC) == 6


def test_a_stopping_loop_finishes_its_work_and_commits(rig: Rig) -> None:
    class Slow(InHand):
        ticks = 0

        def tick(self) -> None:
            self.ticks += 1
            if self.ticks > 3:
                self.close()

    words(rig, 4)
    publisher = rig.log.publisher()
    loop = rig.loop(Slow(TOPIC, publisher, ANSWERS), publisher, "g")
    loop.turn(0.0)

    loop.stop()

    assert rig.committed("g", TOPIC) == 4
    assert rig.log.group("g").members == []


def test_a_loop_runs_until_it_is_stopped(rig: Rig) -> None:
    words(rig, 2)
    loop, role = working(rig)
    turns = iter([False, False, True])

    loop.run(lambda: role.close() or next(turns))  # type: ignore[func-returns-value]

    assert (len(role.seen), rig.committed("g", TOPIC)) == (2, 2)


def test_a_wedged_loop_ends_its_process_with_a_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.wedged_process"], capture_output=True, timeout=60
    )

    assert ended.returncode == 1
    assert b"Timeout (0:00:05" in ended.stderr
    assert b"in hang" in ended.stderr


def test_a_failed_delivery_stops_the_worker_before_the_commit(rig: Rig) -> None:
    words(rig, 1)
    loop, role = working(rig)
    loop.turn(0.0)
    role.close()
    rig.clock.pass_by(2.0)

    class GivesUp:
        def poll(self) -> None:
            raise DeliveryFailed

    loop.publishers[0] = GivesUp()  # type: ignore[assignment]
    with pytest.raises(DeliveryFailed):
        loop.turn(0.0)

    assert rig.committed("g", TOPIC) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 2**32))
def test_only_unfinished_records_are_repeated_in_any_completion_order(
    finished: list[bool], seed: int
) -> None:
    rig = Rig()
    words(rig, len(finished))
    loop, role = working(rig)
    loop.turn(0.0)
    done = [n for n, each in enumerate(finished) if each]

    for offset in Random(seed).sample(done, len(done)):
        role.close(offset)
    loop.publishers[0].poll()
    rig.commit(loop)
    source_of(loop).kill()
    loop, role = working(rig)
    loop.turn(0.0)

    assert [offset for _, offset in role.seen] == [n for n, each in enumerate(finished) if not each]


# Finished offsets in commit metadata


def progress_with(
    offsets: Sequence[int], finished: Sequence[int], base: int = 0
) -> PartitionProgress:
    progress = PartitionProgress("t", 0, base, base, 0)
    done = set(finished)
    for offset in offsets:
        record = Record("t", 0, offset, None, None, 0)
        record.closed = offset in done
        progress.taken.append(record)
    return progress


@given(st.sets(st.integers(0, 3000)), st.integers(0, 10**9))
def test_finished_offsets_above_the_commit_are_read_back_as_written(
    finished: set[int], base: int
) -> None:
    offsets = [base + n for n in range(3001)]
    progress = progress_with(offsets, [base + n for n in finished], base)

    word = above_commit(progress)

    assert finished_above(word, base) == {base + n for n in finished}
    assert len(word) <= METADATA_BYTES


def test_commit_metadata_never_exceeds_the_brokers_limit() -> None:
    dice = random.Random(1)
    offsets = sorted(dice.sample(range(4_000_000), SPAN_RECORDS + 500))  # as of a compacted topic
    finished = offsets[1:]

    word = above_commit(progress_with(offsets, finished))
    read = finished_above(word, 0)

    assert METADATA_BYTES // 2 < len(word) <= METADATA_BYTES
    assert len(finished) // 4 < len(read) < len(finished)
    assert read == set(finished[: len(read)])


def test_the_densest_commit_metadata_of_a_full_span_fits() -> None:
    dice = random.Random(2)
    offsets = range(SPAN_RECORDS + 500)
    finished = [offset for offset in offsets if dice.random() < 0.5]

    word = above_commit(progress_with(offsets, finished))

    assert finished_above(word, 0) == set(finished)
    assert len(word) < METADATA_BYTES // 4


@pytest.mark.parametrize("word", ["", "1;", "2;AAAA", "1;not base64", "1;AAAA", "by hand"])
def test_foreign_commit_metadata_lists_no_finished_offsets(word: str) -> None:
    assert finished_above(word, 7) == frozenset()


# Unreadable bytes


def test_an_unreadable_record_is_buried_unchanged(rig: Rig) -> None:
    words(rig, 1)
    bury_bytes(rig, b"\x00\x00\x00\x00\x63rest")
    bury_bytes(rig, None, None)
    words(rig, 1)
    loop, role = working(rig)

    loop.turn(0.0)

    assert [offset for _, offset in role.seen] == [0, 3]
    unknown, null = rig.log.all("t.dead.letters")
    assert (unknown.key, unknown.value) == (b"k", b"\x00\x00\x00\x00\x63rest")
    assert (null.key, null.value) == (None, None)
    headers = dict(unknown.headers or [])
    assert headers["h"] == b"1"
    assert headers["dlq_topic"] == TOPIC.encode()
    assert (headers["dlq_partition"], headers["dlq_offset"]) == (b"0", b"1")
    assert (headers["dlq_group"], headers["dlq_error"]) == (b"g", b"UnknownSchema")


def test_a_buried_record_counts_once_its_dead_letter_is_acked(rig: Rig) -> None:
    bury_bytes(rig)
    loop, _ = working(rig)
    loop.publishers[0].hold_acks = True  # type: ignore[attr-defined]
    loop.turn(0.0)

    rig.commit(loop)
    assert rig.committed("g", TOPIC) == 0
    loop.publishers[0].hold_acks = False  # type: ignore[attr-defined]
    rig.commit(loop)

    assert rig.committed("g", TOPIC) == 1


def test_unreadable_records_keep_their_order_among_others(rig: Rig) -> None:
    words(rig, 2)
    bury_bytes(rig)
    words(rig, 1)
    order: list[int] = []

    class Orders(InHand):
        def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
            order.extend(record.offset for record, _ in batch)

        def unreadable(self, record: Record, error: WireError) -> None:
            order.append(record.offset)

    rig.loop(Orders(TOPIC), rig.log.publisher(), "g").turn(0.0)

    assert order == [0, 1, 2, 3]


def test_a_storm_of_unreadable_records_stops_the_worker(rig: Rig) -> None:
    for _ in range(60):
        bury_bytes(rig)
    loop, _ = working(rig)

    with pytest.raises(DeadLetterStorm, match="51 unreadable"):
        loop.turn(0.0)

    assert len(rig.log.all("t.dead.letters")) == 51
    assert rig.committed("g", TOPIC) == 0


def test_a_storm_names_the_remedy_and_leaves_no_dead_letter_pending(rig: Rig) -> None:
    for _ in range(60):
        bury_bytes(rig)
    loop, _ = working(rig)

    with pytest.raises(DeadLetterStorm, match=f"`rollcall dlq list --source {TOPIC}`"):
        loop.turn(0.0)

    assert loop.publishers[0].waiting() == 0


def rain(rig: Rig, loop: Loop, at_a_time: int) -> None:
    """Unreadable records, and a commit between them."""
    for _ in range(60):
        for _ in range(at_a_time):
            bury_bytes(rig)
        rig.commit(loop)


@pytest.mark.parametrize("at_a_time", [1, 60])
def test_a_storm_stops_every_restart_at_the_same_offset(rig: Rig, at_a_time: int) -> None:
    # Given good records, then a storm that comes at once, or slowly between commits
    words(rig, 3)
    loop, role = working(rig)
    loop.turn(0.0)
    role.close()
    rig.commit(loop)
    rig.commit(loop)

    # When the worker is started again and again, then it stops each time where it did before
    for _ in range(3):
        with pytest.raises(DeadLetterStorm):
            rain(rig, loop, at_a_time)
        assert rig.committed("g", TOPIC) in (3, 4)
        source_of(loop).kill()
        loop, _ = working(rig)


def test_single_unreadable_records_block_no_commit(rig: Rig) -> None:
    for _ in range(3):
        bury_bytes(rig)
    loop, _ = working(rig)
    loop.turn(0.0)
    rig.commit(loop)
    assert rig.committed("g", TOPIC) == 0, "this may become a storm"

    rig.clock.pass_by(61.0)
    rig.commit(loop)

    assert rig.committed("g", TOPIC) == 3


def test_a_patient_stop_waits_for_all_work_in_flight(rig: Rig) -> None:
    words(rig, 2)
    loop, role = working(rig)
    loop.turn(0.0)

    def patient() -> bool:
        rig.clock.pass_by(30.0)
        if rig.clock.now > 1_700_000_300.0:
            role.close()
        return True

    loop.stop(0.0, patient=patient)

    assert rig.committed("g", TOPIC) == 2


def test_fifty_unreadable_records_in_a_row_are_no_storm(rig: Rig) -> None:
    for _ in range(2):
        for _ in range(50):
            bury_bytes(rig)
        words(rig, 1)
    loop, _ = working(rig)

    for _ in range(3):
        loop.turn(0.0)

    assert len(rig.log.all("t.dead.letters")) == 100


# A turn's time


class Slow(InHand):
    """Takes its time for every record and closes it at once."""

    def __init__(self, rig: Rig, costs_s: Callable[[int], float], **given: Any) -> None:
        super().__init__(TOPIC, **given)
        self.rig, self.costs_s = rig, costs_s

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        for record, word in batch:
            self.rig.clock.pass_by(self.costs_s(record.offset))
            super().handle([(record, word)])
            self.close()


@pytest.mark.parametrize("dear_from", [0, 300])
def test_a_turn_is_bounded_in_time_at_any_record_cost(rig: Rig, dear_from: int) -> None:
    # Given records of which each costs half a second, or only those after many cheap ones
    words(rig, 500)
    publisher = rig.log.publisher()
    dear = Slow(rig, lambda n: 0.5 if n >= dear_from else 0.0, publisher=publisher, answers=ANSWERS)
    loop = rig.loop(dear, publisher, "g")

    # When all are taken, then the loop comes round in between, and commits
    committed, longest_s = 0, 0.0
    while len(dear.seen) < 500:
        began = rig.clock()
        loop.turn(0.0)
        longest_s = max(longest_s, rig.clock() - began)
        now_committed = rig.committed("g", TOPIC) or 0
        assert len(dear.seen) - now_committed <= dear_from + 3, "work that a kill would repeat"
        committed = now_committed
    rig.commit(loop)

    assert longest_s <= 1.0
    assert committed >= 495
    assert [offset for _, offset in dear.seen] == list(range(500))
    assert len(rig.log.all(ANSWERS)) == 500


def test_costlier_records_are_polled_in_smaller_numbers(rig: Rig) -> None:
    words(rig, 2000)
    publisher = rig.log.publisher()
    loop = rig.loop(Slow(rig, lambda n: 0.25), publisher, "g")

    for _ in range(50):
        loop.turn(0.0)

    progress = loop.partitions[TOPIC, 0]
    assert progress.next_offset + len(progress.taken) < 600


def test_costly_records_of_one_partition_do_not_block_another() -> None:
    rig = Rig(partitions=2)
    topic = rig.topics.steps
    for partition in (0, 1):
        for _ in range(50):
            rig.write(topic, "k", Control("pause"), partition)
    role = Slow(rig, lambda n: 0.5)
    role.topics = [topic]
    loop = rig.loop(role, rig.log.publisher(), "g")

    for _ in range(10):
        loop.turn(0.0)

    assert {partition for partition, _ in role.seen} == {0, 1}


@pytest.mark.parametrize("kill_every", [1000, 40])
def test_a_kill_during_slow_scoring_repeats_little(kill_every: int) -> None:
    # Given many trajectories, and workers that are not killed, or now and then
    rig, kills = Rig(), 0
    for n in range(100):
        told = Trajectory(
            f"r{n}", 1, "finished", request(f"r{n}"), (), (), (), *[0] * 4, 0, n, 0, 0
        )
        rig.write(rig.topics.trajectories, "r", told, 0)

    def scoring() -> Loop:
        loop = rig.rewards()
        score = role_of(loop).score
        role_of(loop).score = lambda *given: (rig.clock.pass_by(0.5), score(*given))[1]
        return loop

    def scored() -> list[str]:
        return [s.trajectory.rollout_id for s in rig.read(rig.topics.scored, ScoredTrajectory)]

    # When all are scored
    loop = scoring()
    while len(set(scored())) < 100:
        loop.turn(0.0)
        if len(scored()) // kill_every > kills:
            kills += 1
            source_of(loop).kill()
            loop = scoring()

    # Then a kill repeats only the work since the last commit
    assert len(scored()) <= 100 + 3 * kills


def test_a_twenty_second_decode_step_takes_its_own_turn() -> None:
    # Given a model whose every step takes so long, with more calls than it batches
    rig = Rig()
    engine = ScriptedEngine("p", lambda call: "yes")
    step = engine.step
    engine.step = lambda: (rig.clock.pass_by(20.0), step())[1]  # type: ignore[method-assign]
    agents, models = rig.agents(), rig.models(engine)
    for n in range(30):
        rig.ask(request(f"r{n}", "tests.support.programs:asks"))
    rig.settle(agents)

    # When it serves them, then no turn holds more than one step
    while models.role.in_flight() or len(rig.trajectories()) < 30:
        began = rig.clock()
        models.turn(0.0)
        assert rig.clock() - began <= 20.5
        agents.turn(0.0)

    assert len(rig.events(ModelAnswered)) == 30


# The registry


def test_records_wait_unburied_during_a_registry_outage(rig: Rig) -> None:
    words(rig, 3)
    rig.registry.away = True
    loop, role = working(rig)

    for _ in range(5):
        rig.commit(loop)
    assert (role.seen, rig.committed("g", TOPIC)) == ([], 0)
    assert loop.partitions[TOPIC, 0].paused
    words(rig, 2)
    rig.registry.away = False
    for _ in range(3):
        rig.commit(loop)

    assert [offset for _, offset in role.seen] == [0, 1, 2, 3, 4]
    assert not loop.partitions[TOPIC, 0].paused
    assert rig.log.all("t.dead.letters") == []


def test_records_with_known_schemas_are_not_delayed_by_the_outage(rig: Rig) -> None:
    """Known schemas stay known, so only a new one has to wait; order is kept."""
    words(rig, 1)
    loop, role = working(rig)
    loop.turn(0.0)
    known = rig.codec.encode(TOPIC, Control("pause"))

    rig.registry.away = True
    rig.log.append(TOPIC, None, b"\0\0\0\0\x02" + known[5:], 0)
    rig.log.append(TOPIC, None, known, 0)
    loop.turn(0.0)
    loop.turn(0.0)
    assert [offset for _, offset in role.seen] == [0]
    rig.registry.away = False
    for _ in range(3):
        rig.commit(loop)

    assert [offset for _, offset in role.seen] == [0, 2]
    assert len(rig.log.all("t.dead.letters")) == 1


def test_a_successor_reads_a_partition_lost_during_a_registry_outage(rig: Rig) -> None:
    words(rig, 2)
    rig.registry.away = True
    loop, _ = working(rig)
    loop.turn(0.0)

    source_of(loop).kill()
    rig.registry.away = False
    rig.clock.pass_by(1.0)
    heir, role = working(rig)
    heir.turn(0.0)

    assert len(role.seen) == 2


def test_a_partition_reaches_its_end_after_held_records_are_handed_over(rig: Rig) -> None:
    class Ends(InHand):
        ends: list[tuple[int, int]] = []  # noqa: RUF012

        def at_end(self, progress: PartitionProgress) -> None:
            self.ends.append((len(self.seen), progress.end))

    words(rig, 3)
    rig.log.hole(TOPIC, 0)
    rig.registry.away = True
    loop = rig.loop(role := Ends(TOPIC), rig.log.publisher(), "g")

    for _ in range(3):
        rig.commit(loop)
    assert (role.ends, rig.committed("g", TOPIC)) == ([], 0)
    rig.registry.away = False
    rig.commit(loop)

    assert role.ends[0] == (3, 4)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_takeover_during_a_registry_outage_loses_no_open_rollout(comes_back: bool) -> None:
    # Given open rollouts, and a successor without any schema yet
    rig = Rig()
    first = rig.agents("a1")
    for n in range(3):
        rig.ask(request(f"r{n}", "tests.support.programs:asks"))
    rig.settle(first)
    rig.commit(first)
    rig.commit(first)
    source_of(first).kill()
    rig.codec = Codec(rig.registry, clock=rig.clock)
    for topic, message in ((rig.topics.events, Event), (rig.topics.trajectories, Trajectory)):
        rig.codec.prepare(topic, message)
    heir = rig.agents("a2")

    # When it takes over while the registry is away, and outlives that or does not
    rig.registry.away = True
    for _ in range(3):
        rig.commit(heir)
    rig.registry.away = False
    if comes_back:
        rig.commit(heir)
    else:
        source_of(heir).kill()
        rig.clock.pass_by(1.0)
        heir = rig.agents("a3")

    # Then every rollout ends
    models = rig.models(ScriptedEngine("p", lambda call: "yes"))
    rig.settle(heir, models)
    assert sorted(t.rollout_id for t in rig.trajectories()) == ["r0", "r1", "r2"]
    assert {t.status for t in rig.trajectories()} == {"finished"}


# Partitions


def test_an_old_owner_does_not_commit_work_of_a_moved_partition() -> None:
    rig = Rig(partitions=2)
    topic = rig.topics.steps
    for partition in (0, 1):
        rig.write(topic, "k", Control("pause"), partition)
    roles = [InHand(topic), InHand(topic)]
    old = rig.loop(roles[0], rig.log.publisher(), "g")
    old.turn(0.0)

    new = rig.loop(roles[1], rig.log.publisher(), "g")
    old.turn(0.0)
    new.turn(0.0)
    roles[0].close()
    rig.commit(old, new)

    assert rig.committed("g", topic, 0) == 1
    assert rig.committed("g", topic, 1) == 0
    assert roles[1].seen == [(1, 0)]


def test_acked_records_are_committed_as_their_partition_leaves() -> None:
    rig = Rig(partitions=2)
    topic = rig.topics.steps
    for partition in (0, 1):
        for _ in range(2):
            rig.write(topic, "k", Control("pause"), partition)
    publisher = rig.log.publisher()
    role = InHand(topic, publisher, ANSWERS)
    old = rig.loop(role, publisher, "g")
    old.turn(0.0)
    role.close(0)

    new = rig.loop(heir := InHand(topic), rig.log.publisher(), "g")
    old.turn(0.0)
    new.turn(0.0)

    assert heir.seen == [(1, 1)]


def test_a_zombies_late_work_is_not_committed() -> None:
    rig = Rig()
    words(rig, 2)
    zombie, held = working(rig)
    zombie.turn(0.0)
    source_of(zombie).expel()
    heir, _ = working(rig)
    heir.turn(0.0)

    held.close()
    rig.commit(zombie)
    assert rig.committed("g", TOPIC) == 0
    source_of(zombie).rejoin()

    assert zombie.partitions == {}


def test_a_congested_partition_is_paused_and_resumed_at_half(rig: Rig) -> None:
    words(rig, SPAN_RECORDS + 500)
    loop, role = working(rig)

    for _ in range(10):
        loop.turn(0.0)
    assert loop.partitions[TOPIC, 0].paused
    assert len(role.seen) == SPAN_RECORDS + 500
    role.close(*range(SPAN_RECORDS // 2))
    for _ in range(2):
        rig.commit(loop)
    assert loop.partitions[TOPIC, 0].paused
    role.close(*range(SPAN_RECORDS // 2, SPAN_RECORDS // 2 + 500))
    for _ in range(2):
        rig.commit(loop)

    assert not loop.partitions[TOPIC, 0].paused


# Topics that change while we run


def asked(rig: Rig, agents: Loop, *more: Loop) -> None:
    rig.ask(request("r", "tests.support.programs:asks", sampling=Sampling(max_tokens=10_000)))
    rig.settle(agents, *more)


def ending(rig: Rig) -> list[tuple[str, str]]:
    return [(t.status, t.code) for t in rig.trajectories()]


def test_a_call_whose_topic_was_deleted_fails(rig: Rig) -> None:
    agents = rig.agents()
    agents.turn(0.0)
    # The client has not heard of it yet.
    role_of(agents).requests.checks._check_policy = lambda policy_id: None
    rig.log.delete(rig.topics.calls("p"))

    asked(rig, agents)

    assert [e.body.code for e in rig.events(CallFailed)] == ["unknown_policy"]
    assert ending(rig) == [("failed", "unknown_policy")]
    rig.commit(agents)
    rig.commit(agents)
    assert rig.committed("t.agents", rig.topics.events) == len(rig.log.all(rig.topics.events))


def test_a_step_above_a_lowered_size_limit_fails(rig: Rig) -> None:
    agents = rig.agents()
    rig.log.limit(rig.topics.steps, 50)

    rig.ask(request("r", "tests.support.programs:walks"))
    rig.settle(agents)

    assert [e.body.code for e in rig.events(CallFailed)] == ["too_large"]


def test_an_answer_above_a_lowered_size_limit_fails_its_call(rig: Rig) -> None:
    agents = rig.agents()
    models = rig.models(ScriptedEngine("p", lambda call: "x" * 5_000))
    rig.log.limit(rig.topics.events, 4_000)

    asked(rig, agents, models)

    assert [e.body.code for e in rig.events(CallFailed)] == ["too_large"]
    rig.commit(models)
    assert rig.committed("t.models.p", rig.topics.calls("p")) == 1


def test_a_trajectory_above_a_lowered_size_limit_is_written_bare(rig: Rig) -> None:
    models = rig.models(ScriptedEngine("p", lambda call: "x" * 5_000))
    rig.log.limit(rig.topics.trajectories, 4_000)

    asked(rig, rig.agents(), models)

    (trajectory,) = rig.trajectories()
    assert (trajectory.status, trajectory.code) == ("finished", "too_large")
    assert (trajectory.sequences, trajectory.request) == (None, None)


def test_a_score_above_a_lowered_size_limit_is_written_bare(rig: Rig) -> None:
    models = rig.models(ScriptedEngine("p", lambda call: "x" * 5_000))
    rig.log.limit(rig.topics.scored, 4_000)

    asked(rig, rig.agents(), models, rig.rewards())

    (scored,) = rig.read(rig.topics.scored, ScoredTrajectory)
    assert (scored.total, scored.trajectory.sequences) == (None, None)
    assert scored.reason.startswith("too_large: ")


def test_an_oversized_event_without_a_substitute_ends_the_worker(rig: Rig) -> None:
    agents = rig.agents()
    rig.log.limit(rig.topics.events, 10)

    with pytest.raises(DeliveryFailed, match=f"for {rig.topics.events} is above the limit"):
        asked(rig, agents)


def test_scattered_bad_records_are_no_storm(rig: Rig) -> None:
    for n in range(480):
        if n % 9 == 8:
            rig.log.append("t.control", None, b"bad", 0)
        else:
            rig.order("pause")
    rig.log.append("t.control", None, b"bad", 0)
    role = InHand("t.control")
    loop = rig.loop(role, rig.log.publisher(), "g")

    loop.turn(0.0)

    assert len(rig.log.all("t.dead.letters")) == 54


def test_a_refused_commit_is_retried(rig: Rig) -> None:
    rig.order("pause")
    role = InHand("t.control")
    loop = rig.loop(role, rig.log.publisher(), "g")
    loop.turn(0.0)
    role.close()
    members = rig.log.group("g").members
    members.clear()  # the coordinator refuses: a stale epoch
    rig.commit(loop)
    assert source_of(loop).refused == 1
    members.append(source_of(loop))
    rig.commit(loop)
    loop.stop()
    assert rig.committed("g", "t.control") == 1


def test_a_hole_after_the_last_record_is_committed(rig: Rig) -> None:
    rig.order("pause")
    rig.log.hole("t.control", 0)
    role = InHand("t.control")
    loop = rig.loop(role, rig.log.publisher(), "g")
    loop.turn(0.0)
    role.close()
    for _ in range(4):
        rig.commit(loop)
    assert rig.committed("g", "t.control") == 2
