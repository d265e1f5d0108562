"""Records that kill workers: the deaths noted in commits, and the records that are buried."""

import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Task, user
from rollcall.consumers.agents.watermark import MOST_STRAGGLERS, Watermark, read_watermark
from rollcall.consumers.log.memory_source import METADATA_LIMIT
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.finished_offsets import METADATA_BYTES, finished_above
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.loop.poison_detection import (
    ALONE,
    FREE,
    MARK_BYTES,
    MOST_SUSPECTS,
    NOTED,
    Suspicion,
    read_suspicion,
    split_metadata,
)
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.messages import CallFailed, Control, RolloutRefused
from tests.support.journals import request
from tests.support.rig import InHand, Rig, role_of, source_of

TOPIC = "t.control"


class Death(BaseException):
    """The process is gone: no handler runs, nothing is committed."""


class Deadly(InHand):
    """Dies of some records when it takes them; closes the others at once."""

    def __init__(self, topic: str, kills: Callable[[int], bool]) -> None:
        super().__init__(topic)
        self.kills = kills

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        for record, word in batch:
            if self.kills(record.offset):
                raise Death
            super().handle([(record, word)])
            self.close()


class DeadlyLater(InHand):
    """Has many records in hand and dies of one when its turn comes."""

    def __init__(self, topic: str, kills: Callable[[int], bool]) -> None:
        super().__init__(topic)
        self.kills = kills

    def tick(self) -> None:
        if any(self.kills(record.offset) for record in self.hand):
            raise Death
        if self.hand:
            self.close(self.hand[0].offset)


def words(rig: Rig, count: int) -> None:
    for n in range(count):
        rig.order("pause", reason=str(n))


def lives(rig: Rig, make: Callable[[], Loop], done: Callable[[], bool], most: int = 60) -> int:
    """Start worker after worker until one is done; return how many died."""
    for deaths in range(most):
        loop = make()
        try:
            for _ in range(3000):
                if done():
                    rig.commit(loop)
                    rig.commit(loop)
                    loop.stop(0.0)
                    return deaths
                loop.turn(0.0)
                rig.clock.pass_by(0.01)
        except Death:
            source_of(loop).kill()
    pytest.fail(f"still dying after {most} workers")


def buried(rig: Rig) -> list[int]:
    letters = rig.log.all("t.dead.letters")
    return [int(dict(letter.headers or [])["dlq_offset"]) for letter in letters]


# Records that are buried


@pytest.mark.parametrize("kind", [Deadly, DeadlyLater])
@pytest.mark.parametrize("killers", [{0}, {7}, {150}, {499}, {3, 4, 260}])
def test_a_record_that_kills_its_workers_is_buried(
    rig: Rig, kind: type[Any], killers: set[int]
) -> None:
    words(rig, 500)

    def make() -> Loop:
        return rig.loop(kind(TOPIC, killers.__contains__), rig.log.publisher(), "g")

    deaths = lives(rig, make, lambda: rig.committed("g", TOPIC) == 500)

    assert sorted(buried(rig)) == sorted(killers)
    letter = rig.log.all("t.dead.letters")[0]
    assert dict(letter.headers or [])["dlq_error"] == b"KilledWorkers"
    assert deaths <= 8 * len(killers)


def test_other_partitions_continue_and_none_of_their_records_is_buried() -> None:
    rig = Rig(partitions=3)
    topic = rig.topics.steps
    for partition in range(3):
        for n in range(100):
            rig.log.append(
                topic, b"k", rig.codec.encode(TOPIC, Control("pause", reason=str(n))), partition
            )

    class One(Deadly):
        def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
            for record, word in batch:
                if (record.partition, record.offset) == (1, 5):
                    raise Death
                super().handle([(record, word)])

    lives(
        rig,
        lambda: rig.loop(One(topic, lambda offset: False), rig.log.publisher(), "g"),
        lambda: all(rig.committed("g", topic, n) == 100 for n in range(3)),
    )

    assert buried(rig) == [5]


