"""The models group on the in-memory log: calls in, continuations out, versions in between."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import pytest

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Task, user
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.models.server import ModelsRole
from rollcall.consumers.models.versions import AWAY_TRIES, PASSED_RETRY_S
from rollcall.inference.engine import EngineAnswer
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas import messages
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import CanaryMismatch, Unavailable, WeightsMissing, WorkFailed
from rollcall.schemas.ids import LONG_PREFIX, prefix_digest
from rollcall.schemas.messages import (
    CallFailed,
    Event,
    Limits,
    ModelAnswered,
    ModelCall,
    PolicyVersion,
    RolloutRequest,
    Sampling,
)
from rollcall.schemas.packed import ids_of, pack_ids
from tests.support.model_calls import Counting, announce, answers, call_of, send
from tests.support.rig import Rig, role_of, source_of


def test_a_call_is_answered_into_its_named_partition() -> None:
    rig = Rig(partitions=3)
    loop = rig.models(Counting())
    rig.write(rig.topics.calls("p"), "r", call := call_of(answer_partition=2), 0)

    rig.settle(loop)
    rig.commit(loop)

    record = rig.log.all(rig.topics.events)[0]
    event = rig.codec.decode(record.value, Event)
    assert (record.partition, record.key) == (2, b"r")
    assert (event.command_id, event.body_digest) == (call.command_id, b"digest")
    assert (event.written_by, event.body.text) == ("m1", "to 0")
    assert rig.committed("t.models.p", rig.topics.calls("p")) == 1


def test_a_repeated_call_is_answered_from_the_kept_answers(rig: Rig) -> None:
    engine = Counting()
    loop = rig.models(engine)
    send(rig, call_of())
    rig.settle(loop)

    send(rig, call_of(), call_of(position=1))
    rig.settle(loop)

    assert len(engine.added) == 2
    assert [body.text for body in answers(rig)] == ["to 0", "to 0", "to 1"]
    assert role_of(loop).counts["answered_again"] == 1


def test_a_duplicate_of_a_call_in_hand_waits_for_its_answer(rig: Rig) -> None:
    engine = Counting()
    engine.asleep = True
    loop = rig.models(engine)
    send(rig, call_of(), call_of())
    loop.turn(0.0)

    engine.asleep = False
    rig.settle(loop)
    rig.commit(loop)

    assert len(engine.added) == 1
    assert len(answers(rig)) == 2
    assert rig.committed("t.models.p", rig.topics.calls("p")) == 2


def test_a_call_of_another_policy_is_refused(rig: Rig) -> None:
    loop = rig.models(Counting())

    send(rig, call_of(policy_id="q"))
    rig.settle(loop)

    assert [(b.code, b.retriable) for b in answers(rig)] == [("unknown_policy", False)]


def test_an_expired_call_is_not_done(rig: Rig) -> None:
    engine = Counting()
    loop = rig.models(engine)
    now_ms = int(rig.clock.now * 1000)

    send(rig, call_of(not_after_ms=now_ms - 1), call_of(position=1, not_after_ms=now_ms))
    rig.settle(loop)

    assert [getattr(body, "code", "") for body in answers(rig)] == ["expired", ""]
    assert len(engine.added) == 1


def test_a_server_with_a_fast_clock_answers_its_calls_in_time(rig: Rig) -> None:
    rig.wall = lambda: rig.clock() + 130.0
    loop = rig.models(Counting())
    until_ms = int(rig.clock.now * 1000) + 120_000

    for n in range(3):
        send(rig, call_of(position=n, not_after_ms=until_ms))
        rig.settle(loop)
        rig.clock.pass_by(40.0)
    rig.clock.pass_by(1.0)
    send(rig, call_of(position=3, not_after_ms=until_ms))
    rig.settle(loop)

    codes = [getattr(body, "code", "") for body in answers(rig)]
    assert codes == ["", "", "", "expired"]


def test_an_expired_call_is_recognised_by_the_last_ack_time(rig: Rig) -> None:
    """Its own append time says nothing of how long a call has waited."""
    rig.wall = lambda: rig.clock() + 130.0
    loop = rig.models(Counting())
    send(rig, call_of())
    rig.settle(loop)

    send(rig, call_of(position=1, not_after_ms=int(rig.clock.now * 1000) + 120_000))
    rig.clock.pass_by(121.0)
    rig.settle(loop)

    assert [getattr(body, "code", "") for body in answers(rig)] == ["", "expired"]


def test_a_call_with_a_future_broker_timestamp_is_done(rig: Rig) -> None:
    loop = rig.models(Counting())
    until_ms = int(rig.clock.now * 1000) + 120_000
    rig.log.wall = lambda: rig.clock() + 600.0

    for n in range(2):
        send(rig, call_of(position=n, not_after_ms=until_ms))
        rig.settle(loop)

    assert [body.text for body in answers(rig)] == ["to 0", "to 1"]


def test_a_call_for_a_newer_version_waits_for_it(rig: Rig) -> None:
    engine = Counting()
    loop = rig.models(engine)
    send(rig, call_of(min_policy_version=3), call_of(position=1))
    rig.settle(loop)
    assert [body.text for body in answers(rig)] == ["to 1"]

    announce(rig, 2)
    rig.commit(loop)
    rig.settle(loop)
    assert len(answers(rig)) == 1
    announce(rig, 3)
    rig.commit(loop)
    rig.settle(loop)

    assert [body.text for body in answers(rig)] == ["to 1", "to 0"]
    assert set(ids_of(answers(rig)[1].versions).tolist()) == {3}


def test_a_call_that_waits_past_its_deadline_expires(rig: Rig) -> None:
    loop = rig.models(Counting())
    send(rig, call_of(min_policy_version=3, not_after_ms=int(rig.clock.now * 1000) + 5000))
    rig.settle(loop)

    rig.clock.pass_by(6.0)
    rig.settle(loop)
    rig.commit(loop)

    assert [body.code for body in answers(rig)] == ["expired"]
    assert rig.committed("t.models.p", rig.topics.calls("p")) == 1


def test_the_newest_announced_version_is_adopted_before_any_answer(rig: Rig) -> None:
    for version in (1, 2, 5):
        announce(rig, version)
    announce(rig, 9, policy_id="another")
    engine = Counting(version=0)
    send(rig, call_of())

    loop = rig.models(engine)
    rig.settle(loop)

    assert engine.adopted == [5]
    assert set(ids_of(answers(rig)[0].versions).tolist()) == {5}


def test_a_server_without_weights_answers_no_call(rig: Rig) -> None:
    loop = rig.models(Counting(version=-1))
    send(rig, call_of())

    rig.settle(loop)
    rig.commit(loop)
    assert answers(rig) == []
    announce(rig, 1)
    rig.commit(loop)
    rig.settle(loop)

    assert len(answers(rig)) == 1


def test_unavailable_weights_are_requested_again(rig: Rig) -> None:
    engine = Counting(version=-1)
    engine.trouble = Unavailable("no such disk")
    announce(rig, 1)
    loop = rig.models(engine)
    send(rig, call_of())
    rig.settle(loop)
    assert answers(rig) == []

    engine.trouble = None
    rig.commit(loop)
    rig.settle(loop)

    assert engine.adopted == [1]
    assert len(answers(rig)) == 1


class Singing(Counting):
    """Proves its weights: of some versions the canary disagrees, the files of others are gone."""

    def __init__(self, *wrong: int, gone: set[int] | None = None, version: int = -1) -> None:
        super().__init__(version=version)
        self.wrong, self.gone = set(wrong), gone or set()
        self.tried: list[int] = []

    def stage(self, version: PolicyVersion) -> None:
        self.tried.append(version.version)
        if version.version in self.gone:
            msg = "no such file"
            raise WeightsMissing(msg)
        super().stage(version)

    def adopt(self) -> None:
        if self.tried[-1] in self.wrong:
            msg = "it sings another song"
            raise WorkFailed("canary", msg, retriable=False)
        super().adopt()


def served(rig: Rig) -> list[set[int]]:
    return [set(ids_of(body.versions).tolist()) for body in answers(rig)]


def test_an_unservable_version_is_reported_and_a_good_one_adopted(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Singing(1)
    announce(rig, 1)
    loop = rig.models(engine)
    send(rig, call_of())
    for _ in range(20):
        rig.commit(loop)
    said = capsys.readouterr().out

    assert answers(rig) == []
    assert engine.tried == [1]
    assert said.count("version_refused") == 1
    assert "it sings another song" in said
    assert "version=1" in said
    assert "remedy=" in said
    assert "waiting_for_weights" in said
    announce(rig, 2)
    rig.commit(loop)
    rig.settle(loop)
    assert served(rig) == [{2}]


@pytest.mark.parametrize(
    ("bad", "at_start"),
    [(bad, at_start) for bad in ("gone", "number", "weights") for at_start in (True, False)]
    + [("canary", True)],
)
def test_a_forged_newest_version_is_skipped_for_the_one_below(
    rig: Rig, bad: str, *, at_start: bool
) -> None:
    # Given versions of which the newest cannot be served, before or after the server began
    forged = 2**31 - 1 if bad == "number" else 90
    engine = Singing(*([forged] if bad == "canary" else []))
    engine.gone = {forged} if bad == "gone" else set()
    loop = None if at_start else rig.models(engine)
    announce(rig, 5)
    if loop is not None:
        rig.settle(loop)
    if bad == "weights":
        announce(rig, 5, weights_digest="of others")
    else:
        announce(rig, forged)
    loop = loop or rig.models(engine)

    # When calls come, then the one below answers them
    send(rig, call_of())
    for _ in range(AWAY_TRIES + 2):
        rig.commit(loop)
    rig.settle(loop)
    assert served(rig) == [{5}]

    # And later announcements are adopted, though their numbers are lower than the forged one
    announce(rig, 6)
    send(rig, call_of(position=1, min_policy_version=6))
    rig.commit(loop)
    rig.settle(loop)
    assert served(rig) == [{5}, {6}]


def test_a_starting_server_finds_the_servable_version_among_many_forged_ones(
    rig: Rig,
) -> None:
    engine = Singing(*range(10, 70))
    announce(rig, 5)
    for version in range(10, 70):
        announce(rig, version)
    send(rig, call_of())

    loop = rig.models(engine)
    rig.commit(loop)
    rig.settle(loop)

    assert served(rig) == [{5}]


def _pass_s(rig: Rig, loop: Loop, count: int) -> None:
    for _ in range(count):
        rig.clock.pass_by(1.0)
        rig.settle(loop)


def test_a_server_with_a_failing_canary_leaves_after_three_tries(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a server of version 5, and one that its engine cannot make sing
    engine = Singing(6)
    announce(rig, 5)
    loop = rig.models(engine)
    rig.settle(loop)
    announce(rig, 6)

    # When it is tried, the old one answers
    rig.clock.pass_by(0.1)
    send(rig, call_of())
    rig.settle(loop)
    rig.clock.pass_by(0.5)
    rig.settle(loop)
    assert served(rig) == [{5}]
    assert engine.tried == [5, 6]

    # And after three tries, a second apart, the server leaves with the reason
    with pytest.raises(CanaryMismatch, match=r"serves version 5 of 'p'; .* sings another song"):
        _pass_s(rig, loop, 2)
    assert engine.tried == [5, 6, 6, 6]
    assert capsys.readouterr().out.count("canary_mismatch") == 2


def test_a_passing_canary_in_between_keeps_the_server(rig: Rig) -> None:
    engine = Singing(6, 8)
    announce(rig, 5)
    loop = rig.models(engine)
    rig.settle(loop)
    for version in (6, 7, 8, 9):
        announce(rig, version)
        for _ in range(2 if version in engine.wrong else 1):
            rig.clock.pass_by(1.1)
            rig.settle(loop)

    assert engine.tried == [5, 6, 6, 7, 8, 8, 9]
    assert engine.version == 9


class Held(Executor):
    """A thread that does its work when the test says so."""

    def __init__(self) -> None:
        self.given: list[tuple[Future[Any], Any, tuple[Any, ...]]] = []
        self.closed = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert not kwargs
        self.given.append((Future(), fn, args))
        return self.given[-1][0]

    def do(self) -> None:
        future, fn, args = self.given.pop(0)
        try:
            future.set_result(fn(*args))
        except Exception as error:  # as a pool does
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.closed = cancel_futures and not wait


def test_a_loop_does_not_spin_for_an_engine_with_its_own_thread(rig: Rig) -> None:
    # Given an engine that computes in its steps: its loop never waits
    engine = Counting(version=1)
    loop = rig.models(engine)
    role = role_of(loop)
    send(rig, call_of())
    engine.busy = lambda: True  # type: ignore[method-assign]
    loop.turn(0.0)
    assert role.poll_s == 0.0

    # One that only collects says how long its step may be waited for
    engine.wait_s = 0.005
    loop.turn(0.0)
    assert role.poll_s == 0.005

    # And the loop does not spin for calls that wait for weights
    del engine.busy  # type: ignore[method-assign]
    send(rig, call_of(position=1, min_policy_version=1))
    engine.asleep = True
    rig.settle(loop, turns=5)
    assert role.in_flight() == 1
    assert 0.0 < role.poll_s <= 0.1


def test_a_server_answers_with_old_weights_during_staging(rig: Rig) -> None:
    # Given a server that has staged and adopted version 1
    thread, engine = Held(), Counting(version=-1)
    announce(rig, 1)
    send(rig, call_of())
    loop = rig.models(engine, thread=thread)
    rig.settle(loop)
    assert answers(rig) == []
    thread.do()
    rig.clock.pass_by(0.1)
    rig.settle(loop)
    assert served(rig) == [{1}]

    # When 2 and 3 come, it answers with 1 until one of them is there
    announce(rig, 2)
    rig.clock.pass_by(0.1)
    rig.settle(loop)
    announce(rig, 3)
    send(rig, call_of(position=1))
    rig.clock.pass_by(0.1)
    rig.settle(loop)
    assert served(rig) == [{1}, {1}]

    # And then adopts the next
    for number in (2, 3):
        thread.do()
        rig.clock.pass_by(0.1)
        rig.settle(loop)
        assert engine.version == number
    assert thread.given == []


def test_a_pinned_version_is_staged_beside_the_loop(rig: Rig) -> None:
    thread, engine = Held(), Counting(version=-1)
    for number in (1, 2):
        announce(rig, number)
    loop = rig.models(engine, thread=thread)
    rig.settle(loop)
    thread.do()
    rig.clock.pass_by(0.1)
    role_of(loop).pinned.replica = lambda: Counting(version=-1)
    send(rig, call_of(policy_version=1), call_of(position=1))
    rig.settle(loop)
    assert served(rig) == [{2}]

    thread.do()
    rig.clock.pass_by(0.1)
    rig.settle(loop)

    assert served(rig) == [{2}, {1}]


def test_a_version_being_adopted_also_serves_its_pinned_calls(rig: Rig) -> None:
    thread, engine = Held(), Counting(version=-1)
    announce(rig, 1)
    loop = rig.models(engine, thread=thread)
    rig.settle(loop)
    # A new replica reads the weights that serve at that time.
    made: list[int] = []

    def replica() -> Counting:
        made.append(engine.version)
        return Counting(version=-1)

    role_of(loop).pinned.replica = replica
    send(rig, call_of(policy_version=1))
    rig.settle(loop)
    before = list(made)

    for _ in range(2):
        thread.do()
        rig.clock.pass_by(0.1)
        rig.settle(loop)

    assert (before, made, served(rig)) == ([], [1], [{1}])
    assert thread.given == []


def test_a_version_whose_staging_fails_is_retried(rig: Rig) -> None:
    thread, engine = Held(), Counting(version=-1)
    announce(rig, 1)
    engine.trouble = Unavailable("no such disk")
    loop = rig.models(engine, thread=thread)
    rig.settle(loop)
    thread.do()
    rig.clock.pass_by(0.1)
    rig.settle(loop)
    assert engine.version == -1

    engine.trouble = None
    rig.clock.pass_by(1.1)
    rig.settle(loop)
    thread.do()
    rig.clock.pass_by(0.1)
    rig.settle(loop)
    assert engine.version == 1
    role_of(loop).close()
    assert thread.closed


def test_a_skipped_version_is_adopted_once_its_file_appears(rig: Rig) -> None:
    engine = Singing(gone={6})
    announce(rig, 5)
    announce(rig, 6)
    loop = rig.models(engine)
    for _ in range(AWAY_TRIES + 2):
        rig.commit(loop)
    before = engine.version

    engine.gone.clear()
    rig.clock.pass_by(PASSED_RETRY_S)
    rig.commit(loop)

    assert (before, engine.version) == (5, 6)


def test_a_starting_server_takes_the_later_record_of_equal_weights(
    rig: Rig,
) -> None:
    """The first record's file may be lost; the trainer has published it again since."""
    engine = Staged()
    announce(rig, 1, uri="file:///lost")
    announce(rig, 1, uri="file:///again")

    rig.settle(rig.models(engine))

    assert engine.uris == ["file:///again"]


