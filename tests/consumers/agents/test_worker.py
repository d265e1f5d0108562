"""The agents worker on the in-memory log: requests in, journals folded, commands out."""

import pytest

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Task, user
from rollcall.consumers.agents.programs import program_digest, program_of
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.messages import (
    RULES,
    AttemptStarted,
    Event,
    RolloutFinished,
    RolloutStarted,
)
from tests.support.hand_answers import answer, ask, calls, killed
from tests.support.journals import request
from tests.support.programs import ASKS, WALKS, asks, walks
from tests.support.rig import Rig


def test_a_request_becomes_a_start_a_command_and_finally_a_trajectory(rig: Rig) -> None:
    loop = rig.agents()
    asked = ask(rig, "r7")

    rig.settle(loop)
    answer(rig, calls(rig)[0])
    rig.settle(loop)

    start, _, finished = rig.read(rig.topics.events, Event)
    assert (start.rollout_id, start.written_by) == ("r7", "a1")
    assert start.body == RolloutStarted(
        asked, 0, 0, program_digest(asks), int(rig.clock.now * 1000), RULES, 0, "0"
    )
    assert finished.body == RolloutFinished("finished", "", "", "yes", 1)
    trajectory = rig.trajectories()[0]
    assert (trajectory.rollout_id, trajectory.status) == ("r7", "finished")
    rig.commit(loop)
    assert rig.committed("t.agents", rig.topics.requests) == 1
    assert rig.committed("t.agents", rig.topics.events) == 3


def test_a_rollout_keeps_its_requests_partition_number() -> None:
    rig = Rig(partitions=3)
    loop = rig.agents()
    for partition in (2, 0, 1):
        rig.ask(request(f"r{partition}", ASKS), partition)

    rig.settle(loop)
    for call in calls(rig):
        answer(rig, call)
    rig.settle(loop)

    for topic in (rig.topics.events, rig.topics.trajectories):
        for record in rig.log.all(topic):
            assert record.key == f"r{record.partition}".encode()


def test_every_record_has_its_type_and_id_in_its_headers(rig: Rig) -> None:
    ask(rig, run_id="run 5")
    loop = rig.agents()
    rig.settle(loop)
    answer(rig, calls(rig)[0])
    rig.settle(loop)

    call = rig.log.all(rig.topics.calls("p"))[0]
    assert dict(call.headers or [])["ce_type"] == b"ModelCall"
    assert dict(call.headers or [])["ce_id"] == calls(rig)[0].command_id.hex().encode()
    trajectory = dict(rig.log.all(rig.topics.trajectories)[0].headers or [])
    assert trajectory["ce_type"] == b"rollcall.Trajectory"
    assert trajectory["ce_source"] == b"a1/run 5"


def test_starts_are_chained_by_offset_across_holes(rig: Rig) -> None:
    ask(rig, "a")
    rig.log.hole(rig.topics.requests, 0)
    ask(rig, "b")
    rig.settle(rig.agents())

    spans = [(e.body.from_offset, e.body.request_offset) for e in rig.events(RolloutStarted)]
    assert spans == [(0, 0), (1, 2)]


def test_a_changed_program_begins_a_new_attempt_at_the_next_answer(rig: Rig) -> None:
    first = rig.agents("a1", programs=lambda name: asks)
    ask(rig)
    rig.settle(first)
    rig.commit(first)
    killed(first)

    def changed(task: Task) -> Agent:
        answer = yield CallModel([user("something else")])
        yield Finish(answer.text)

    second = rig.agents("a2", programs=lambda name: changed)
    answer(rig, calls(rig)[0])
    rig.settle(second)
    assert rig.events(AttemptStarted)[0].attempt == 2
    answer(rig, calls(rig)[-1])
    rig.settle(second)

    assert (rig.trajectories()[0].attempt, rig.trajectories()[0].status) == (2, "finished")


def test_a_program_is_identified_by_the_digest_of_its_source() -> None:
    assert program_digest(asks) == program_digest(program_of(ASKS))
    assert program_digest(asks) != program_digest(walks)
    assert program_digest(len) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "digest"), [("react", "d51220bea3416a64"), ("single_turn", "cdcf53bf1f47d4ab")]
)
def test_a_shipped_program_keeps_the_digest_of_released_journals(name: str, digest: str) -> None:
    assert program_digest(program_of(name)) == digest


def test_agents_and_models_finish_many_rollouts(rig: Rig) -> None:
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))
    for n in range(50):
        ask(rig, f"r{n}")

    rig.settle(agents, models)

    assert [t.status for t in rig.trajectories()] == ["finished"] * 50


def test_a_registry_outage_at_the_first_command_is_waited_out(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a", agent=WALKS)
    rig.settle(loop)
    rig.registry.away = True
    ask(rig, "b")
    for _ in range(3):
        rig.commit(loop)
    rig.registry.away = False
    for _ in range(3):
        rig.commit(loop)
    assert len(calls(rig)) == 1
