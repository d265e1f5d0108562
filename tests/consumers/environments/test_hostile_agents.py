"""Misbehaving agents, sharing one fork server and one gateway: their rollouts end properly."""

import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollcall.schemas.messages import ModelCall, Trajectory
from tests.support.hosted_rollout import HostedRun
from tests.support.process_host import lived
from tests.support.processes_left import running
from tests.support.waiting import until

FUNCTIONS = Path(__file__).parents[2] / "support" / "hostile_agents.py"


def hears(call: ModelCall) -> str:
    """Returns the last message of the call."""
    return call.messages[-1].content


def hosted(function: str, **config: Any) -> HostedRun:
    given = {"agent": "python", "function": f"{FUNCTIONS}:{function}", **config}
    return HostedRun(config=given, say=hears)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Trajectory]:
    """The result of each agent, by function."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "precious").mkdir()
    (folder / "precious" / "file").write_text("of somebody's")
    mark = f"company-{secrets.token_hex(8)}"
    runs = {
        "lends_its_sockets": hosted("lends_its_sockets", mark=mark),
        "closes_its_output": hosted("closes_its_output"),
        "leaves_its_callers": hosted("leaves_its_callers"),
        "removes_its_directory": hosted("removes_its_directory", precious=str(folder / "precious")),
        "has_much_to_remember": hosted("has_much_to_remember"),
    }
    trajectories = lived(folder, *runs.values())
    until(lambda: running(mark) == [], 10, lambda: f"{running(mark)} are left")
    assert list((folder / "scratch").iterdir()) == []
    assert (folder / "precious" / "file").read_text() == "of somebody's"
    for run in runs.values():
        assert not Path(f"/proc/{run.host.started[-1].pid}").exists()
        assert len(run.host.started) == 1
    return dict(zip(runs, trajectories, strict=True))


@pytest.mark.parametrize(
    ("function", "result"),
    [
        ("lends_its_sockets", "I have company"),
        ("closes_its_output", "quietly"),
        ("removes_its_directory", "without a home"),
        ("has_much_to_remember", "OSError7"),
    ],
)
def test_an_agent_that_harms_itself_is_heard_and_ends(
    ended: Mapping[str, Trajectory], function: str, result: str
) -> None:
    trajectory = ended[function]

    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    assert trajectory.result == result


def test_an_agent_that_exits_with_open_child_calls_has_finished(
    ended: Mapping[str, Trajectory],
) -> None:
    trajectory = ended["leaves_its_callers"]

    assert (trajectory.status, trajectory.result) == ("finished", ""), trajectory.reason
    assert 1 <= trajectory.model_calls <= 11


def test_a_suspended_copy_that_wakes_up_changes_nothing(tmp_path: Path) -> None:
    # Given a suspended worker with its agent, and another one in its place
    zombies = []

    async def disturb(run: HostedRun) -> None:
        if run.answered == 2 and not zombies:
            os.kill(run.host.started[0].pid, signal.SIGSTOP)
            zombies.append(run.sessions)
            run.sessions = run.fresh()
        elif run.answered == 4:
            os.kill(run.host.started[0].pid, signal.SIGCONT)

    still, run = hosted("talks"), hosted("talks")
    run.disturb = disturb

    # When both live on
    undisturbed, trajectory = lived(tmp_path, still, run)

    # Then the rollout has lived once
    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    assert trajectory.result == undisturbed.result
    assert len(run.calls) == len(still.calls) == 3
    assert len(run.host.started) == 2
