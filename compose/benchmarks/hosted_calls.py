"""Third-party agents: model calls per second over HTTP, and the latency of one call.

Real agents and environments workers with the gateway run on a real broker, the policy is scripted;
the agents themselves are raw callers, so that their own time is not measured. The ceiling of the
rate is that of the same callers with a bare aiohttp server; the ceiling of one call is a turn of a
native program in the same run.
"""

import asyncio
import json
import statistics
import time
from functools import partial

import orjson
from aiohttp import web

from rollcall.compose.benchmarks import load, spine
from rollcall.compose.benchmarks.caller_processes import CallerProcesses
from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.benchmarks.own_cluster import (
    await_records,
    cpu_shares,
    logs_of,
    measure,
    own_cluster,
    processes,
    publish,
    with_slots,
)
from rollcall.compose.cluster import Cluster
from rollcall.compose.settings import Settings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.loop.loop import Loop
from rollcall.inference.engine import EngineAnswer
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.messages import Limits, ModelCall, RolloutRequest, Sampling, Task

LIVE = 1000
AHEAD = 12_000
WARM_S = 10.0
WINDOW_S = 15.0
BARE_S = 6.0
ALONE = 60
"""The number of rollouts of 8 calls, one live at a time."""
ROUNDS = 2
"""The number of rounds of them, and of native rollouts."""
SLOW_S = 0.05
"""The model's time per call in the test with parallel callers."""
ROLES = ("agents", "models", "hosted-environments")
TIMES = "calls.txt"


class CallersFactory(WorkerFactory):
    """A worker factory whose agents are raw callers; their calls' times are written beside the
    logs."""

    def agent_processes(self) -> CallerProcesses:
        times = self.settings.state() / "bench" / TIMES

        def note(seconds: list[float]) -> None:
            with times.open("a") as file:
                file.writelines(f"{each:.6f}\n" for each in seconds)

        return CallerProcesses(note)


def environments(cluster: Cluster) -> Loop:
    """Build a worker with room for all sessions."""
    settings = with_slots(cluster.settings, hosted=LIVE)
    factory = CallersFactory(cluster.log, cluster.codec, cluster.topics, settings)
    return factory.environments("hosted-environments")


class Slow(ScriptedEngine):
    """An engine that answers all pending calls, a while after the first of them came."""

    due = 0.0

    def add(self, call: ModelCall) -> None:
        self.due = self.due or time.monotonic() + SLOW_S
        super().add(call)

    def step(self) -> list[EngineAnswer]:
        if time.monotonic() < self.due:
            return []
        self.due = 0.0
        return super().step()


def calls_per_second(settings: Settings, tokens: int) -> Figure:
    """Measure calls of `tokens` tokens per second, with 1,000 sessions live."""
    agents = settings.agents.model_copy(update={"max_live": LIVE})
    with own_cluster(settings.model_copy(update={"agents": agents})) as cluster:
        submit(cluster, AHEAD)
        with processes(cluster, *([role, str(tokens), "0"] for role in ROLES)) as pids:
            await_records(cluster, cluster.topics.events, 4 * LIVE, pids)
            time.sleep(WARM_S)
            ours = measure(cluster, cluster.topics.events, pids, WINDOW_S, spine.is_answer)
    bare = asyncio.run(_bare(tokens))
    return Figure(
        ours.rate, "calls/s", bare, notes=(f"over {ours.seconds:.1f} s; {cpu_shares(ours)}",)
    )


