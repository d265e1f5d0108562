"""A bounded number of servers adopt a version at once; the others keep serving."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.models.adoption_turns import ADOPTED, ADOPTING, LEASE_S, AdoptionTurns
from rollcall.schemas.messages import Control
from tests.support.later_executor import LaterExecutor
from tests.support.model_calls import Counting, announce, answers, call_of, send
from tests.support.rig import Rig, role_of

SERVERS = "abcd"
LEASE_MS = 100
WORDS = st.lists(
    st.tuples(st.sampled_from([ADOPTING, ADOPTED]), st.sampled_from(SERVERS), st.integers(0, 40))
)


def folded(words: Sequence[tuple[str, str, int]], at_once: int) -> AdoptionTurns:
    turns, now_ms = AdoptionTurns(at_once, LEASE_MS), 0
    for kind, server, after_ms in words:
        now_ms += after_ms
        turns.apply_order(kind, server, now_ms)
    return turns


def placed(turns: AdoptionTurns) -> list[str]:
    return [server for server in SERVERS if turns.has_place(server)]


@given(WORDS, st.integers(1, 3))
def test_adoption_places_are_never_exceeded_and_never_idle_while_servers_wait(
    words: list[tuple[str, str, int]], at_once: int
) -> None:
    for end in range(len(words) + 1):
        turns = folded(words[:end], at_once)
        waiting = [s for s in SERVERS if turns.is_known(s) and not turns.has_place(s)]

        assert len(placed(turns)) <= at_once
        assert not waiting or len(placed(turns)) == at_once


@given(WORDS, st.integers(1, 3), st.integers(0, 3))
def test_a_server_that_keeps_asking_gets_its_turn_despite_dead_ones(
    words: list[tuple[str, str, int]], at_once: int, number: int
) -> None:
    turns, server = folded(words, at_once), SERVERS[number]
    now_ms = sum(after_ms for _, _, after_ms in words)

    turns.apply_order(ADOPTING, server, now_ms)
    had = turns.has_place(server)
    for lease in range(len(SERVERS)):
        turns.pass_to(now_ms + lease * LEASE_MS)
        had = had or turns.has_place(server)

    assert had


@given(WORDS, st.integers(1, 3), st.lists(st.integers(0, 2000)))
def test_additional_clock_checks_do_not_change_the_adoption_turns(
    words: list[tuple[str, str, int]], at_once: int, looks: list[int]
) -> None:
    now_ms, looked, plain = 0, AdoptionTurns(at_once, LEASE_MS), AdoptionTurns(at_once, LEASE_MS)
    for kind, server, after_ms in words:
        for look in looks:
            if now_ms <= look <= now_ms + after_ms:
                looked.pass_to(look)
        now_ms += after_ms
        looked.apply_order(kind, server, now_ms)
        plain.apply_order(kind, server, now_ms)

    assert placed(looked) == placed(plain)


def servers(rig: Rig, count: int, at_once: int) -> tuple[list[Loop], list[LaterExecutor]]:
    """Servers of version 0 that stage versions on threads controlled by the test."""
    announce(rig, 0)
    threads = [LaterExecutor() for _ in range(count)]
    loops = [
        rig.models(Counting(version=-1), f"m{number}", thread=thread, adopt_at_once=at_once)
        for number, thread in enumerate(threads)
    ]
    for loop, thread in zip(loops, threads, strict=True):
        turn([loop], rig)
        thread.run_all()
        turn([loop], rig)
    assert serving(loops) == [0] * count
    assert not words(rig)  # a server without weights needs no turn
    return loops, threads


def turn(loops: Sequence[Loop], rig: Rig, times: int = 3) -> None:
    for _ in range(times):
        rig.clock.pass_by(0.1)
        for loop in loops:
            loop.turn(0.0)


def serving(loops: Sequence[Loop]) -> list[int]:
    return [role_of(loop).engine.version for loop in loops]


def at_work(threads: Sequence[LaterExecutor]) -> list[bool]:
    return [any(not future.done() for future in thread.submitted) for thread in threads]


def words(rig: Rig) -> list[tuple[str, str]]:
    said = (rig.codec.decode(r.value, Control) for r in rig.log.all(rig.topics.control))
    return [(word.kind, word.worker) for word in said]


@pytest.mark.parametrize("at_once", [1, 2])
def test_servers_adopt_in_turns_and_answer_with_old_weights_meanwhile(at_once: int) -> None:
    rig = Rig()
    loops, threads = servers(rig, 3, at_once)
    announce(rig, 1)

    seen = []
    while serving(loops) != [1, 1, 1]:
        turn(loops, rig)
        busy = at_work(threads)
        assert sum(busy) <= at_once
        if not seen:
            send(rig, call_of())
            turn(loops, rig)
            assert len(answers(rig)) == 1
        threads[busy.index(True)].run_all()
        turn(loops, rig)
        seen.append(sorted(serving(loops)))

    assert seen == [[0, 0, 1], [0, 1, 1], [1, 1, 1]]
    assert words(rig).count((ADOPTED, "m0")) == 1


def test_a_server_that_dies_during_adoption_delays_others_by_one_lease() -> None:
    rig = Rig()
    loops, threads = servers(rig, 2, 1)
    announce(rig, 1)
    turn(loops, rig)
    dead = at_work(threads).index(True)
    other = 1 - dead

    turn([loops[other]], rig, 20)
    assert at_work(threads)[other] is False
    rig.clock.pass_by(LEASE_S)
    turn([loops[other]], rig)
    assert at_work(threads)[other]
    threads[other].run_all()
    turn([loops[other]], rig)
    assert serving(loops)[other] == 1

    # The dead server's replacement is current before its first answer, and needs no turn
    again = rig.models(Counting(version=-1), f"m{dead}", adopt_at_once=1)
    turn([again], rig)
    assert serving([again]) == [1]


def test_an_unlimited_adoption_writes_no_control_records() -> None:
    rig = Rig()
    announce(rig, 0)
    loop = rig.models(Counting())
    turn([loop], rig)
    announce(rig, 1)
    turn([loop], rig)

    assert serving([loop]) == [1]
    assert not words(rig)
