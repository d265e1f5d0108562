"""Measured processes: `python -m rollcall.compose.benchmarks.measured_process ROLE TOKENS [LIVE]`.

Agents (also agents-2 and so on), models and environments are the workers of `rollcall worker` with
a scripted policy, hosts is the environments worker with real agents; the echo roles are the
ceiling, the avro roles the echo with Avro. Nothing is scored.
"""

import sys

from rollcall.compose.benchmarks import agent_takeover, box_turns, echo, hosted_calls, load
from rollcall.compose.cluster import cluster_of
from rollcall.compose.log_setup import set_up
from rollcall.compose.settings import load_settings
from rollcall.compose.workers.shutdown import Stop
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.inference.scripted import ScriptedEngine

ENGINES = {
    "models": ScriptedEngine,
    "slow-models": hosted_calls.Slow,
    box_turns.MODELS: ScriptedEngine,
}


def main(role: str, tokens: int, live: int) -> None:
    set_up(role, role)
    cluster = cluster_of(load_settings())
    stop = Stop()
    kind, _, echoed = role.partition("-")
    if kind in echo.KINDS:
        echo.run(kind, echoed, cluster, tokens, live, stop)
        return
    factory = WorkerFactory(cluster.log, cluster.codec, cluster.topics, cluster.settings)
    if role.startswith("agents"):
        loop = factory.agents(role)
    elif role in ENGINES:
        script = box_turns.script() if role == box_turns.MODELS else load.script(tokens)
        loop = factory.models(role, ENGINES[role](load.POLICY, script))
    elif role == "hosted-environments":
        loop = hosted_calls.environments(cluster)
    elif role == box_turns.ENVIRONMENTS:
        loop = box_turns.environments(cluster)
    elif role == agent_takeover.MODELS:
        loop = agent_takeover.models(cluster, factory)
    elif role in (agent_takeover.VICTIM, agent_takeover.HEIR):
        loop = agent_takeover.hosts(cluster, role)
    else:
        loop = factory.environments(role)
    loop.run(stop)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