class Staged(Counting):
    """Notes the locations it reads weights from."""

    def __init__(self) -> None:
        super().__init__(version=-1)
        self.uris: list[str] = []

    def stage(self, version: PolicyVersion) -> None:
        self.uris.append(version.full.uri)
        super().stage(version)


def test_a_starting_server_waits_for_the_newest_version_before_an_older_one(
    rig: Rig,
) -> None:
    engine = Singing(gone={6})
    announce(rig, 5)
    announce(rig, 6)
    loop = rig.models(engine)
    send(rig, call_of())
    for _ in range(5):
        rig.commit(loop)
    before = answers(rig)

    engine.gone.clear()
    rig.commit(loop)
    rig.settle(loop)

    assert before == []
    assert served(rig) == [{6}]
    assert 5 not in engine.tried


def test_an_unreadable_version_is_buried_and_the_next_one_adopted(rig: Rig) -> None:
    engine = Counting()
    rig.log.append(rig.topics.versions, b"p", b"no magic", 0)
    announce(rig, 1)

    rig.settle(rig.models(engine))

    assert engine.adopted == [1]
    assert len(rig.log.all(rig.topics.dead_letters)) == 1


class Busy(Counting):
    """Has capacity for one call; the others wait."""

    def step(self) -> list[EngineAnswer]:
        _, *others = self._waiting.ready
        while len(self._waiting.ready) > 1:
            self._waiting.ready.pop()
        answers = super().step()
        self._waiting.ready.extend(others)
        return answers


