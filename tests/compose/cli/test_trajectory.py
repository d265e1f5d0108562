"""One rollout in full, where its time went, and two of them side by side."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.history.rollouts.divergence import find_divergence, moments_of, relation
from rollcall.consumers.history.rollouts.rollout_story import Story, stories
from rollcall.consumers.history.rollouts.timing import Timers, timers_of
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.agent_requests import AgentRequest, requests_text
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import (
    AttemptStarted,
    CallFailed,
    EnvironmentStepped,
    Event,
    Message,
    ModelCall,
    RolloutFinished,
    RolloutRequest,
    RolloutStarted,
    Task,
)
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.command_line import call
from tests.support.journals import CODEC, Dice, entry
from tests.support.memory_cluster import CORRIDOR, POLICY, SAID, MemoryCluster

REQUEST = RolloutRequest("r", Task(CORRIDOR, seed=7), policy_id=POLICY, group_id="g", group_size=2)
STARTED = RolloutStarted(REQUEST, 0, 0)
STEPPED = EnvironmentStepped("a room")
LATE = CallFailed("deadline", "late", True)
FINISHED = RolloutFinished("finished")


def told(*events: tuple[int, Any, int, int]) -> Story:
    """A story of (milliseconds, body, position, tries), the attempts by their starts."""
    records, attempt = [], 1
    for offset, (at_ms, body, position, tries) in enumerate(events):
        attempt += isinstance(body, AttemptStarted)
        value = CODEC.encode("t", entry(body, position, attempt, tries))
        records.append(Record("t", 0, offset, b"r", value, at_ms))
    [story] = stories("r", records, CODEC)
    return story


def by_number(call: ModelCall) -> str:
    return f"go {call.seed % 1000}"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    monkeypatch.setenv("COLUMNS", "200")
    cluster = MemoryCluster()
    cluster.hire(by_number)
    return cluster


def run(cluster: MemoryCluster, *rollout_ids: str, **fields: Any) -> None:
    for rollout_id in rollout_ids:
        given_ = {"task": REQUEST.task, "policy_id": POLICY, "group_id": "g", "group_size": 2}
        cluster.ask(RolloutRequest(rollout_id, **(given_ | fields)))
    cluster.finish()


def forked(cluster: MemoryCluster, rollout_id: str, turn: int) -> str:
    call(cluster, "fork", rollout_id, f"--at={turn}")
    cluster.finish()
    requests = [
        cluster.codec.decode(record.value, RolloutRequest)
        for record in cluster.log.all(cluster.topics.requests)
    ]
    return next(r.rollout_id for r in requests if r.parent_rollout_id == rollout_id)


def story_of(cluster: MemoryCluster, rollout_id: str) -> Story:
    records = [r for r in cluster.log.all(cluster.topics.events) if r.key == rollout_id.encode()]
    return stories(rollout_id, records, cluster.codec)[-1]


# Time


def test_each_interval_is_attributed_to_the_event_at_its_end() -> None:
    story = told(
        (1000, STARTED, -1, 0),
        (1100, STEPPED, 0, 0),
        (3100, LATE, 1, 0),
        (3400, SAID, 1, 1),
        (3401, SAID, 1, 1),
        (7400, CallFailed("history_needed", "", True), 2, 0),
        (7450, CallFailed("session_lost", "", False), 2, 1),
        (7500, AttemptStarted("session lost"), -1, 0),
        (7600, CallFailed("too_long", "", False), 0, 0),
        (7700, CallFailed("deadline", "", False), 1, 0),
        (7710, FINISHED, -1, 0),
    )

    assert timers_of(story) == approx_timers(2.1, 0.3, 4.15, 0.16)


def approx_timers(*seconds: float) -> Any:
    return Timers(*(pytest.approx(each) for each in seconds))


@given(st.integers(0, 10_000))
def test_four_timers_add_up_to_the_total(seed: int) -> None:
    dice = Dice(Random(seed), 2).live()
    records = [
        Record("t", 0, e.offset, e.event.rollout_id.encode(), CODEC.encode("t", e.event), e.at_ms)
        for e in dice.entries
    ]
    for rollout_id in {e.event.rollout_id for e in dice.entries}:
        own = [record for record in records if record.key == rollout_id.encode()]
        for story in stories(rollout_id, own, CODEC):
            found = timers_of(story)
            parts = (found.waiting_for_model, found.model, found.environment, found.overhead)
            last = max((e.at_ms for e in story.counted()), default=story.started_ms)
            assert sum(parts) == pytest.approx((last - story.started_ms) / 1000, abs=1e-6)
            assert min(parts) >= 0


# One rollout


def test_tokens_are_shown_with_their_log_probabilities_and_versions(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(Event("r", 1, 1, 0, b"\x01" * 16, b"\xab" * 16, "somebody", SAID))

    call(cluster, "trajectory", "r", "--tokens")
    page = capsys.readouterr().out
    call(cluster, "trajectory", "r")

    assert "read    1 2\n" in page
    assert "sampled 3 -0.500 v8  -4 -1.500 v9\n" in page
    assert "time    waiting for model 0.000 s (tries without an answer)" in page
    assert "sampled" not in capsys.readouterr().out


def test_json_has_every_event_the_timers_and_the_rewards(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(cluster, "a")
    capsys.readouterr()

    call(cluster, "trajectory", "a", "--json")

    [found] = json.loads(capsys.readouterr().out)["rollouts"]
    assert found["request"]["task"]["seed"] == 7
    bodies = [next(iter(event["event"]["body"])) for event in found["events"]]
    assert bodies == [
        "RolloutStarted",
        *["EnvironmentStepped", "ModelAnswered"] * 3,
        "EnvironmentStepped",
        "RolloutFinished",
    ]
    assert found["scored"][0]["rewards"][0]["scorer"] == "environment_return"
    assert found["ended"] is True
    assert set(found["seconds"]) == {"waiting_for_model", "model", "environment", "overhead"}


def test_fork_names_its_parent(cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    run(cluster, "a")
    child = forked(cluster, "a", 1)
    capsys.readouterr()

    call(cluster, "trajectory", child)

    assert "fork of a from its position 3" in capsys.readouterr().out


# Two rollouts


def test_diff_shows_the_first_difference_between_two_group_members(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(cluster, "a", "b")

    call(cluster, "trajectory", "--diff", "a", "b")

    page = capsys.readouterr().out
    assert "both are of group g" in page
    assert "the same for 1 event, 0 turns of the model, then they part" in page
    [first] = [line for line in page.splitlines() if line.lstrip().startswith("1 ")]
    assert first.count("model  go ") == 2


def test_fork_and_parent_share_the_recorded_turns(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(cluster, "a")
    child = forked(cluster, "a", 2)
    capsys.readouterr()

    parting = find_divergence(story_of(cluster, "a"), story_of(cluster, child))
    call(cluster, "trajectory", "--diff", child, "a", "--json")

    assert (len(parting.same), parting.turns) == (5, 2)
    assert parting.left[0].kind == parting.right[0].kind == "model"
    assert parting.left[0] != parting.right[0]
    found = json.loads(capsys.readouterr().out)
    assert found["relation"] == "the first is a fork of the second, from its position 5"
    assert [moment["recorded"] for moment in found["same"]] == [False, True] * 2 + [False]
    again = relation(story_of(cluster, "a"), story_of(cluster, child))
    assert again == "the second is a fork of the first, from its position 5"


def test_equal_rollouts_have_no_difference(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(cluster, "a", "b", sampling_seed="same")

    call(cluster, "trajectory", "--diff", "a", "b")

    assert "the same for 8 events, 3 turns of the model: they do not part" in (
        capsys.readouterr().out
    )


def agents_story(command: str, *, then: str = "ls") -> Story:
    """A story of an agent process that asks, gets a tool call, and sends its result."""
    calls = tool_calls_text([ToolCall(f"call_{command * 24}_0", "bash", '{"command":"ls"}')])
    said = Message("assistant", "I look.", calls)
    shown = Message("tool", "a.txt", "", f"call_{command * 24}_0")
    first = AgentRequest("model", (Message("user", "look"),))
    second = AgentRequest("model", (*first.messages, said, shown, Message("user", then)))
    heard = [EnvironmentStepped(requests_text([a], k), session="agent") for a, k in
             ((first, []), (second, [first]))]  # fmt: skip
    answer = replace(SAID, text="I look.", tool_calls=calls)
    return told(
        (0, STARTED, -1, 0), (1, heard[0], 0, 0), (2, answer, 1, 0), (3, heard[1], 2, 0),
        (4, FINISHED, -1, 0),
    )  # fmt: skip


def test_differences_in_tool_call_ids_are_ignored() -> None:
    one, other, strange = (agents_story("a"), agents_story("b"), agents_story("c", then="rm"))

    same, parted = find_divergence(one, other), find_divergence(one, strange)

    assert [event.body for event in one.outcomes()] != [event.body for event in other.outcomes()]
    assert (len(same.same), same.left, same.right) == (4, (), ())
    assert [moment.kind for moment in parted.left] == ["environment", "finished"]
    assert len(parted.same) == 2
    assert "call_" + "a" * 24 in str(same.plain()["same"][2]["text"])


def test_retried_failure_is_not_a_difference() -> None:
    smooth = told((0, STARTED, -1, 0), (1, STEPPED, 0, 0), (2, SAID, 1, 0))
    rough = told((0, STARTED, -1, 0), (1, STEPPED, 0, 0), (2, LATE, 1, 0), (9, SAID, 1, 1))

    parting = find_divergence(smooth, rough)

    assert (parting.left, parting.right, parting.turns) == ((), (), 1)
    assert [moment.kind for moment in moments_of(rough)] == ["environment", "model"]


def test_repeated_request_does_not_hide_the_rollout(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(cluster, "a", "b")
    run(cluster, "a")

    call(cluster, "trajectory", "--diff", "a", "b")
    assert "then they part" in capsys.readouterr().out
    call(cluster, "trajectory", "a")

    page = capsys.readouterr().out
    assert "finished" in page
    assert "repeated" in page


def test_diff_refuses_identical_and_unknown_rollouts(cluster: MemoryCluster) -> None:
    run(cluster, "a")

    with pytest.raises(Refused, match="'a' twice"):
        call(cluster, "trajectory", "--diff", "a", "a")
    with pytest.raises(Refused, match="no rollout 'z'"):
        call(cluster, "trajectory", "--diff", "a", "z")