def test_a_record_that_also_kills_during_its_refusal_is_buried(rig: Rig) -> None:
    class Fatal(Deadly):
        def fatal(self, record: Record, message: Any, error: Any) -> bool:
            raise Death

    words(rig, 10)

    lives(
        rig,
        lambda: rig.loop(Fatal(TOPIC, {4}.__contains__), rig.log.publisher(), "g"),
        lambda: rig.committed("g", TOPIC) == 10,
    )

    assert buried(rig) == [4]


def test_a_thousand_kills_from_outside_condemn_no_record() -> None:
    # Given records that take a while, and workers that are killed at any moment, often at once
    rig, dice, kills = Rig(partitions=2), Random(90210), 0
    topic = rig.topics.steps
    for partition in (0, 1):
        for n in range(1500):
            rig.log.append(
                topic, b"k", rig.codec.encode(TOPIC, Control("pause", reason=str(n))), partition
            )

    class Dies(Deadly):
        left_s = 0.0

        def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
            for record, word in batch:
                rig.clock.pass_by(took_s := dice.random() * 0.04)
                self.left_s -= took_s
                if self.left_s < 0:
                    raise Death
                super().handle([(record, word)])

    # When that continues until all is done
    while kills < 1000:
        role = Dies(topic, lambda offset: False)
        role.left_s = dice.choice((0.05, 0.2, 2.0))
        loop = rig.loop(role, rig.log.publisher(), "g")
        try:
            while role.left_s > 0:
                loop.turn(0.0)
                rig.clock.pass_by(0.01)
                role.left_s -= 0.01
        except Death:
            pass
        source_of(loop).kill()
        kills += 1

    # Then nothing was buried, and all was done
    assert buried(rig) == []
    assert [rig.committed("g", topic, n) for n in (0, 1)] == [1500, 1500]


def test_an_orderly_stop_counts_as_no_death(rig: Rig) -> None:
    words(rig, 3)
    for _ in range(20):
        loop = rig.loop(InHand(TOPIC), rig.log.publisher(), "g")
        loop.turn(0.0)
        loop.stop(0.0)

    offset, word = rig.log.group("g").committed[TOPIC, 0]
    assert (offset, split_metadata(word)) == (0, ("1;", ""))


def test_a_death_of_an_idle_worker_leaves_no_mark(rig: Rig) -> None:
    words(rig, 3)
    for _ in range(5):
        loop = rig.loop(Deadly(TOPIC, lambda offset: False), rig.log.publisher(), "g")
        for _ in range(3):
            rig.commit(loop)
        source_of(loop).kill()

    assert rig.log.group("g").committed[TOPIC, 0] == (3, "1;!@0")


@pytest.mark.parametrize("before", [0, 3])
def test_only_records_found_at_the_start_wait_for_a_commit(rig: Rig, before: int) -> None:
    """Found records may have killed the previous worker; new ones have not."""
    words(rig, before)
    loop = rig.loop(role := InHand(TOPIC), rig.log.publisher(), "g")
    source, waited = source_of(loop), []
    source.commit_now = lambda commits: waited.append(len(role.seen))
    loop.turn(0.0)
    words(rig, 2)
    loop.turn(0.0)

    assert len(role.seen) == before + 2
    assert waited == ([0] if before else [])


@pytest.mark.parametrize("before", [0, 2])
def test_a_record_that_kills_idle_workers_is_buried(rig: Rig, before: int) -> None:
    """Its first death has no mark; the next worker finds it below the end."""
    words(rig, before)

    def make() -> Loop:
        loop = rig.loop(Deadly(TOPIC, {before}.__contains__), rig.log.publisher(), "g")
        if rig.log.bounds(TOPIC)[0][1] == before:
            rig.commit(loop)
            rig.commit(loop)
            words(rig, 3)
        return loop

    lives(rig, make, lambda: rig.committed("g", TOPIC) == before + 3)
    assert buried(rig) == [before]


def test_commits_in_normal_work_carry_no_mark(rig: Rig) -> None:
    loop = rig.loop(role := InHand(TOPIC), rig.log.publisher(), "g")
    words(rig, 3)
    loop.turn(0.0)
    role.close(0)
    for _ in range(2):
        rig.commit(loop)

    assert rig.log.group("g").committed[TOPIC, 0] == (1, "1;!@0")


