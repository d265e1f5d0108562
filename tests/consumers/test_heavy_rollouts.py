"""Rollouts too large for the log: every group handles them transparently."""

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Reset, Step, Task, user
from rollcall.consumers.audit.audit import audit
from rollcall.inference.scripted import ScriptedEngine
from rollcall.sandbox.environment import Observation
from rollcall.schemas.claims import LIGHT, claim_of
from rollcall.schemas.codec import Codec
from rollcall.schemas.messages import (
    CallFailed,
    EnvironmentStep,
    Event,
    ModelAnswered,
    ModelCall,
    RolloutRequest,
    ScoredTrajectory,
)
from tests.support.avro_messages import Shelf, example
from tests.support.journals import request
from tests.support.memory_cluster import SAID
from tests.support.rig import Rig, source_of

LONG = "a long observation " * 20_000
READS = "tests.consumers.test_heavy_rollouts:reads"


def reads(task: Task) -> Agent:
    """Reads three long pages and says so each time."""
    seen = yield Reset()
    messages = [user(seen.text)]
    for _ in range(3):
        answer = yield CallModel(messages)
        messages = [*messages, answer.message]
        seen = yield Step(answer.text)
        messages = [*messages, user(seen.text)]
    yield Finish("done")


class Pages:
    replayable = True

    def open(self, seed: int) -> Observation:
        return Observation(LONG)

    def step(self, action: str) -> Observation:
        return Observation(LONG, 1.0)

    def close(self) -> None:
        pass


