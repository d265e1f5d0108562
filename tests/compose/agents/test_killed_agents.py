"""Third-party agents on a real broker, while all processes that serve them are killed.

Every rollout is a mini-swe-agent, an openai-agents or a smolagents agent in a shell. Most ask a
policy that solves their task, some one of random weights. Where a kill comes is drawn: the log has
to grow by so many entries between one and the next. SIEGE_KILLS and SIEGE_SEED make it
longer, and another one.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from rollcall.compose.chaos.victims import agents_below
from rollcall.compose.cluster import Cluster, answers
from rollcall.compose.services.embedded import Endpoints, down, up
from rollcall.consumers.audit.audit import audit
from rollcall.inference.policy_dir import make_policy
from rollcall.schemas.agent_requests import AgentAction, ModelReply, requests_of
from rollcall.schemas.known_requests import KnownRequests
from rollcall.schemas.messages import (
    Limits,
    RolloutRequest,
    Sampling,
    Task,
    Trajectory,
)
from tests.support import agent_policies
from tests.support.broker import users_cache
from tests.support.command_line import call
from tests.support.crew import Crew, Seen, publish
from tests.support.model_calls import called_again
from tests.support.policies import ROTARY
from tests.support.waiting import until

pytestmark = [pytest.mark.agents, pytest.mark.broker, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("SIEGE_SEED", "2026"))
KILLS = int(os.environ.get("SIEGE_KILLS", "5"))
"""Of each kind."""
KINDS = ("processes", "environments", "agents", "models")
AGENTS = tuple(agent_policies.CHORE_POLICIES)
"""One after another, so that a worker begun anew has to import one of them and not all."""
LIVE = 6
SOLVES, RANDOM = "solves", "random"
SESSION = {
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.heartbeat.interval.ms": "300",
}
PATIENCE_S = 120.0
TEMPLATE = [f"<|im_start|>{role}" for role in ("system", "user", "assistant", "tool")]
WORDS = ["<unk>", *TEMPLATE, "<|im_end|>", "<tool_call>", "</tool_call>", "ls", "red", "two", "2"]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A broker that notices killed members soon."""
    state = tmp_path_factory.mktemp("services")
    yield up(state, users_cache(), ready=answers, broker_properties=SESSION)
    down(state, wipe=True)


@pytest.fixture
def untaught(tmp_path: Path) -> Path:
    """A policy of random weights, which has a form for tools and makes no use of it."""
    config = ROTARY | {"model_type": "qwen2", "max_position_embeddings": 8192}
    template = {"kind": "chatml", "tools": "hermes"}
    return make_policy(
        tmp_path / "untaught", config=config, tokens=WORDS, template=template, seed=SEED
    )