def test_a_suspect_is_handled_alone(rig: Rig) -> None:
    words(rig, 300)
    rig.log.group("g").committed[TOPIC, 0] = 0, "1;!r2"
    loop = rig.loop(role := InHand(TOPIC), rig.log.publisher(), "g")

    for n in range(199):
        loop.turn(0.0)
        loop.turn(0.0)
        assert [record.offset for record in role.hand] == [n]
        assert split_metadata(rig.log.group("g").committed[TOPIC, 0][1])[1].endswith(f",{n}.0*")
        role.close()
    loop.turn(0.0)
    loop.turn(0.0)

    assert len(role.hand) == 32, "with the last that was alone"
    rig.clock.pass_by(61.0)
    for _ in range(4):
        role.close()
        loop.turn(0.0)
    assert len(role.hand) == 0
    assert len(role.seen) == 300


def test_other_records_do_not_wait_for_a_slow_suspect() -> None:
    rig = Rig(partitions=2)
    topic = rig.topics.steps
    for partition in (0, 1):
        for n in range(5):
            rig.write(topic, "k", Control("pause", reason=str(n)), partition)
    rig.log.group("g").committed[topic, 0] = 0, "1;!r2"
    loop = rig.loop(role := InHand(topic), rig.log.publisher(), "g")

    for _ in range(3):
        loop.turn(0.0)
    assert role.seen == [(0, 0)]
    rig.clock.pass_by(61.0)
    for _ in range(3):
        loop.turn(0.0)

    assert len(role.seen) == 10
    mark = split_metadata(rig.log.group("g").committed[topic, 0][1])[1]
    assert mark == "r2^1", "it is not alone any more, so nothing is held against it"


# Outcomes


