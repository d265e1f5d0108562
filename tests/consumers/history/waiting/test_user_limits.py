"""The limit that a rollout waits for, from the log alone, even without any worker."""

from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.history.waiting.waiting import NOBODY, OpenWaits, WaitReader
from rollcall.consumers.loop.quota_table import UNLIMITED
from rollcall.producers.control import send_quota
from rollcall.schemas.messages import Limits, Quota
from tests.support.hand_answers import answer, ask, calls, killed
from tests.support.memory_cluster import MemoryAdmin
from tests.support.programs import TWICE
from tests.support.rig import Rig

LIMITS = Limits(call_timeout_s=60.0, rollout_timeout_s=90_000.0)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def limit(rig: Rig, quota: Quota) -> None:
    send_quota(rig.pen, rig.codec, rig.topics, quota.user, quota)


def ask_many(rig: Rig, count: int, agent: str = TWICE, first: int = 0) -> None:
    for n in range(first, first + count):
        ask(rig, f"ann{n}", agent, user="ann", limits=LIMITS)


def look(rig: Rig, quota: Quota = UNLIMITED) -> OpenWaits:
    admin = cast(Any, MemoryAdmin(rig.log))
    world = FoldContext(program_of, Random)
    return WaitReader(rig, admin, world, "s", quota=quota).waiting()


def told(rig: Rig, quota: Quota = UNLIMITED) -> dict[str, tuple[str, str]]:
    """Reason and text by rollout; the same with and without a live worker."""
    return {wait.rollout_id: (wait.reason, wait.what) for wait in look(rig, quota).waits}


def test_a_rollout_held_by_a_quota_shows_the_number_running(rig: Rig) -> None:
    limit(rig, Quota("ann", running=2))
    loop = rig.agents()
    ask_many(rig, 4)
    rig.settle(loop)
    rig.commit(loop)

    alive = told(rig)
    killed(loop)

    assert told(rig) == alive
    assert alive["ann1"] == ("call", "p 1/0/0")
    assert alive["ann2"] == alive["ann3"] == ("admission", "quota: 2 of 2 running")
    assert {look(rig).on(w) for w in look(rig).waits if w.reason == "admission"} == {NOBODY}


def test_a_lowered_quota_still_shows_the_number_running(rig: Rig) -> None:
    loop = rig.agents()
    ask_many(rig, 3)
    rig.settle(loop)
    limit(rig, Quota("ann", running=1))
    rig.commit(loop)
    ask_many(rig, 1, first=3)
    rig.settle(loop)

    assert told(rig)["ann3"] == ("admission", "quota: 3 of 1 running")


def test_the_default_quota_of_the_settings_is_shown(rig: Rig) -> None:
    limit(rig, Quota("ann", running=1))
    loop = rig.agents()
    ask_many(rig, 2)
    rig.settle(loop)
    send_quota(rig.pen, rig.codec, rig.topics, "ann", None)

    assert told(rig, Quota("", running=1))["ann1"][1] == "quota: 1 of 1 running"


def test_a_paced_call_shows_the_time_until_it_is_sent(rig: Rig) -> None:
    limit(rig, Quota("ann", calls_per_s=0.5))
    loop = rig.agents()
    ask_many(rig, 4)
    rig.settle(loop)
    rig.commit(loop)
    killed(loop)

    words = told(rig)

    assert words["ann0"] == ("call", "p 1/0/0")
    assert words["ann1"] == ("call", "p 1/0/0, not sent yet: rate 0.5/s, next in 2 s")
    assert words["ann3"] == ("call", "p 1/0/0, not sent yet: rate 0.5/s, next in 6 s")
    deadlines = {wait.rollout_id: wait.deadline_ms for wait in look(rig).waits}
    assert deadlines["ann3"] == int(rig.clock.now * 1000 - 1100 + 90_000_000)  # its rollout's own


def test_a_later_paced_call_shows_its_wait(rig: Rig) -> None:
    limit(rig, Quota("ann", calls_per_s=0.25))
    loop = rig.agents()
    ask_many(rig, 1)
    rig.settle(loop)
    answer(rig, calls(rig)[0])
    rig.settle(loop)

    assert told(rig)["ann0"] == ("call", "p 1/1/0, not sent yet: rate 0.25/s, next in 4 s")


def test_no_rate_is_shown_for_a_rollout_held_by_a_quota(rig: Rig) -> None:
    limit(rig, Quota("ann", running=2, calls_per_s=0.5))
    loop = rig.agents()
    ask_many(rig, 3)
    rig.settle(loop)

    words = told(rig)

    assert words["ann1"] == ("call", "p 1/0/0, not sent yet: rate 0.5/s, next in 2 s")
    assert words["ann2"] == ("admission", "quota: 2 of 2 running")


def test_an_exhausted_worker_share_is_distinguished_from_a_quota() -> None:
    rig = Rig(partitions=2)
    limit(rig, Quota("ann", running=4))
    loops = [rig.agents("a1"), rig.agents("a2")]
    rig.settle(*loops)
    for n in range(4):
        asked = ask(rig, f"bob{n}", TWICE, user="bob", limits=LIMITS)
        rig.ask(replace(asked, rollout_id=f"ann{n}", user="ann"), 0)
    rig.settle(*loops)

    assert told(rig)["ann3"] == (
        "admission",
        "started, first command not sent: its worker's share of the quota, or its worker is gone",
    )