def test_calls_past_their_deadline_are_not_started(rig: Rig) -> None:
    engine = Busy()
    loop = rig.models(engine)
    now_ms = int(rig.clock.now * 1000)
    send(rig, *(call_of(position=n, not_after_ms=now_ms + 2500) for n in range(6)))

    for _ in range(6):
        loop.turn(0.0)
        rig.clock.pass_by(1.0)
    rig.commit(loop)

    told = [getattr(body, "text", None) or body.code for body in answers(rig)]
    assert told[:3] == ["to 0", "to 1", "to 2"]
    assert told[4:] == ["expired", "expired"]  # time is known by acks, so as of the turn before
    assert role_of(loop).in_flight() == 0
    assert rig.committed("t.models.p", rig.topics.calls("p")) == 6


def test_a_version_announced_during_a_registry_outage_waits_for_it(rig: Rig) -> None:
    engine = Counting()
    loop = rig.models(engine)
    # It has read no announcement yet.
    role_of(loop).versions._unread.codec = Codec(rig.registry, clock=rig.clock)
    announce(rig, 1)
    announce(rig, 2)
    send(rig, call_of())

    rig.registry.away = True
    loop.turn(0.0)
    rig.commit(loop)
    assert (engine.adopted, answers(rig)) == ([], [])
    rig.registry.away = False
    rig.commit(loop)
    rig.settle(loop)

    assert engine.adopted == [2]
    assert [ids_of(body.versions).tolist() for body in answers(rig)] == [[2] * 4]


