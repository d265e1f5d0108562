"""How several engines share one vLLM in turns; no vLLM is needed."""

import gc
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from rollcall.inference.vllm_core import CoreOptions, VllmCore
from rollcall.inference.vllm_turns import TURN, SharedVllm
from rollcall.schemas.errors import WorkFailed

OPTIONS = CoreOptions(Path(), "float32", 96, 4, 1, 1)


class Guest:
    """An engine that records when it is paused."""

    def __init__(self) -> None:
        self.works = True
        self.paused: list[Any] = []

    def busy(self) -> bool:
        return self.works

    def pause(self, core: VllmCore) -> None:
        self.paused.append(core)


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


CORE = cast(VllmCore, object())


def shared(clock: Clock) -> SharedVllm:
    made = SharedVllm(OPTIONS, lambda options: CORE, clock)
    made.start()
    return made


def take_turn(vllm: SharedVllm, guest: Guest, clock: Clock, took_s: float) -> None:
    with vllm.turn_of(guest):
        clock.now += took_s


def test_a_turn_lasts_ten_times_its_start_up_if_others_wait() -> None:
    clock, first = Clock(), Guest()
    vllm = shared(clock)
    take_turn(vllm, first, clock, 0.5)

    clock.now += 0.5 * TURN - 0.01
    before = vllm.is_free()
    clock.now += 0.02

    assert (before, vllm.is_free()) == (False, True)


def test_an_idle_guest_is_paused_only_for_a_busy_one() -> None:
    clock, first, second = Clock(), Guest(), Guest()
    vllm = shared(clock)
    take_turn(vllm, first, clock, 5.0)
    first.works = False

    assert vllm.is_free()
    assert vllm.guest() is first
    take_turn(vllm, second, clock, 5.0)
    assert (first.paused, second.paused) == ([CORE], [])
    assert vllm.guest() is second


def test_a_released_engine_gives_up_its_turn() -> None:
    clock, first = Clock(), Guest()
    vllm = shared(clock)
    take_turn(vllm, first, clock, 5.0)

    del first
    gc.collect()

    assert vllm.guest() is None
    assert vllm.is_free()


def test_a_failed_turn_also_occupies_some_time() -> None:
    clock, first = Clock(), Guest()
    vllm = shared(clock)

    with suppress(WorkFailed), vllm.turn_of(first):
        clock.now += 0.5
        raise WorkFailed("canary", "off", retriable=False)

    assert not vllm.is_free()
    vllm.leave()
    assert vllm.is_free()


def test_vllm_is_started_only_once() -> None:
    started: list[CoreOptions] = []

    def start(options: CoreOptions) -> VllmCore:
        started.append(options)
        return CORE

    vllm = SharedVllm(OPTIONS, start)
    vllm.start()
    vllm.start()

    assert started == [OPTIONS]
