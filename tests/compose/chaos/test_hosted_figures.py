"""Chaos figures of hosted rollouts, computed from a journal and its model calls."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcall.compose.chaos import workload
from rollcall.compose.chaos.hosted_figures import HostedTally, figures_of, restarts_in
from rollcall.schemas.messages import (
    Body,
    CallFailed,
    Event,
    Message,
    ModelAnswered,
    ModelCall,
    RolloutStarted,
    Sampling,
)
from tests.support.rig import Rig

SAID = ModelAnswered("left", b"", b"", b"", b"", "stop", workload.POLICY, 0)
NUMBERS = range(400)


def entry(position: int, body: Body, attempt: int = 1, rollout_id: str = "r") -> Event:
    return Event(rollout_id, attempt, position, 0, b"c", b"d", "models-1", body)


def started(agent: str = workload.AGENT_OF_OTHERS, rollout_id: str = "r") -> Event:
    request = replace(workload.request(7, 0, hosts=False), rollout_id=rollout_id, agent=agent)
    return entry(0, RolloutStarted(request, 0, 0), rollout_id=rollout_id)


def model_call(position: int, said: str, **fields: Any) -> ModelCall:
    call = ModelCall(
        rollout_id="r", attempt=1, position=position, tries=0, command_id=b"c", body_digest=b"d",
        answer_partition=0, not_after_ms=0, kind="sample", policy_id=workload.POLICY, sequence=0,
        messages=(Message("assistant", "before"), Message("user", said)), sampling=Sampling(),
        seed=1,
    )  # fmt: skip
    return replace(call, **fields)


def asked_again(events: list[Event], calls: list[ModelCall]) -> int:
    tally = HostedTally()
    for each in [started(), *events]:
        tally.event(each)
    for call in calls:
        tally.call(call)
    return tally.figures().asked_again


def test_answered_call_repeated_at_another_position_counts_as_asked_again() -> None:
    calls = [model_call(2, "one"), model_call(4, "two"), model_call(6, "one")]

    assert asked_again([entry(2, SAID), entry(4, SAID)], calls) == 1
    assert asked_again([entry(2, SAID)], [*calls, model_call(8, "one")]) == 2


def test_call_resent_for_its_own_position_is_not_asked_again() -> None:
    calls = [model_call(2, "one"), model_call(2, "one", tries=1), model_call(2, "one")]

    assert asked_again([entry(2, SAID), entry(2, SAID)], calls) == 0


def test_unanswered_calls_and_other_attempts_do_not_count_as_asked_again() -> None:
    twice = [model_call(2, "one"), model_call(6, "one")]
    anew = [model_call(2, "one"), model_call(2, "one", attempt=2)]

    assert asked_again([], twice) == 0
    assert asked_again([entry(2, SAID)], anew) == 0
    assert asked_again([entry(2, SAID)], [twice[0], replace(twice[1], kind="abort")]) == 0


def test_rollouts_without_a_process_do_not_count() -> None:
    tally = HostedTally()
    for event in [started("react"), entry(2, SAID), entry(6, SAID)]:
        tally.event(event)
    for position in (2, 6):
        tally.call(model_call(position, "one"))

    assert (tally.figures().rollouts, tally.figures().asked_again) == (0, 0)


def test_divergences_and_moves_count_once_and_keep_the_difference() -> None:
    tally = HostedTally()
    why = "agent 'python' has diverged from its history: what was told"
    moved = entry(3, CallFailed("history_needed", "it is new here", retriable=True))
    for event in [
        started(), moved, moved, entry(5, CallFailed("overloaded", "", retriable=True)),
        entry(7, CallFailed("session_lost", why, retriable=False)),
        entry(7, CallFailed("session_lost", why, retriable=False)),
        entry(7, CallFailed("session_lost", "it cannot be rebuilt", retriable=False), attempt=2),
    ]:  # fmt: skip
        tally.event(event)

    found = tally.figures(restarts=4)
    assert (found.rollouts, found.moved, found.diverged, found.restarts) == (1, 1, 1, 4)
    assert found.differences == (why,)


def test_agent_restarts_are_counted_in_the_worker_log(tmp_path: Path) -> None:
    log = tmp_path / "environments-1.log"
    lines = [
        json.dumps({"event": "agent_restarted", "signal": 9}),
        json.dumps({"event": "agent_diverged", "difference": "said agent_restarted"}),
        "agent_restarted, not in JSON",
        json.dumps(["agent_restarted"]),
        json.dumps({"event": "agent_restarted"})[:-3],
    ]
    log.write_text("\n".join(lines))

    assert restarts_in(log) == 1


def test_log_without_hosted_rollouts_has_no_figures(tmp_path: Path) -> None:
    rig = Rig(partitions=2, policies=(workload.POLICY,))

    assert figures_of(rig, workload.POLICY, tmp_path).rollouts == 0