class Siege:
    """A crew with two workers of each group, and the selection of processes to kill."""

    def __init__(self, crew: Crew, untaught: Path) -> None:
        self.crew, self.cluster, self.random = crew, crew.cluster, Random(SEED)
        self.seen = Seen(crew.cluster)
        self.requests: list[RolloutRequest] = []
        self.killed: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        self.live: dict[str, list[str]] = {
            kind: [self.start(kind) for _ in range(2)] for kind in KINDS[1:]
        }
        call(self.cluster, "publish-policy", str(untaught), f"--policy={RANDOM}")
        crew.start("models", 99, "--policy", RANDOM, "--directory", str(untaught))
        crew.start("rewards", 1, "--scorer", "environment_return", "--scoring-id", "return")

    def start(self, kind: str) -> str:
        self.started[kind] += 1
        return self.crew.start(kind, self.started[kind])

    def ask(self, agent: str, policy_id: str) -> None:
        shell = agent_policies.SHELL | {"check": agent_policies.CHECK}
        number = len(self.requests)
        self.requests.append(
            RolloutRequest(
                f"{policy_id}-{agent}-{number}",
                Task("shell", json.dumps(shell), prompt=agent_policies.PROMPT),
                agent="hosted",
                agent_config=json.dumps({"agent": agent, "restarts": 1000}),
                policy_id=policy_id,
                sampling=Sampling(max_tokens=1024 if policy_id == SOLVES else 16),
                limits=Limits(max_turns=12, step_timeout_s=PATIENCE_S),
            )
        )
        publish(self.cluster, self.requests[-1:])

    def feed(self, agent: str) -> None:
        """Keep so many rollouts open: asked often, since they may end as fast as one asks."""
        dead = self.crew.dead()
        assert not dead, dead
        for _ in range(LIVE - (len(self.requests) - self.seen.count())):
            self.ask(agent, SOLVES)

    def kill(self, kind: str, agent: str) -> None:
        """Kill a busy process with SIGKILL; another one takes its place."""
        hit: list[str | int] = []

        def found() -> bool:
            self.feed(agent)
            hit[:] = self.victims(kind)
            return bool(hit)

        self.until(found, f"nobody to kill among {kind}")
        victim = self.random.choice(hit)
        if isinstance(victim, int):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        else:
            self.crew.kill(victim)
            self.live[kind].remove(victim)
            self.live[kind].append(self.start(kind))
        self.killed[kind] += 1

    def victims(self, kind: str) -> Sequence[str | int]:
        """Agent processes; joined workers, those of environments only with agents."""
        if kind == "processes":
            return [pid for each in self.live["environments"] for pid in self.agents_of(each)]
        joined = filter(self.crew.joined, self.live[kind])
        return [each for each in joined if kind != "environments" or self.agents_of(each)]

    def agents_of(self, worker: str) -> list[int]:
        return agents_below(self.crew.processes[worker].pid)

    def grow(self, agent: str) -> None:
        """Wait until the log has grown by a random number of records."""
        wanted = self.journal() + self.random.randrange(1, 4 * LIVE)

        def grown() -> bool:
            self.feed(agent)
            return self.journal() >= wanted

        self.until(grown, "the log does not grow")

    def journal(self) -> int:
        topic = self.cluster.topics.events
        return sum(self.cluster.admin.ends({topic: self.cluster.log.partitions(topic)}).values())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def state() -> str:
            call(self.cluster, "waiting")
            ended = f"{self.seen.count()} of {len(self.requests)} rollouts have ended"
            return f"{what}: {ended}, killed {dict(self.killed)}"

        until(condition, PATIENCE_S, state)

    def harm(self) -> None:
        """Kill each kind so often, in an order that is drawn, one agent after another."""
        for number, agent in enumerate(AGENTS):
            kinds = [
                kind
                for kind in KINDS
                for _ in range(number * KILLS // len(AGENTS), (number + 1) * KILLS // len(AGENTS))
            ]
            self.random.shuffle(kinds)
            self.ask(agent, RANDOM)
            for kind in kinds:
                self.grow(agent)
                self.kill(kind, agent)

    def drain(self) -> None:
        def ended() -> bool:
            assert not self.crew.dead(), self.crew.dead()
            return self.seen.count() == len(self.requests)

        self.until(ended, "some have not ended")


@pytest.fixture
def siege(make_cluster: Callable[..., Cluster], untaught: Path, tmp_path: Path) -> Iterator[Siege]:
    crew = Crew(
        make_cluster(SOLVES, RANDOM), tmp_path, SOLVES, "tests.support.agent_policies:speak"
    )
    try:
        yield Siege(crew, untaught)
    finally:
        crew.close()


def asked_again(trajectory: Trajectory) -> int:
    """Model asks that reached the rollout though they had been answered."""
    known, told, again = KnownRequests(), set[str](), 0
    for step in trajectory.steps or ():
        if step.session != "agent":
            continue
        if step.action:
            action = AgentAction.of(step.action)
            known.apply(action)
            told |= {reply.d for reply in action.replies if isinstance(reply, ModelReply)}
        for ask in requests_of(step.text, known.by_name()):
            known.add(ask)
            again += ask.kind == "model" and ask.d in told
    return again


def test_agents_finish_after_kills_without_repeating_answered_calls(siege: Siege) -> None:
    siege.harm()
    siege.drain()

    assert siege.killed == dict.fromkeys(KINDS, KILLS)
    rewards: dict[str, set[float | None]] = {SOLVES: set(), RANDOM: set()}
    for scored in siege.seen.scored.values():
        whole = scored.trajectory
        policy_id = whole.rollout_id.partition("-")[0]
        rewards[policy_id].add(scored.total)
        assert whole.attempt == 1, whole
        assert policy_id == RANDOM or whole.status == "finished", whole
        assert asked_again(whole) == 0
    assert rewards[SOLVES] == {1.0}
    assert rewards[RANDOM] <= {0.0, None}  # what has failed has none
    assert called_again(siege.cluster, (SOLVES, RANDOM)) == 0
    report = audit(siege.cluster, drained=True)
    assert report.breaches == []
    print(f"{len(siege.requests)} rollouts, {dict(siege.killed)}, {report.repeated} repeated")
