"""A crew in one process, as with `--log memory`: user code that hangs is ended."""

import signal
import time
from collections.abc import Iterator

import pytest

from rollcall.compose.settings import (
    AgentsSettings,
    EnvironmentsSettings,
    RewardsSettings,
    Settings,
)
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Reset, Step, Task, user
from rollcall.consumers.loop import time_guard
from rollcall.inference.scripted import ScriptedEngine
from rollcall.sandbox.environment import Observation
from rollcall.schemas.messages import (
    CallFailed,
    Limits,
    RolloutRequest,
    ScoredTrajectory,
    Trajectory,
)
from rollcall.schemas.messages import Task as Wanted
from tests.support.memory_cluster import POLICY, MemoryCluster
from tests.support.rig import PREFIX

HERE = __name__
LIMIT_S = 0.2


class Hangs:
    """An environment in which one action never returns."""

    replayable = True

    def open(self, seed: int) -> Observation:
        return Observation("here")

    def step(self, action: str) -> Observation:
        if action == "hang":
            time.sleep(3600)
        return Observation("went on", 1.0, terminated=True)

    def close(self) -> None:
        pass


def walks(task: Task) -> Agent:
    """One step in the environment, as the model says; some prompts never come back."""
    yield Reset()
    if task.prompt == "hang here":
        time.sleep(3600)
    answer = yield CallModel([user(task.prompt)])
    seen = yield Step(answer.text)
    yield Finish(seen.text)


def judges(trajectory: Trajectory) -> float:
    if trajectory.request and trajectory.request.task.prompt == "hang the judge":
        time.sleep(3600)
    return 1.0


@pytest.fixture
def signals() -> Iterator[None]:
    before, watched = signal.getsignal(time_guard.SIGNAL), time_guard.WATCHED[:]
    yield
    signal.signal(time_guard.SIGNAL, signal.SIG_IGN if before is signal.SIG_DFL else before)
    time_guard.WATCHED[:] = watched


@pytest.mark.usefixtures("signals")
def test_hanging_program_environment_and_scorer_are_ended_by_name() -> None:
    cluster = MemoryCluster()
    settings = Settings(
        prefix=PREFIX,
        agents=AgentsSettings(program_timeout_s=LIMIT_S),
        environments=EnvironmentsSettings(),
        rewards=RewardsSettings(scorers=[f"{HERE}:judges"], scorer_timeout_s=LIMIT_S),
    )
    factory = WorkerFactory(
        cluster.log, cluster.codec, cluster.topics, settings, watched=False, guarded=True
    )
    engine = ScriptedEngine(POLICY, lambda call: call.messages[-1].content.removesuffix(" it"))
    cluster.log.crew = [
        factory.agents("a"),
        factory.models("m", engine),
        factory.environments("e"),
        factory.rewards("r"),
    ]
    for prompt in ("hang here", "hang it", "hang the judge", "go"):
        task = Wanted(f"{HERE}:Hangs", prompt=prompt)
        step_s = 1.0 if prompt == "hang it" else 60.0
        limits = Limits(step_timeout_s=step_s, max_tries=1, max_attempts=1)
        cluster.ask(
            RolloutRequest(prompt, task, agent=f"{HERE}:walks", policy_id=POLICY, limits=limits)
        )

    cluster.finish()

    scored = cluster.read(cluster.topics.scored, ScoredTrajectory)
    ends = {each.trajectory.rollout_id: each for each in scored}
    assert ends["go"].total == 1.0
    assert ends["hang here"].trajectory.code == "stuck"
    assert ends["hang the judge"].total is None
    assert "did not come back within 0.2 s" in ends["hang the judge"].reason
    (failed,) = cluster.events(CallFailed)
    assert (failed.rollout_id, failed.body.code) == ("hang it", "deadline")
    assert "the environment did not come back within 1 s" in failed.body.message