class Heavy(Rig):
    """Workers with a codec that puts large values into a store."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf(262_144)
        self.codec = self.new_codec()
        self.loops = [
            self.agents(),
            self.models(ScriptedEngine("p", lambda call: "go on")),
            self.environments(make=lambda name, config: Pages()),
            self.rewards(),
        ]

    def new_codec(self) -> Codec:
        return Codec(self.registry, objects=self.shelf, clock=self.clock)

    def run(self) -> None:
        self.settle(*self.loops)
        self.commit(*self.loops)

    def sizes(self, topic: str) -> list[int]:
        return [len(record.value or b"") for record in self.log.all(topic)]

    def audited(self) -> Any:
        history = SimpleNamespace(log=self.log, codec=self.new_codec(), topics=self.topics)
        return audit(history, drained=True)


@pytest.fixture
def rig() -> Heavy:
    return Heavy()


def ask(rig: Rig, rollout_id: str = "r") -> None:
    rig.ask(request(rollout_id, READS))


def test_a_rollout_beyond_every_log_limit_runs_and_is_scored(rig: Heavy) -> None:
    ask(rig)

    rig.run()

    (scored,) = rig.read(rig.topics.scored, ScoredTrajectory)
    trajectory = scored.trajectory
    assert (trajectory.status, trajectory.result, scored.total) == ("finished", "done", 3.0)
    assert trajectory.steps is not None
    assert [step.text for step in trajectory.steps] == [LONG] * 4
    for topic in (rig.topics.events, rig.topics.trajectories, rig.topics.scored):
        assert max(rig.sizes(topic)) < 10_000
    report = rig.audited()
    assert report.ok, report.breaches
    assert report.unreadable == {}


def test_records_written_whole_before_the_store_existed_are_no_breach(rig: Heavy) -> None:
    rig.shelf.above_bytes = 900_000
    ask(rig, "before")
    rig.settle(*rig.loops)
    rig.shelf.above_bytes = 262_144
    ask(rig, "after")
    rig.run()

    assert {t.rollout_id for t in rig.trajectories()} == {"before", "after"}
    report = rig.audited()
    assert report.ok, report.breaches


def test_a_takeover_reads_its_records_from_the_store(rig: Heavy) -> None:
    ask(rig)
    for _ in range(4):
        for loop in rig.loops:
            loop.turn(0.0)
    source_of(rig.loops[0]).kill()
    rig.codec = rig.new_codec()

    rig.loops[0] = rig.agents("a2")
    rig.run()

    assert [t.status for t in rig.trajectories()] == ["finished"]
    assert rig.audited().ok


def test_records_in_an_unavailable_store_wait(rig: Heavy) -> None:
    # Given a long observation in the journal that the agents have not read yet
    ask(rig)
    agents, *others = rig.loops
    rig.settle(agents)
    rig.settle(*others)
    before = rig.log.bounds(rig.topics.events)[0][1]

    # When the store is away, then no work is given up, and afterwards it continues
    rig.shelf.away = True
    with capture_logs() as logs:
        for _ in range(3):
            rig.commit(agents)
            rig.clock.pass_by(1.1)
    assert {line["event"] for line in logs if "unavailable" in line["event"]} == {
        "store_unavailable"
    }
    assert rig.log.bounds(rig.topics.events)[0][1] == before
    assert rig.log.bounds(rig.topics.dead_letters)[0] == (0, 0)

    rig.shelf.away = False
    rig.clock.pass_by(1.1)
    rig.run()
    assert [t.status for t in rig.trajectories()] == ["finished"]
    assert rig.audited().ok


def test_a_scorer_waits_for_a_trajectory_in_an_unavailable_store(rig: Heavy) -> None:
    *others, rewards = rig.loops
    ask(rig)
    rig.settle(*others)
    rig.commit(*others)

    rig.shelf.away = True
    for _ in range(4):
        rig.commit(rewards)
    before = rig.log.bounds(rig.topics.scored)[0], rig.log.bounds(rig.topics.dead_letters)[0]
    rig.shelf.away = False
    rig.clock.pass_by(1.1)
    rig.run()

    assert before == ((0, 0), (0, 0))
    (scored,) = rig.read(rig.topics.scored, ScoredTrajectory)
    assert (scored.total, scored.reason) == (3.0, "")
    assert rig.audited().ok


@pytest.mark.parametrize("turns", range(0, 16, 3))
def test_all_workers_wait_and_survive_while_the_store_is_full(rig: Heavy, turns: int) -> None:
    # Given a rollout somewhere on its way, and one that has a long request
    ask(rig)
    for _ in range(turns):
        for loop in rig.loops:
            loop.turn(0.0)
    rig.ask(request("heavy", READS, agent_config='{"x": "' + LONG + '"}'))
    ask(rig, "behind")

    # When the disk of the store is full for a while
    rig.shelf.full = True
    for _ in range(4):
        rig.commit(*rig.loops)
        rig.settle(*rig.loops)
    assert all(t.rollout_id == "r" for t in rig.trajectories())
    rig.shelf.full = False
    rig.clock.pass_by(1.1)
    rig.run()
    rig.clock.pass_by(1.1)
    rig.run()

    # Then all continues as without the outage
    assert sorted(t.rollout_id for t in rig.trajectories()) == ["behind", "heavy", "r"]
    assert {t.status for t in rig.trajectories()} == {"finished"}
    assert {t.failures for t in rig.trajectories()} == {0}
    assert len(rig.read(rig.topics.scored, ScoredTrajectory)) == 3
    report = rig.audited()
    assert report.ok, report.breaches


def letters(rig: Rig) -> list[tuple[bytes, bytes]]:
    """Source topic and error of each dead letter."""
    headers = [dict(letter.headers or []) for letter in rig.log.all(rig.topics.dead_letters)]
    return [(each["dlq_topic"], each["dlq_error"]) for each in headers]


def failures(rig: Rig) -> list[str]:
    """The codes of failed commands in the journal; no object is read for them."""
    values = [record.value for record in rig.log.all(rig.topics.events)]
    bodies = [rig.codec.pick(value, Event, "body")[0] for value in values]
    return [body.code for body in bodies if isinstance(body, CallFailed)]


def test_an_answer_with_a_lost_object_is_buried_and_its_command_repeated(rig: Heavy) -> None:
    ask(rig)
    agents, *others = rig.loops
    rig.settle(agents)
    rig.settle(*others)

    rig.shelf.held.clear()
    rig.commit(agents)
    for _ in range(4):
        rig.clock.pass_by(10.0)
        rig.run()

    assert letters(rig) == [(rig.topics.events.encode(), b"ObjectLost")]
    (trajectory,) = rig.trajectories()
    assert (trajectory.status, trajectory.failures) == ("finished", 1)
    assert failures(rig) == ["object_lost"]
    assert rig.audited().ok


@pytest.mark.parametrize("order", [("heavy", "next"), ("next", "heavy")])
def test_a_start_with_a_lost_object_refuses_its_rollout(rig: Heavy, order: tuple[str, str]) -> None:
    agents = rig.loops[0]
    for rollout_id in order:
        config = '{"x": "' + LONG + '"}' if rollout_id == "heavy" else ""
        rig.ask(request(rollout_id, READS, agent_config=config))
    while len(rig.log.all(rig.topics.events)) < 2:
        agents.turn(0.0)
    rig.shelf.held.clear()

    rig.run()
    rig.clock.pass_by(1.1)
    rig.run()

    ended = {t.rollout_id: (t.status, t.code) for t in rig.trajectories()}
    assert ended == {"heavy": ("refused", "object_lost"), "next": ("finished", "")}
    assert letters(rig) == []
    # And a second reader of the journal reaches the same result
    heir = rig.agents("heir")
    rig.settle(heir)
    assert len(rig.trajectories()) == 2
    report = rig.audited()
    assert report.ok, report.breaches


def test_a_command_with_a_lost_object_fails_and_is_resent(rig: Heavy) -> None:
    agents, models, environments, _ = rig.loops
    ask(rig)
    while not rig.log.all(rig.topics.calls("p")):
        for loop in (agents, environments):
            loop.turn(0.0)
    rig.shelf.held.clear()

    for loop in (models, agents):
        loop.turn(0.0)
    for _ in range(4):
        rig.clock.pass_by(10.0)
        rig.run()

    assert (rig.topics.calls("p").encode(), b"ObjectLost") in letters(rig)
    assert {t.status for t in rig.trajectories()} == {"finished"}
    assert set(failures(rig)) == {"object_lost"}


FOREIGN = claim_of(b"an object in a store of somebody else")


def forged(rig: Heavy, topic: str) -> None:
    """Write a small record of an unrequested rollout, with a claim on a missing object."""
    asked = LIGHT[RolloutRequest](request("forged", READS), FOREIGN)
    answer = LIGHT[ModelAnswered](SAID, FOREIGN)
    messages = {
        rig.topics.requests: asked,
        rig.topics.events: Event("forged", 1, 0, 1, b"id", b"digest", "a stranger", answer),
        rig.topics.calls("p"): LIGHT[ModelCall](example(ModelCall, kind="sample"), FOREIGN),
        rig.topics.steps: LIGHT[EnvironmentStep](example(EnvironmentStep), FOREIGN),
    }
    value = Codec(rig.registry).encode(topic, messages[topic])
    rig.log.append(topic, b"forged", value, 0)


@pytest.mark.parametrize("name", ["requests", "events", "calls", "steps"])
def test_a_claim_on_a_missing_object_affects_only_its_own_record(rig: Heavy, name: str) -> None:
    topic = rig.topics.calls("p") if name == "calls" else getattr(rig.topics, name)
    forged(rig, topic)
    for number in range(3):
        ask(rig, f"victim{number}")

    rig.run()
    rig.clock.pass_by(1.1)
    rig.run()

    assert letters(rig) == [(topic.encode(), b"ObjectLost")]
    ended = {t.rollout_id: t.status for t in rig.trajectories()}
    assert {ended.pop(f"victim{number}") for number in range(3)} == {"finished"}
    assert ended == ({"forged": "refused"} if name == "requests" else {})


def test_a_request_with_a_lost_object_is_refused(rig: Heavy) -> None:
    heavy = request("heavy", READS, agent_config='{"x": "' + LONG + '"}')
    rig.ask(heavy)
    rig.shelf.held.clear()
    ask(rig, "light")

    rig.run()

    ended = {t.rollout_id: (t.status, t.code) for t in rig.trajectories()}
    assert ended == {"heavy": ("refused", "unreadable"), "light": ("finished", "")}
    (letter,) = rig.log.all(rig.topics.dead_letters)
    assert dict(letter.headers or [])["dlq_error"] == b"ObjectLost"


def test_a_request_with_a_long_configuration_has_a_small_start_record(rig: Heavy) -> None:
    config = '{"x": "' + LONG + '"}'
    rig.ask(request("heavy", READS, agent_config=config))

    rig.run()

    (trajectory,) = rig.trajectories()
    assert trajectory.status == "finished"
    assert trajectory.request is not None
    assert trajectory.request.agent_config == config
    assert max(rig.sizes(rig.topics.events)) < 10_000
    assert isinstance(rig.read(rig.topics.events, Event)[0], Event)
    assert rig.audited().ok


@pytest.mark.parametrize("group", ["agents", "rewards"])
def test_a_long_history_costs_at_most_four_times_its_bytes(
    rig: Heavy, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.LONG", "a longer observation" * 50_000)
    worker = rig.loops[{"agents": 0, "rewards": 3}[group]]
    ask(rig)
    most = 0
    tracemalloc.start()
    try:
        while not rig.read(rig.topics.scored, ScoredTrajectory):
            for loop in rig.loops:
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                loop.turn(0.0)
                if loop is worker:
                    most = max(most, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()

    whole = max(len(content) for content in rig.shelf.held.values())
    assert whole > 10_000_000
    assert most < 4 * whole