def named(ids: bytes, position: int, **fields: Any) -> ModelCall:
    """A call that names its prefix."""
    length, name = len(ids) // 4, prefix_digest(ids)
    return call_of(
        position=position, prefix_ids=None, prefix_length=length, prefix_digest=name, **fields
    )


BEGUN: dict[str, Any] = {"prefix_ids": pack_ids(range(LONG_PREFIX)), "prefix_length": LONG_PREFIX}
"""A conversation that is long enough for its calls to name it."""


def extended(ids: bytes, body: ModelAnswered) -> bytes:
    return ids + body.added_ids + body.token_ids


def test_a_prefix_answered_here_is_held_up_to_its_end(rig: Rig) -> None:
    engine = Counting()
    loop = rig.models(engine)
    send(rig, call_of(**BEGUN))
    rig.settle(loop)
    once = extended(BEGUN["prefix_ids"], answers(rig)[0])

    send(rig, named(once, 1))
    rig.settle(loop)
    twice = extended(once, answers(rig)[1])
    send(rig, named(twice, 2), named(once, 3))
    rig.settle(loop)

    assert [call.prefix_ids for call in engine.added[1:]] == [once, twice]
    assert [getattr(body, "code", "") for body in answers(rig)] == ["", "", "prefix_needed", ""]
    assert answers(rig)[2].retriable
    assert len(role_of(loop).prefixes) == 1


