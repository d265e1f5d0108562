"""Turns per second of `react` in 64 namespace boxes; the model answers `true` at once.

Real worker processes run on a real broker, as in `spine`; the boxes are those of an environments
worker with 64 slots, a new one for each rollout. The ceiling is the same with an environment that
answers at once, measured directly afterwards.
"""

import json
import time
from dataclasses import replace
from typing import NamedTuple

from rollcall.compose.benchmarks import load, spine
from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.benchmarks.own_cluster import (
    Measurement,
    await_records,
    cpu_shares,
    measure,
    own_cluster,
    processes,
    publish,
    with_slots,
)
from rollcall.compose.benchmarks.requirements import require_driver
from rollcall.compose.cluster import Cluster
from rollcall.compose.settings import Settings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.loop.loop import Loop
from rollcall.inference.scripted import Script
from rollcall.schemas.messages import Limits, RolloutRequest, Task

DRIVER = "bubblewrap"
BOXES = 64
TURNS = 50
"""The turns of each rollout, and so of each box."""
AHEAD = 12_000
WARM_S = 15.0
WINDOW_S = 20.0
TOKENS = 8
COMMAND = "true"
ENVIRONMENTS, MODELS = "box-environments", "true-models"
CONFIG = {"box": DRIVER, "instruction": load.SEEN}


class Crew(NamedTuple):
    """One side of the comparison: the rollouts' id prefix, environments worker and task."""

    prefix: str
    environments: str
    task: Task


IN_BOXES = Crew("b", ENVIRONMENTS, Task(environment="shell", environment_config=json.dumps(CONFIG)))
AT_ONCE = Crew("i", "environments", load.request("", TURNS).task)


def turns_per_second(settings: Settings) -> Figure:
    """Measure turns per second in 64 boxes, against those of 64 rollouts without boxes."""
    require_driver(DRIVER)
    agents = settings.agents.model_copy(update={"max_live": BOXES})
    measured = []
    for crew in (IN_BOXES, AT_ONCE):
        with own_cluster(settings.model_copy(update={"agents": agents})) as cluster:
            measured.append(_turns(cluster, crew))
    boxes, instant = measured
    notes = (_note("in boxes", boxes), _note("answered at once", instant))
    return Figure(boxes.rate, "turns/s", instant.rate, notes=notes)


def environments(cluster: Cluster) -> Loop:
    """Build a worker with room for all sessions."""
    settings = with_slots(cluster.settings, box=BOXES)
    factory = WorkerFactory(cluster.log, cluster.codec, cluster.topics, settings)
    return factory.environments(ENVIRONMENTS)


def script() -> Script:
    """Return a script that answers any call with the same command."""
    stock = [replace(each, text=COMMAND) for each in load.answers(TOKENS)]
    return lambda call: stock[call.seed % len(stock)]


def request(crew: Crew, number: int) -> RolloutRequest:
    """Return the request of one rollout of `react`."""
    return RolloutRequest(
        f"{crew.prefix}{number:031x}",
        crew.task,
        policy_id=load.POLICY,
        run_id="bench",
        limits=Limits(max_turns=TURNS),
    )


def _turns(cluster: Cluster, crew: Crew) -> Measurement:
    publish(cluster, (request(crew, number) for number in range(AHEAD)))
    roles = ("agents", MODELS, crew.environments)
    topic = cluster.topics.events
    with processes(cluster, *([role, str(TOKENS), "0"] for role in roles)) as pids:
        await_records(cluster, topic, 4 * BOXES, pids)
        time.sleep(WARM_S)
        window = measure(cluster, topic, pids, WINDOW_S, spine.is_answer)
        spine.check_ahead(cluster)
    return window


def _note(what: str, window: Measurement) -> str:
    cpu_ms = sum(window.cpu_s.values()) / max(1, window.count) * 1e3
    return (
        f"{what}: {window.rate:,.0f} turns/s over {window.seconds:.1f} s; {cpu_shares(window)}; "
        f"{cpu_ms:.2f} ms of CPU per turn, without what runs in boxes"
    )