def call_latency(settings: Settings, tokens: int = 64) -> Figure:
    """Measure the median time of a call over HTTP, one session live, against a native turn.

    They alternate on a warm broker, as the first would otherwise include its slow first minute.
    """
    took, native = [], []
    with own_cluster(settings) as cluster:
        spine.warm_up(cluster, tokens)
        for _ in range(ROUNDS):
            took += _calls_alone(cluster, tokens, ALONE // ROUNDS)
            native += spine.native_turns(cluster, tokens, ALONE // ROUNDS)
    seen = statistics.quantiles(took, n=100)
    note = f"{len(took)} calls, p50 {seen[49]:.1f} ms, p99 {seen[98]:.1f} ms"
    return Figure(
        statistics.median(took),
        "ms",
        statistics.median(native),
        lower_is_better=True,
        notes=(note,),
    )


def _calls_alone(cluster: Cluster, tokens: int, rollouts: int) -> list[float]:
    """Return the milliseconds of each call of further sessions, one live at a time."""
    ended = cluster.topics.trajectories
    before = sum(cluster.admin.ends({ended: cluster.log.partitions(ended)}).values())
    told = len(_times(cluster))
    with processes(cluster, *([role, str(tokens), "0"] for role in ROLES)) as pids:
        for number in range(before, before + rollouts):
            submit(cluster, 1, first=number)
            await_records(cluster, ended, number + 1, pids)
    return [1000 * float(line) for line in _times(cluster)[told:]]


def side_by_side(settings: Settings, tokens: int = 64) -> Figure:
    """Measure calls per second of one agent with two callers, against two agents with one."""
    rates = [_rate_of(settings, tokens, agents, callers) for agents, callers in ((1, 2), (2, 1))]
    return Figure(rates[0], "calls/s", rates[1])


def _rate_of(settings: Settings, tokens: int, agents: int, callers: int) -> float:
    turns = 60
    with own_cluster(settings) as cluster:
        roles = ("agents", "slow-models", "hosted-environments")
        with processes(cluster, *([role, str(tokens), "0"] for role in roles)) as pids:
            submit(cluster, agents, turns=4)
            await_records(cluster, cluster.topics.trajectories, agents, pids)
            before = len(_times(cluster))
            submit(cluster, agents, first=agents, turns=turns, callers=callers)
            await_records(cluster, cluster.topics.trajectories, 2 * agents, pids)
        took = [float(line) for line in _times(cluster)[before:]]
    return 2 / statistics.mean(took)


def submit(
    cluster: Cluster, count: int, *, first: int = 0, turns: int = load.TURNS, callers: int = 1
) -> None:
    """Publish requests for `count` sessions."""
    config = {"agent": "python", "function": "bench.py:none", "turns": turns, "callers": callers}
    requests = (
        RolloutRequest(
            f"h{number:031x}",
            Task(),
            agent="hosted",
            agent_config=json.dumps(config),
            policy_id=load.POLICY,
            run_id="bench",
            sampling=Sampling(max_tokens=1024),
            limits=Limits(max_turns=turns * callers),
        )
        for number in range(first, first + count)
    )
    publish(cluster, requests)


def _times(cluster: Cluster) -> list[str]:
    file = logs_of(cluster) / TIMES
    return file.read_text().splitlines() if file.exists() else []


async def _bare(tokens: int) -> float:
    """Measure calls per second of a bare server, with as many sessions live."""
    (answer,) = load.answers(tokens, count=1)
    message = {"role": "assistant", "content": answer.text}
    body = orjson.dumps({"choices": [{"index": 0, "message": message}]})

    async def answered(request: web.BaseRequest) -> web.Response:
        orjson.loads(await request.read())
        return web.Response(body=body, content_type="application/json")

    server = web.Server(answered, access_log=None)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, backlog=LIVE)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    calls: list[float] = []
    callers = CallerProcesses(calls.extend)
    until = time.monotonic() + BARE_S
    going = [asyncio.create_task(_go_on(callers, url, until)) for _ in range(LIVE)]
    began = time.monotonic()
    await asyncio.gather(*going)
    seconds = time.monotonic() - began
    await callers.close()
    listener.close()
    await server.shutdown()
    return len(calls) / seconds


async def _go_on(callers: CallerProcesses, url: str, until: float) -> None:
    config = {"turns": load.TURNS, "callers": 1}
    while time.monotonic() < until:
        await (await callers.start("", config, url=url, key="none")).wait()


CALLS_64 = partial(calls_per_second, tokens=64)
CALLS_512 = partial(calls_per_second, tokens=512)
