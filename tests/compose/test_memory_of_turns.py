"""Memory that workers hold for each turn of a very long hosted rollout.

Tokens are bytes here (`rollcall.inference.scripted`): four of memory for each that was read, eight
for each that was sampled.
"""

import gc
import json
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from rollcall.sandbox.environment import Observation
from rollcall.schemas.messages import Limits, ModelCall, RolloutRequest, Sampling, Task
from rollcall.schemas.packed_rows import PACK_CHARS
from tests.support.held_bytes import held_bytes
from tests.support.memory_cluster import POLICY, MemoryCluster, hired
from tests.support.tiers import cases

FUNCTIONS = Path(__file__).parents[1] / "support" / "plain_agents.py"
PATIENCE_S = 60.0
FROM, TO = 40, 120
LOOKS = 4
TEXT, SAID = 1000, 100
"""Characters that the environment shows in a turn, and that the policy says."""


def noise(of: str, size: int) -> str:
    return "".join(sha256(f"{of} {part}".encode()).hexdigest() for part in range(size))[:size]


class Noise:
    replayable = True

    def open(self, seed: int) -> Observation:
        self.number = 0
        return Observation("ready")

    def step(self, action: str) -> Observation:
        self.number += 1
        return Observation(noise(str(self.number), TEXT))

    def close(self) -> None:
        pass


def by_seed(call: ModelCall) -> str:
    return noise(str(call.seed), SAID)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with hired(tmp_path, by_seed) as cluster:
        yield cluster


def weighed(cluster: MemoryCluster, turns: int) -> dict[str, int]:
    """Bytes that each worker holds after this number of calls; the least of several samples."""
    agents, models, environments, _ = cluster.log.crew
    named = {"agents": agents, "models": models, "environments": environments}
    until, looks = time.monotonic() + PATIENCE_S, []
    for turn in range(turns, turns + LOOKS):
        while models.role.counts["answered"] < turn:
            assert time.monotonic() < until
            cluster.log.work()
        gc.collect()
        looks.append({name: held_bytes(loop.role) for name, loop in named.items()})
    return {name: min(look[name] for look in looks) for name in named}


@pytest.mark.parametrize("api", cases(["chat", "responses"]))
def test_workers_hold_little_more_than_the_tokens_of_each_turn(
    api: str, cluster: MemoryCluster
) -> None:
    config = {"agent": "python", "function": f"{FUNCTIONS}:works", "api": api, "turns": TO + LOOKS}
    for loop in cluster.log.crew[1:3]:
        loop.role.kept.overtaken_bytes = 1 << 14
    cluster.ask(
        RolloutRequest(
            "r", Task(f"{__name__}:Noise", prompt="Do it."), agent="hosted", policy_id=POLICY,
            agent_config=json.dumps(config), sampling=Sampling(max_tokens=SAID),
            limits=Limits(max_turns=TO + 9, max_wishes=10 * TO, rollout_timeout_s=600.0),
        )
    )  # fmt: skip

    before, after = weighed(cluster, FROM), weighed(cluster, TO)

    held = {name: (after[name] - before[name]) / (TO - FROM) for name in before}
    words = TEXT + SAID
    read = 4 * (words + 20)
    texts = words if api == "responses" else 0  # which a later request may go on from
    assert held["models"] < read, held
    assert held["environments"] < words + texts + 400, held
    unpacked = 2 * PACK_CHARS / (TO - FROM)
    assert held["agents"] < read + 8 * SAID + 2 * words + 400 + unpacked, held
