"""Real agents' processes with a vendor's client, killed at every point: no call is made twice."""

import json
import os
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rollcall.schemas.messages import Task
from tests.support.hosted_rollout import HostedRun
from tests.support.process_host import lived
from tests.support.tiers import cases

FUNCTIONS = Path(__file__).parents[2] / "support" / "hosted_functions.py"


def hosted(function: str, seed: int = 0, **fields: Any) -> HostedRun:
    config = {"agent": "python", "function": f"{FUNCTIONS}:{function}", "catch_up_s": 2.0}
    return HostedRun(config=config, random=Random(seed), **fields)


@pytest.mark.parametrize("function", cases(["parallel", "sequential"]))
def test_a_process_killed_at_any_call_repeats_no_call(function: str, tmp_path: Path) -> None:
    echo = Task("tests.support.hosted_rollout:Echo")
    task = echo if function == "sequential" else Task(prompt="do it")

    def disturbed(at: int) -> HostedRun:
        async def disturb(run: HostedRun) -> None:
            if run.answered == at:
                run.answered += 1000  # once
                if at % 2:
                    await run.move()
                else:
                    os.kill(run.host.started[-1].pid, signal.SIGKILL)

        return hosted(function, at, task=task, disturb=disturb)

    still, *killed = runs = [hosted(function, task=task), *map(disturbed, range(3, 11))]

    undisturbed, *trajectories = lived(tmp_path, *runs)

    assert undisturbed.status == "finished", undisturbed.reason
    for run, trajectory in zip(killed, trajectories, strict=True):
        assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
        assert len(run.calls) == len(still.calls) == trajectory.model_calls
        assert run.answered >= 1000
        assert len(run.host.started) == 2


def test_a_nondeterministic_agent_gets_another_attempt(tmp_path: Path) -> None:
    async def disturb(run: HostedRun) -> None:
        if run.answered == 5:
            run.answered += 1000
            await run.move()

    run = hosted("noisy", disturb=disturb)
    run.config = {**run.config, "catch_up_s": 0.2}

    [trajectory] = lived(tmp_path, run)

    assert (trajectory.status, trajectory.attempt) == ("finished", 2)
    assert "I am " in json.loads(trajectory.result)[0]["content"]


def test_an_agents_last_output_before_it_fails_is_the_reason(tmp_path: Path) -> None:
    [trajectory] = lived(tmp_path, hosted("fails"))

    assert (trajectory.status, trajectory.code) == ("failed", "agent_exit")
    assert "ended with code 3; its last words: about to fail" in trajectory.reason
