"""Workers on the real broker, ended in every way: no agent outlives its worker, nothing is lost."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollcall.compose.chaos import hosted_agents
from rollcall.compose.chaos.victims import agents_below
from rollcall.compose.cluster import Cluster
from rollcall.compose.processes import started
from rollcall.consumers.audit.audit import audit
from rollcall.schemas.messages import EnvironmentStepped, Event, Limits, RolloutRequest, Task
from tests.support.crew import (
    Crew,
    Seen,
    assert_nothing_lost_or_doubled,
    everything,
    publish,
    reach,
)
from tests.support.memory_cluster import CORRIDOR
from tests.support.waiting import until

pytestmark = pytest.mark.broker

LIVE = 5
CONFIG = {
    "agent": "python",
    "function": f"{Path(hosted_agents.__file__)}:sequential",
    "turns": 3,
}


def hosted(number: int) -> RolloutRequest:
    return RolloutRequest(
        f"hosted-{number}",
        Task(CORRIDOR, seed=number, prompt="Find the door."),
        agent="hosted",
        agent_config=json.dumps(CONFIG),
        policy_id="p",
        limits=Limits(max_turns=20, call_timeout_s=300.0, step_timeout_s=120.0),
    )


@pytest.fixture
def crew(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(make_cluster("p"), tmp_path)
    yield crew
    crew.close()


def agents_of(crew: Crew, name: str) -> list[int]:
    """The agents of a worker once all live in it; nobody serves their policy, so they stay.

    They may be more: those of an earlier one that had asked for nothing yet begin here again.
    """
    pid = crew.processes[name].pid
    until(lambda: len(agents_below(pid)) >= LIVE, 120, lambda: crew.words(name))
    return agents_below(pid)


def gone_within_10_s(agents: list[int]) -> None:
    until(lambda: not any(map(started, agents)), 10, lambda: f"of {agents} some are left")


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_no_agent_outlives_its_worker_and_all_resume_in_the_next(crew: Crew) -> None:
    requests: list[RolloutRequest] = []
    crew.start("agents")

    for number, ends in enumerate((signal.SIGINT, signal.SIGKILL), 1):
        asked = [hosted(10 * number + each) for each in range(LIVE)]
        publish(crew.cluster, asked)
        requests += asked
        name = crew.start("environments", number)
        agents = agents_of(crew, name)
        crew.processes[name].send_signal(ends)
        gone_within_10_s(agents)
        assert crew.processes[name].wait(60) == (-ends if ends == signal.SIGKILL else 0)

    crew.start("models")
    crew.start("environments", 3)
    crew.start("rewards")
    reach(crew, Seen(crew.cluster), len(requests), 120)
    assert_nothing_lost_or_doubled(crew.cluster, requests)
    assert audit(crew.cluster, drained=True).breaches == []
    killed = "environments-2"  # it may have answered what it had not committed; nobody else did
    assert {first for first, *again in answering(crew).values() if again} <= {killed}


def answering(crew: Crew) -> dict[bytes, list[str]]:
    """The worker that answered each step, in order."""
    cluster, by_command = crew.cluster, dict[bytes, list[str]]()
    for record in everything(cluster, cluster.topics.events):
        event = cluster.codec.decode(record.value, Event)
        if isinstance(event.body, EnvironmentStepped):
            by_command.setdefault(event.command_id, []).append(event.written_by)
    return by_command