class Mortal:
    """Makes agents workers with a process that a program can end."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.loop: Loop
        self.dead = False

    def make(self) -> Loop:
        self.loop, self.dead = self.rig.agents("a"), False
        return self.loop

    def die(self) -> None:
        """From here on nothing that this process does reaches the log."""
        self.dead = True
        source_of(self.loop).kill()
        for publisher in self.loop.publishers:
            vars(publisher)["send"] = lambda *args, **named: None

    def done(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        def check() -> bool:
            if self.dead:
                raise Death
            return condition()

        return check


MORTALS: list[Mortal] = []


def dies(task: Task) -> Agent:
    """One question; an answer to the wrong one kills."""
    answer = yield CallModel([user(task.prompt)])
    if task.prompt == "die":
        MORTALS[-1].die()
    yield Finish(answer.text)


def prompted(rollout_id: str, prompt: str) -> Any:
    asked = request(rollout_id, "tests.consumers.loop.test_poison_detection:dies")
    return replace(asked, task=replace(asked.task, prompt=prompt))


def test_a_program_that_kills_its_worker_ends_only_its_own_rollout(rig: Rig) -> None:
    # Given an old rollout that stays open, one that kills at its answer, and others
    mortal = Mortal(rig)
    MORTALS.append(mortal)
    for n, prompt in enumerate(["stay", "live", "die", "live"]):
        rig.ask(prompted(f"r{n}", prompt))
    models = rig.models(ScriptedEngine("p", lambda call: "yes"))
    answer = role_of(models)._answer
    role_of(models)._answer = lambda call, body: call.rollout_id != "r0" and answer(call, body)
    first = mortal.make()
    rig.settle(first, models)
    source_of(first).kill()

    # When workers die of it one after another
    deaths = lives(rig, mortal.make, mortal.done(lambda: len(rig.trajectories()) >= 3))

    # Then it has ended, with its known fields, and no other rollout has
    ended = {t.rollout_id: t for t in rig.trajectories()}
    assert {t.rollout_id: (t.status, t.code) for t in ended.values()} == {
        "r1": ("finished", ""), "r2": ("failed", "killed_worker"), "r3": ("finished", ""),
    }  # fmt: skip
    assert len(ended["r2"].sequences or ()) == 1
    assert deaths <= 6

    # And a second fold of that stretch survives
    heir = mortal.make()
    rig.settle(heir)
    assert not mortal.dead
    assert list(role_of(heir).owned[0].journal.open) == ["r0"]
    MORTALS.remove(mortal)


def condemn(rig: Rig, group: str, topic: str, offset: int = 0) -> None:
    rig.log.group(group).committed[topic, 0] = offset, f"1;!r3,{offset}.2*"


def test_a_request_that_kills_workers_is_refused(rig: Rig) -> None:
    rig.ask(prompted("r", "live"))
    condemn(rig, "t.agents", rig.topics.requests)

    rig.settle(rig.agents())

    (refused,) = rig.events(RolloutRefused)
    assert (refused.rollout_id, refused.body.code) == ("r", "killed_worker")
    assert [t.status for t in rig.trajectories()] == ["refused"]
    assert buried(rig) == [0]


def test_commands_that_kill_workers_are_answered_as_failed(rig: Rig) -> None:
    agents = rig.agents()
    rig.ask(prompted("r", "live"))
    rig.ask(request("walks", "tests.support.programs:walks"))
    rig.settle(agents)
    condemn(rig, "t.models.p", rig.topics.calls("p"))
    condemn(rig, "t.environments", rig.topics.steps)

    rig.settle(rig.models(ScriptedEngine("p", lambda call: "yes")), rig.environments())

    codes = [(e.rollout_id, e.body.code, e.body.retriable) for e in rig.events(CallFailed)]
    assert sorted(codes) == [("r", "killed_worker", False), ("walks", "killed_worker", False)]


# The marks


suspicions = st.builds(
    Suspicion,
    st.integers(FREE, ALONE),
    st.dictionaries(st.integers(0, 2**63 - 1), st.integers(1, 9), max_size=MOST_SUSPECTS - 1),
)


@given(suspicions, st.one_of(st.none(), st.integers(0, 2**63 - 1)))
def test_a_mark_is_parsed_as_a_death_or_ignored(told: Suspicion, alone: int | None) -> None:
    told.alone = alone
    word, ran = split_metadata("1;AAAA" + told.mark(0, busy=True))
    _, left = split_metadata(told.mark(0, busy=False))

    after_death, after_peace = read_suspicion(ran, 0.0), read_suspicion(left, 0.0)

    killed = {} if alone is None else {alone: told.deaths.get(alone, 0) + 1}
    assert word == "1;AAAA"
    assert after_death.level == min(told.level + 1, ALONE)
    assert (after_peace.level, after_peace.deaths) == (max(told.level, NOTED), told.deaths)
    assert after_death.deaths == told.deaths | killed


@given(st.dictionaries(st.integers(0, 2**63 - 1), st.integers(1, 10**6), min_size=9))
def test_a_suspicion_mark_never_exceeds_its_size_limit(deaths: dict[int, int]) -> None:
    told = Suspicion(ALONE, deaths, alone=2**63 - 1)

    assert len(told.mark(0, busy=True)) <= MARK_BYTES
    assert METADATA_BYTES + MARK_BYTES == METADATA_LIMIT


def test_the_longest_watermark_leaves_space_for_a_mark() -> None:
    far = 2**62 // MOST_STRAGGLERS
    stragglers = tuple(far * n for n in range(1, MOST_STRAGGLERS + 1))

    word = Watermark(2**63 - 1, 2**63 - 1, stragglers, "x" * 22, quota=True).write()

    assert len(word) <= METADATA_BYTES


@pytest.mark.parametrize("mark", ["", "r", "x1", "r4", "r1,5", "r1,5.1,", "c1,a.1", "r1 by hand"])
def test_an_invalid_mark_is_ignored(mark: str) -> None:
    assert (read_suspicion(mark, 0.0).level, read_suspicion(mark, 0.0).deaths) == (NOTED, {})


def test_workers_without_marks_read_metadata_with_one_harmlessly() -> None:
    """Such workers run beside these while a deployment is rolled."""
    watermark = Watermark(7, 3, (2, 5), "topic-id")
    finished = "1;" + b64encode(zlib.compress(b"\1")).decode()

    assert finished_above(finished + "!r2,7.1*", 7) == frozenset(), "all above is done once more"
    assert read_watermark(watermark.write() + "!r2,7.1*") == watermark
    assert not "2;journal!r1".startswith("1;"), "no id of a topic that was made anew"
