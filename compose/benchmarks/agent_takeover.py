"""The takeover of fifty mini-swe-agents whose environments worker is killed.

All have asked for their answer number eleven when it is killed; the answers are given then, so the
successor finds a step for every agent. It forks each again, replays ten turns from the journal,
runs the commands of its shell again, and gets its next ask. The time counts from the assignment of
the first partition to the successor, when the group has noticed, to the append time of the last
agent's ask. The ceiling is the import of the agent, which comes before any fork.
"""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from rollcall.compose.benchmarks import load
from rollcall.compose.benchmarks.agent_memory import AGENT
from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.benchmarks.own_cluster import (
    await_records,
    logs_of,
    own_cluster,
    processes,
    publish,
    wait_for,
    with_slots,
)
from rollcall.compose.benchmarks.takeover import noticed_at
from rollcall.compose.cluster import Cluster
from rollcall.compose.settings import Settings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.log.reading import read_all
from rollcall.consumers.loop.loop import Loop
from rollcall.inference.engine import EngineAnswer
from rollcall.inference.scripted import ScriptedEngine
from rollcall.inference.text_script import added_by, text_script
from rollcall.sandbox.agents.agent_processes import AgentProcesses
from rollcall.sandbox.agents.shipped import interpreter
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import Limits, ModelCall, RolloutRequest, Sampling, Task, Trajectory

LIVE = 50
TURN = 10
PATIENCE_S = 300.0
MODELS, VICTIM, HEIR = "gated-models", "hosts", "hosts-2"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo done"
GATE = "go-on"


def speak(conversation: str) -> str:
    """Answer with ten commands, then the end."""
    said = conversation.count("<|im_start|>assistant\n") - 1
    command = SUBMIT if said >= TURN else f"echo {said} >> notes.txt; cat notes.txt"
    call = {"name": "bash", "arguments": {"command": command}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


class Gated(ScriptedEngine):
    """An engine that answers ten calls of each rollout, and later ones once a file exists."""

    def __init__(self, gate: Path) -> None:
        super().__init__(load.POLICY, text_script(speak, "speak"), render=added_by)
        self._gate = gate
        self._begun: Counter[str] = Counter()
        self._late: list[ModelCall] = []

    def add(self, call: ModelCall) -> None:
        self._begun[call.rollout_id] += 1
        if self._begun[call.rollout_id] > TURN:
            self._late.append(call)
        else:
            super().add(call)

    def busy(self) -> bool:
        return super().busy() or (bool(self._late) and self._gate.exists())

    def step(self) -> list[EngineAnswer]:
        if self._gate.exists():
            late, self._late = self._late, []
            for call in late:
                super().add(call)
        return super().step()


def models(cluster: Cluster, factory: WorkerFactory) -> Loop:
    """Build the worker that answers calls."""
    return factory.models(MODELS, Gated(_gate(cluster)))


def hosts(cluster: Cluster, name: str) -> Loop:
    """Build a worker with room for all agents and their shells."""
    settings = with_slots(cluster.settings, hosted=LIVE, box=LIVE)
    return WorkerFactory(cluster.log, cluster.codec, cluster.topics, settings).environments(name)


def kill(settings: Settings, *, live: int = LIVE) -> Figure:
    """Measure seconds from the group's notice until all have asked again; raises WorkFailed if the
    agent is not installed.
    """
    interpreter(settings.installed_agents(), AGENT)
    import_s = asyncio.run(_import_s(settings))
    with own_cluster(settings) as cluster:
        _submit(cluster, live)
        commands = [[role, "64", "0"] for role in ("agents", MODELS, VICTIM)]
        with processes(cluster, *commands, doomed=[VICTIM]) as pids:
            calls = cluster.topics.calls(load.POLICY)
            await_records(cluster, calls, (TURN + 1) * live, pids, PATIENCE_S)
            os.kill(pids[VICTIM], signal.SIGKILL)
            killed = time.time()
            _gate(cluster).touch()
            with processes(cluster, [HEIR, "64", "0"]) as heirs:
                watched = {**heirs, **{n: pid for n, pid in pids.items() if n != VICTIM}}
                log, steps = logs_of(cluster) / f"{HEIR}.log", cluster.topics.steps
                wait_for(lambda: bool(noticed_at(log, steps)), "a takeover", watched.values())
                ended = cluster.topics.trajectories
                await_records(cluster, ended, live, watched, PATIENCE_S)
        return _figure(cluster, live, killed, noticed_at(log, steps), import_s)


def _submit(cluster: Cluster, live: int) -> None:
    limits = Limits(max_turns=2 * TURN, call_timeout_s=PATIENCE_S, step_timeout_s=PATIENCE_S)
    requests = (
        RolloutRequest(
            f"a{number:031x}",
            Task("shell", json.dumps({"box": "local"}), prompt=f"Count to ten ({number})."),
            agent="hosted",
            agent_config=json.dumps({"agent": AGENT}),
            policy_id=load.POLICY,
            run_id="bench",
            sampling=Sampling(max_tokens=1024),
            limits=limits,
        )
        for number in range(live)
    )
    publish(cluster, requests)


def _figure(cluster: Cluster, live: int, killed: float, noticed: float, import_s: float) -> Figure:
    """Return the figure; raises WorkFailed if a rollout did not end as without the kill."""
    asked: dict[bytes | None, int] = {}
    for record in read_all(cluster.log, [cluster.topics.events], most=5000):
        kind = dict(record.headers or ())["ce_type"]
        if kind == b"EnvironmentStepped" and record.timestamp_ms >= noticed * 1000:
            asked.setdefault(record.key, record.timestamp_ms)
    for record in read_all(cluster.log, [cluster.topics.trajectories]):
        whole = cluster.codec.decode(record.value, Trajectory)
        if whole.status != "finished":
            msg = f"rollout {whole.rollout_id} is {whole.status}: {whole.reason}"
            raise WorkFailed("benchmark", msg, retriable=False)
    waits = sorted(at / 1000 - noticed for at in asked.values())
    repeated = _calls(cluster) - (TURN + 1) * live
    note = (
        f"{len(waits)} agents at turn {TURN}, half had asked anew after "
        f"{waits[len(waits) // 2]:.1f} s; the group noticed {noticed - killed:.1f} s after the "
        f"kill; {repeated} model calls repeated"
    )
    return Figure(waits[-1], "s", import_s, lower_is_better=True, notes=(note,))


def _calls(cluster: Cluster) -> int:
    """Return the number of model calls, repeated ones included."""
    topic = cluster.topics.calls(load.POLICY)
    calls = (cluster.codec.decode(r.value, ModelCall) for r in read_all(cluster.log, [topic]))
    return sum(call.kind == "sample" for call in calls)


async def _import_s(settings: Settings) -> float:
    """Return the seconds of the agent's import in a fork server."""
    with tempfile.TemporaryDirectory(prefix="rollcall-bench-") as folder:
        fresh = AgentProcesses(settings.installed_agents(), Path(folder))
        try:
            return float((await fresh.prepare(AGENT, {}))["import_s"])
        finally:
            await fresh.close()


def _gate(cluster: Cluster) -> Path:
    return logs_of(cluster) / GATE
