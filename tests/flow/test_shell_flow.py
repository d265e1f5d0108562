"""Whole rollouts in a shell, with real processes on the in-memory log."""

import json
import time
from collections.abc import Iterator

import pytest

from rollcall.consumers.loop.loop import Loop
from rollcall.inference.scripted import ScriptedEngine
from rollcall.inference.text_script import added_by, text_script
from rollcall.sandbox.boxes.box import Box
from rollcall.schemas.messages import (
    Limits,
    ModelCall,
    RolloutRequest,
    ScoredTrajectory,
    Task,
    Trajectory,
)
from tests.support.mortal_boxes import MortalHost, kill
from tests.support.rig import Rig
from tests.support.shell_page import count_red, shell_task
from tests.support.waiting import until

TASK = shell_task()


def policy() -> ScriptedEngine:
    return ScriptedEngine("p", text_script(count_red(), "count_red"), render=added_by)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(partitions=2)
    yield rig
    rig.close()


def ask(rig: Rig, number: int) -> None:
    task = Task(TASK["environment"], json.dumps(TASK["environment_config"]), seed=number)
    limits = Limits(max_turns=6, step_timeout_s=60.0)
    rig.ask(RolloutRequest(f"r{number}", task, policy_id="p", limits=limits), partition=None)


def finish(rig: Rig, rollouts: int, *loops: Loop) -> list[Trajectory]:
    """Turn until the given number has ended; process start times depend on the machine."""
    deadline = time.monotonic() + 60
    while len(rig.trajectories()) < rollouts:
        assert time.monotonic() < deadline
        for loop in loops:
            loop.turn(0.0)
    return rig.trajectories()


def test_rollouts_share_slots_and_all_are_solved(rig: Rig) -> None:
    loops = [rig.agents(), rig.models(policy()), rig.environments(slots={"box": 2})]
    for number in range(5):
        ask(rig, number)

    ended = finish(rig, 5, *loops)

    assert [(t.status, sum(step.reward for step in t.steps or ())) for t in ended] == [
        ("finished", 1.0)
    ] * 5
    assert {step.text for t in ended for step in t.steps or () if step.reward} == {
        "exit code 0\nCOMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n"
    }


def test_rollout_repeats_its_commands_after_the_loss_of_its_worker(rig: Rig) -> None:
    agents, models = rig.agents(), rig.models(policy())
    first = rig.environments("e1", slots={"box": 2})
    ask(rig, 0)
    while len(rig.read(rig.topics.calls("p"), ModelCall)) < 2:
        for loop in (agents, models, first):
            loop.turn(0.0)

    first.stop()
    (trajectory,) = finish(rig, 1, agents, models, rig.environments("e2", slots={"box": 2}))

    assert [step.reward for step in trajectory.steps or ()] == [0.0, 0.0, 1.0]
    assert len(rig.read(rig.topics.calls("p"), ModelCall)) == 2


def test_rollout_fails_unscored_when_all_its_boxes_die(rig: Rig) -> None:
    host = MortalHost(lambda box, number, nth, started: kill(box) if started else None)
    environments = rig.environments(slots={"box": 2}, hosts=lambda place: host)
    rewards = rig.rewards(scorers=("environment_return", "no_submission"))
    ask(rig, 0)

    (trajectory,) = finish(rig, 1, rig.agents(), rig.models(policy()), environments, rewards)

    def scored() -> list[ScoredTrajectory]:
        rewards.turn(0.0)
        return rig.read(rig.topics.scored, ScoredTrajectory)

    until(lambda: bool(scored()), 60, lambda: "it is not scored")

    assert (trajectory.status, trajectory.code) == ("failed", "box_died")
    assert environments.role.counts["box_died"] == host.lent == 3
    assert [(each.total, each.reason) for each in scored()] == [(None, "failed/box_died")]


def test_rollout_is_solved_although_its_box_died_once(rig: Rig) -> None:
    deaths: list[int] = []

    def once(box: Box, number: int, nth: int, started: bool) -> None:
        if number == 0 and nth == 1 and started:
            deaths.append(number)
            kill(box)

    host = MortalHost(once)
    environments = rig.environments(slots={"box": 2}, hosts=lambda place: host)
    ask(rig, 0)

    (trajectory,) = finish(rig, 1, rig.agents(), rig.models(policy()), environments)

    assert deaths == [0]
    assert [step.reward for step in trajectory.steps or ()] == [0.0, 0.0, 1.0]
    assert environments.role.counts["box_died"] == 1
    assert len(rig.read(rig.topics.calls("p"), ModelCall)) == 2
