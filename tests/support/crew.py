"""Real worker processes for tests, and what the log says about their work afterwards."""

import os
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

from rollcall.compose.cluster import Cluster
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.journal import Journal
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import read_all
from rollcall.producers.submit import Submitter
from rollcall.schemas.messages import (
    Event,
    RolloutRequest,
    ScoredTrajectory,
    Task,
    Trajectory,
)
from tests.support.command_line import ROOT, Command, addresses
from tests.support.lake import LAKE_ANY_START
from tests.support.waiting import until


class Crew:
    """Worker processes of one cluster; all are ended by `close`."""

    def __init__(
        self,
        cluster: Cluster,
        logs: Path,
        policy_id: str = "p",
        script: str = "tests.support.scripted_models:word",
    ) -> None:
        self.cluster = cluster
        self.logs = logs
        self.policy_id = policy_id
        self.script = script
        self.processes: dict[str, Command] = {}

    def start(self, role: str, number: int = 1, *words: str) -> str:
        """Start one worker; a name that was used before is a restart."""
        name = f"{role}-{number}"
        if role == "models" and not {"--policy", "--run"} & {*words}:
            words = (*words, "--policy", self.policy_id, "--script", self.script)
        log = self.logs / f"{name}.log"
        log.touch()
        self.processes[name] = Command(
            ("worker", role, "--name", name, *words),
            cwd=ROOT,
            environment={**os.environ, **addresses(self.cluster)},
            out=log,
            err=log,
        )
        return name

    def start_all(self) -> None:
        for role in ("agents", "models", "environments", "rewards"):
            self.start(role)

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(10)

    def leave(self, name: str) -> None:
        """End one worker as an operator would."""
        self.processes[name].send_signal(signal.SIGTERM)
        assert self.processes[name].wait(40) == 0, self.words(name)

    def joined(self, name: str) -> bool:
        """Whether a worker has been given partitions."""
        return "partition_assigned" in (self.logs / f"{name}.log").read_text(errors="replace")

    def words(self, name: str) -> str:
        """The end of a worker's log."""
        return (self.logs / f"{name}.log").read_text(errors="replace")[-2000:]

    def dead(self) -> dict[str, str]:
        """Workers that ended by themselves, with their last words."""
        return {
            name: self.words(name)
            for name, process in self.processes.items()
            if process.poll() not in (None, 0, -signal.SIGKILL)
        }

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(10)


def lake_requests(count: int, policy_id: str = "p") -> list[RolloutRequest]:
    """So many rollouts of the lake, in groups of eight."""
    task = Task(LAKE_ANY_START.environment, LAKE_ANY_START.config_json)
    return [
        RolloutRequest(
            rollout_id=f"rollout-{n}",
            task=replace(task, seed=n),
            policy_id=policy_id,
            run_id="test",
            group_id=f"group-{n // 8}",
            group_size=8,
        )
        for n in range(count)
    ]


def publish(cluster: Cluster, requests: Iterable[RolloutRequest]) -> None:
    publisher = cluster.log.publisher()
    submitter = Submitter(publisher, cluster.codec, cluster.topics)
    for request in requests:
        submitter.publish(request)
    assert publisher.flush(30) == 0


class Seen:
    """How many scored trajectories have come, and which."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.reader = cluster.log.reader([cluster.topics.scored])
        self.scored: dict[str, ScoredTrajectory] = {}
        self.written: Counter[str] = Counter()

    def count(self) -> int:
        for record in self.reader.poll(0.05):
            scored = self.cluster.codec.decode(record.value, ScoredTrajectory)
            rollout_id = scored.trajectory.rollout_id
            self.scored.setdefault(rollout_id, scored)
            self.written[rollout_id] += 1
        return len(self.scored)


def reach(crew: Crew, seen: Seen, count: int, deadline_s: float = 90) -> None:
    """Wait for so many scored rollouts; a worker that ended by itself fails the test at once."""

    def reached() -> bool:
        assert not crew.dead()
        return seen.count() >= count

    until(reached, deadline_s, lambda: f"{seen.count()} of {count} rollouts were scored")


def everything(cluster: Cluster, topic: str) -> list[Record]:
    """All records of a topic, in order within each partition."""
    records = read_all(cluster.log, [topic])
    return sorted(records, key=lambda record: (record.partition, record.offset))


def refold(cluster: Cluster) -> dict[str, list[Trajectory]]:
    """Every trajectory that the journal implies, from a fold of it all by another reader."""
    journals: dict[int, Journal] = {}
    world = FoldContext(program_of, Random)
    ended: dict[str, list[Trajectory]] = {}
    for record in everything(cluster, cluster.topics.events):
        journal = journals.setdefault(record.partition, Journal(record.partition, world, "refold"))
        event = cluster.codec.decode(record.value, Event)
        trajectory = journal.apply_event(event, record.offset, record.timestamp_ms).ended
        if trajectory is not None:
            ended.setdefault(trajectory.rollout_id, []).append(trajectory)
    return ended


def assert_nothing_lost_or_doubled(cluster: Cluster, requests: Iterable[RolloutRequest]) -> None:
    """Each request has one terminal event, and its trajectory is what a refold gives."""
    wanted = {request.rollout_id for request in requests}
    ended = refold(cluster)
    assert ended.keys() == wanted
    assert {rollout_id: len(ends) for rollout_id, ends in ended.items() if len(ends) != 1} == {}
    written: dict[str, Trajectory] = {}
    for record in everything(cluster, cluster.topics.trajectories):
        trajectory = cluster.codec.decode(record.value, Trajectory)
        first = written.setdefault(trajectory.rollout_id, trajectory)
        assert trajectory == first, "a trajectory written again is the same trajectory"
    assert written == {rollout_id: ends[0] for rollout_id, ends in ended.items()}


def workers_of(conductor: int) -> dict[str, int]:
    """The worker processes of a run by name, from /proc."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode().split("\0")
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == conductor and "--name" in words:
            found[words[words.index("--name") + 1]] = int(path.name)
    return found