def test_short_sequences_are_not_held(rig: Rig) -> None:
    loop = rig.models(Counting())
    send(rig, call_of())
    rig.settle(loop)

    assert len(role_of(loop).prefixes) == 0


def test_a_call_that_only_counts_leaves_the_prefix_in_place(rig: Rig) -> None:
    loop = rig.models(Counting())
    send(rig, call_of(**BEGUN))
    rig.settle(loop)
    ids = extended(BEGUN["prefix_ids"], answers(rig)[0])
    whole = {"prefix_ids": ids, "prefix_length": len(ids) // 4, "sampling": Sampling(max_tokens=0)}

    send(rig, call_of(position=1, **whole))
    rig.settle(loop)
    send(rig, named(ids, 2))
    rig.settle(loop)

    assert [getattr(body, "code", "") for body in answers(rig)] == [""] * 3


@pytest.mark.parametrize("wrong", [{"prefix_length": 8}, {"prefix_digest": b"?"}])
def test_a_prefix_of_another_length_or_digest_is_requested_whole(
    rig: Rig, wrong: dict[str, Any]
) -> None:
    engine = Counting()
    loop = rig.models(engine)
    send(rig, call_of(**BEGUN))
    rig.settle(loop)
    ids = extended(BEGUN["prefix_ids"], answers(rig)[0])

    send(rig, replace(named(ids, 1), **wrong))
    rig.settle(loop)

    assert answers(rig)[1].code == "prefix_needed"
    assert len(engine.added) == 1


LONG = "word " * 220


def talks_on(task: Task) -> Agent:
    said = [user(LONG)]
    for number in range(task.max_turns):
        answer = yield CallModel(said)
        said += [answer.message, user(f"go on {number}")]
    yield Finish(answer.text)


def lived(rig: Rig, models: Callable[[], Loop], *, turns: int = 12) -> tuple[Any, list[ModelCall]]:
    """The sequences of a rollout through a new server every few turns, and its calls."""
    limits = Limits(max_turns=turns, max_tries=1)
    asked = RolloutRequest(
        "r", messages.Task(), agent=f"{__name__}:talks_on", policy_id="p", limits=limits
    )
    agents, server = rig.agents(), models()
    rig.ask(asked)
    while not rig.trajectories():
        for _ in range(8):
            agents.turn(0.0)
            server.turn(0.0)
        rig.commit(server)
        source_of(server).kill()
        server = models()
    calls = rig.read(rig.topics.calls("p"), ModelCall)
    return rig.trajectories()[0], [call for call in calls if call.kind == "sample"]


class WithoutMemory(ModelsRole):
    """A server of a release without held prefixes: its engine uses the prefix in the call."""

    def _begin(self, record: Record, call: ModelCall) -> None:
        self._in_hand[call.command_id] = call, [record]
        self.engine.add(call)


@pytest.mark.parametrize("make", [ModelsRole, WithoutMemory])
def test_a_rollout_is_the_same_with_any_prefix_holder(make: type[ModelsRole]) -> None:
    def script(call: ModelCall) -> str:
        assert call.prefix_ids is not None
        return f"{call.prefix_length} tokens, {prefix_digest(call.prefix_ids).hex()}"

    rig, other = Rig(), Rig()
    trajectory, calls = lived(
        rig, lambda: rig.models(ScriptedEngine("p", script), make=make), turns=12
    )
    whole, _ = lived(other, lambda: other.models(ScriptedEngine("p", script)), turns=12)

    assert (trajectory.status, trajectory.failures) == ("finished", 0)
    assert trajectory.sequences == whole.sequences
    assert sum(call.prefix_ids is None for call in calls) >= 1
    assert len({call.position for call in calls}) == 12


def test_an_aborted_call_is_dropped_and_its_record_closed(rig: Rig) -> None:
    engine = Counting()
    engine.asleep = True
    loop = rig.models(engine)
    call = call_of()
    send(rig, call, call_of("other"))
    loop.turn(0.0)

    send(rig, replace(call, kind="abort", messages=(), prefix_ids=None))
    loop.turn(0.0)
    engine.asleep = False
    rig.settle(loop)
    rig.commit(loop)

    assert [e.rollout_id for e in rig.read(rig.topics.events, Event)] == ["other"]
    assert (role_of(loop).in_flight(), rig.committed("t.models.p", rig.topics.calls("p"))) == (0, 3)


def test_an_aborted_call_that_waits_for_a_version_is_dropped(rig: Rig) -> None:
    loop = rig.models(Counting())
    call = call_of(min_policy_version=3)
    send(rig, call)
    rig.settle(loop)

    send(rig, replace(call, kind="abort"))
    announce(rig, 3)
    rig.commit(loop)
    rig.settle(loop)
    rig.commit(loop)

    assert answers(rig) == []
    assert rig.committed("t.models.p", rig.topics.calls("p")) == 2


def test_a_call_refused_by_the_engine_is_answered_as_failed(rig: Rig) -> None:
    loop = rig.models(Counting())

    send(rig, call_of(prefix_ids=None, prefix_length=9))
    rig.settle(loop)

    assert [(b.code, b.retriable) for b in answers(rig)] == [("prefix_needed", True)]


@pytest.mark.parametrize("partition", [1, 99, -1])
def test_a_call_with_an_invalid_answer_partition_is_buried(rig: Rig, partition: int) -> None:
    engine = Counting()
    loop = rig.models(engine)
    send(rig, call_of("lost", answer_partition=partition), call_of("next"))

    rig.settle(loop)
    rig.commit(loop)

    buried = rig.log.all(rig.topics.dead_letters)
    assert [dict(record.headers or ())["dlq_error"] for record in buried] == [b"NoSuchPartition"]
    assert [call.rollout_id for call in engine.added] == ["next"]
    assert rig.committed("t.models.p", rig.topics.calls("p")) == 2


def test_an_unencodable_answer_fails_only_its_own_call(rig: Rig) -> None:
    words = ["\ud83d", "yes"]
    engine = ScriptedEngine("p", lambda call: words[call.position], encode=lambda text: [1])
    loop = rig.models(engine)
    send(rig, call_of(), call_of(position=1))

    rig.settle(loop)

    assert answers(rig)[0].code == "raised"
    assert answers(rig)[1].text == "yes"


def test_a_failure_is_not_kept_for_repeated_calls(rig: Rig) -> None:
    loop = rig.models(Counting())
    call = call_of(prefix_ids=None, prefix_length=9)

    send(rig, call, call)
    rig.settle(loop)

    assert [type(body) for body in answers(rig)] == [CallFailed, CallFailed]
    assert role_of(loop).counts["answered_again"] == 0


def test_only_unanswered_calls_are_sampled_again_after_a_restart(rig: Rig) -> None:
    engine = Counting()
    first = rig.models(engine)
    send(rig, call_of(min_policy_version=1), call_of(position=1), call_of(position=2))
    rig.settle(first)
    rig.commit(first)
    source_of(first).kill()

    announce(rig, 1)
    heir = Counting()
    second = rig.models(heir, "m2")
    rig.settle(second)
    rig.commit(second)

    assert [call.position for call in heir.added] == [0]
    assert rig.committed("t.models.p", rig.topics.calls("p")) == 3


def test_a_full_server_pauses_its_partition_and_resumes(rig: Rig) -> None:
    engine = Counting()
    engine.asleep = True
    loop = rig.models(engine, most_in_hand=8)
    send(rig, *(call_of(position=n) for n in range(20)))
    loop.turn(0.0)
    assert loop.partitions[rig.topics.calls("p"), 0].paused

    engine.asleep = False
    rig.settle(loop)

    assert not loop.partitions[rig.topics.calls("p"), 0].paused
    assert all(isinstance(body, ModelAnswered) for body in answers(rig))
    assert len(answers(rig)) == 20


def test_an_abort_closes_every_call_of_its_rollout(rig: Rig) -> None:
    engine = Counting()
    engine.asleep = True
    loop = rig.models(engine)
    first, second = call_of(tries=0), call_of(tries=1)
    send(rig, first, second)
    loop.turn(0.0)
    send(rig, replace(second, kind="abort"))
    loop.turn(0.0)
    rig.commit(loop)
    assert (role_of(loop).in_flight(), rig.committed("t.models.p", rig.topics.calls("p"))) == (0, 3)


def test_a_restarted_server_answers_nothing_before_the_newest_version(rig: Rig) -> None:
    engine = Counting(version=0)
    engine.trouble = Unavailable("no such disk")
    announce(rig, 5)
    loop = rig.models(engine)
    send(rig, call_of())
    rig.settle(loop)
    assert answers(rig) == []
