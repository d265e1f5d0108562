"""Task directories, solved by third-party agents and graded, while workers are killed.

Policies without weights say what each rollout has earned: `oracle` all of it, `null` nothing,
`noisy` by the seed of its first call. By hand it is larger, with the variables below; see
`sandbox/tasks/README.md` for tasks of the package index.
"""

import asyncio
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rollcall.compose.chaos.victims import agents_below
from rollcall.compose.cluster import Cluster, answers
from rollcall.compose.services.embedded import Endpoints, down, up
from rollcall.compose.settings import ObjectSettings
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.log.reading import read_all
from rollcall.producers.submit import requests_of
from rollcall.sandbox.boxes.box import driver
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.tasks.harbor import read_task
from rollcall.sandbox.tasks.listing import task_directories
from rollcall.sandbox.tasks.task_names import request_of
from rollcall.schemas.messages import ModelCall, RolloutRequest, Task
from tests.support.broker import BROKER, users_cache
from tests.support.command_line import call
from tests.support.crew import Crew, Seen, publish
from tests.support.engines import has, left_out
from tests.support.model_calls import called_again
from tests.support.waiting import until

pytestmark = [pytest.mark.agents, pytest.mark.broker, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[3]
TASKS = Path(os.environ.get("JUDGED_TASKS", ROOT / "compose" / "recipes" / "repairs"))
BOX = os.environ.get("JUDGED_BOX", "bubblewrap")
IMAGE = os.environ.get("JUDGED_IMAGE", "")
AGENTS = os.environ.get("JUDGED_AGENTS", "mini-swe-agent").split(",")
MOST_TASKS = int(os.environ.get("JUDGED_MOST_TASKS", "2"))
KILLS = int(os.environ.get("JUDGED_KILLS", "1"))
"""Of each kind."""
NOISY = int(os.environ.get("JUDGED_NOISY", "2"))
"""Rollouts of `noisy`, of each task, agent and mode."""
KINDS = ("processes", "environments", "agents", "models", "rewards")
POLICIES = ("oracle", "null", "noisy")
MODES = ("persistent", "ephemeral")
SHARE = 0.5
TURNS = 6
LIVE = 3
"""At once, in each of two workers."""
WARM = 2
PATIENCE_S = 600.0
GONE_S = 120.0
SCORERS = ("resolved", "tests_passed")
SCORING = "judged"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    state = tmp_path_factory.mktemp("services")
    yield up(state, users_cache(), ready=answers, broker_properties=BROKER)
    down(state, wipe=True)


def tasks_in(directory: Path) -> Path:
    """The tasks; with an image name, as tasks that are solved and graded in that image."""
    if not IMAGE:
        return TASKS
    shutil.copytree(TASKS, directory)
    for path in directory.glob("*/task.toml"):
        text = path.read_text()
        head, table, rest = text.partition("[environment]\n")
        head = head if table else f"{text}\n"
        path.write_text(f'{head}[environment]\ndocker_image = "{IMAGE}"\n{rest}')
    return directory


def requests(tasks: Path) -> list[RolloutRequest]:
    """One line per task, agent, mode and policy, as `tasks request` prints and `submit` reads."""
    lines: list[dict[str, Any]] = []
    for directory in task_directories([tasks])[:MOST_TASKS]:
        for agent, mode in product(AGENTS, MODES):
            for policy in ("oracle", "null", *["noisy"] * NOISY):
                line = request_of(
                    read_task(directory), agent=agent, box=BOX, image=IMAGE, max_tokens=100_000
                )
                name = f"{policy}-{agent}-{mode}-{directory.name}-{len(lines)}"
                config = line["task"]["environment_config"] | {"mode": mode}
                if agent == "react":
                    config["max_steps"] = TURNS
                else:
                    line["agent_config"]["restarts"] = 1000
                line["task"]["environment_config"] = config
                line["limits"]["max_turns"] = TURNS
                lines.append({**line, "rollout_id": name, "policy_id": policy})
    texts = [json.dumps(line).encode() for line in lines]
    return list(requests_of(texts, lambda _: None, defaults=RolloutRequest("", Task())))


class Siege:
    """A crew with two workers of most groups, and the selection of workers to kill."""

    def __init__(self, crew: Crew, tasks: Path) -> None:
        self.crew, self.tasks, self.random = crew, tasks, Random(2026)
        asked = requests(tasks)
        publish(crew.cluster, asked)
        self.seen, self.asked = Seen(crew.cluster), asked
        self.killed: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        self.live: dict[str, list[str]] = {
            kind: [self.start(kind, which) for which in range(3 if kind == "models" else 2)]
            for kind in KINDS[1:]
        }

    def start(self, kind: str, which: int) -> str:
        """Start a worker of a group; a models worker serves the policy with this number."""
        self.started[kind] += 1
        words = [word for scorer in SCORERS for word in ("--scorer", scorer)]
        if kind == "models":
            policy = POLICIES[which]
            words = ["--policy", policy, "--script", policy]
            words += ["--tasks", str(self.tasks)] if policy != "null" else []
            words += ["--gold-share", str(SHARE)] if policy == "noisy" else []
        scores = kind in ("models", "rewards")
        return self.crew.start(kind, self.started[kind], *(words if scores else ()))

    def go(self) -> None:
        """Kill each kind the given number of times while rollouts end, and wait for the last."""
        kinds = [kind for kind in KINDS for _ in range(KILLS)]
        self.random.shuffle(kinds)
        for number, kind in enumerate(kinds):
            self.reach(number * len(self.asked) // (len(kinds) + 1))
            self.kill(kind)
        self.reach(len(self.asked))

    def reach(self, count: int) -> None:
        def reached() -> bool:
            assert not self.crew.dead(), self.crew.dead()
            return self.seen.count() >= count

        until(reached, PATIENCE_S, self.told)

    def told(self) -> str:
        call(self.crew.cluster, "waiting")
        return f"{self.seen.count()} of {len(self.asked)} are judged, killed {dict(self.killed)}"

    def kill(self, kind: str) -> None:
        """Kill a worker that has joined with SIGKILL, and start another one in its place."""
        if kind == "processes":
            self.kill_process()
            return
        which = self.random.randrange(len(self.live[kind]))
        victim = self.live[kind][which]
        until(lambda: self.crew.joined(victim), PATIENCE_S, lambda: self.crew.words(victim))
        self.crew.kill(victim)
        self.live[kind][which] = self.start(kind, which)
        self.killed[kind] += 1

    def kill_process(self) -> None:
        """Kill one agent process of any worker; when all rollouts have ended, kill none."""

        def running() -> list[int]:
            pids = (self.crew.processes[each].pid for each in self.live["environments"])
            return [pid for each in pids for pid in agents_below(each)]

        over = len(self.asked)
        until(lambda: bool(running()) or self.seen.count() >= over, PATIENCE_S, self.told)
        for pid in running()[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed["processes"] += 1

    def leave(self) -> None:
        """Stop all workers but one, which removes the boxes of killed workers."""
        last = self.live["environments"][0]
        for name in {each for names in self.live.values() for each in names} - {last}:
            self.crew.leave(name)
        until(lambda: len(self.boxes()) <= WARM, GONE_S, lambda: f"{self.boxes()} are left")
        self.crew.leave(last)

    def boxes(self) -> list[str]:
        """The boxes of this crew on this host."""
        leases = Leases(self.crew.cluster.settings.leases(), "test")
        found = {
            ident for name in {BOX, "bubblewrap"} for ident in asyncio.run(driver(name).found())
        }
        return sorted(filter(leases.is_of_here, found))


@pytest.fixture
def siege(
    make_cluster: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Siege]:
    if not has("bwrap"):
        left_out("bubblewrap", "agents of others in boxes, at tasks that are judged")
    objects = str(tmp_path / "objects")
    for name, value in {
        "OBJECTS__URL": objects,
        "REWARDS__BOX": BOX,
        "ENVIRONMENTS__WARM": str(WARM),
        "ENVIRONMENTS__SLOTS": json.dumps({"box": LIVE, "hosted": LIVE}),
        "ENVIRONMENTS__BOX_TOUCH_S": "2",
        "ENVIRONMENTS__BOX_LAPSE_S": "20",
        "ENVIRONMENTS__BOX_REAP_S": "5",
        "REWARDS__SCORING_ID": SCORING,
    }.items():
        monkeypatch.setenv(f"ROLLCALL_{name}", value)
    cluster = make_cluster(*POLICIES, objects=ObjectSettings(url=objects))
    crew = Crew(cluster, tmp_path)
    try:
        yield Siege(crew, tasks_in(tmp_path / "tasks"))
    finally:
        crew.close()


def first_seeds(cluster: Cluster) -> dict[str, int]:
    """The seed of the first call of each rollout."""
    first: dict[str, ModelCall] = {}
    for policy in POLICIES:
        for record in read_all(cluster.log, [cluster.topics.calls(policy)]):
            call = cluster.codec.decode(record.value, ModelCall)
            if call.kind == "sample" and call.attempt == 1:
                known = first.setdefault(call.rollout_id, call)
                first[call.rollout_id] = min(known, call, key=lambda each: each.position)
    return {name: each.seed for name, each in first.items()}


def test_rewards_match_each_policy_although_workers_are_killed(siege: Siege) -> None:
    began = time.monotonic()
    siege.go()
    took_s = time.monotonic() - began

    cluster, scored = siege.crew.cluster, siege.seen.scored
    seeds = first_seeds(cluster)
    unasked = {
        name: (each.trajectory.status, each.trajectory.attempt, each.trajectory.reason, each.reason)
        for name, each in scored.items()
        if name not in seeds
    }
    assert not unasked
    earned = {
        each.rollout_id: {"oracle": 1.0, "null": 0.0}.get(
            each.policy_id, float(Random(seeds[each.rollout_id]).random() < SHARE)
        )
        for each in siege.asked
    }
    found = {name: each.rewards and each.rewards[0].value for name, each in scored.items()}
    wrong = {
        name: (value, earned[name], scored[name].trajectory.status, scored[name].reason)
        for name, value in found.items()
        if value != earned[name]
    }
    assert not wrong
    assert {each.trajectory.attempt for each in scored.values()} == {1}
    assert called_again(cluster, POLICIES) == 0
    report = audit(cluster, drained=True)
    assert report.breaches == []

    siege.leave()
    assert siege.boxes() == []
    policies = Counter(each.partition("-")[0] for each, value in earned.items() if value)
    print(
        f"{len(earned)} rollouts in {took_s:.0f} s, killed {dict(siege.killed)}, resolved "
        f"{dict(policies)}, {report.repeated} repeated, "
        f"{sum(siege.seen.written.values()) - len(scored)} scored again"
    )
