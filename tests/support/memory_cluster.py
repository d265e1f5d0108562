"""A cluster on the in-memory log, with workers that work while somebody reads."""

import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollcall.compose.settings import Settings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.log.memory_log import MemoryLog, MemoryReader
from rollcall.consumers.log.protocols import Commit, Record, TopicPartition
from rollcall.consumers.loop.loop import Loop
from rollcall.inference.scripted import Script, ScriptedEngine
from rollcall.producers.admin import GroupMember
from rollcall.sandbox.environment import Observation
from rollcall.schemas.claims import Objects
from rollcall.schemas.messages import ModelAnswered
from rollcall.schemas.packed import pack_ids, pack_logprobs
from rollcall.schemas.topics import wanted
from tests.support.rig import PREFIX, Rig

POLICY = "p"
CORRIDOR = f"{__name__}:Corridor"
SAID = ModelAnswered(
    "left",
    pack_ids([1, 2]),
    pack_ids([3, -4]),
    pack_logprobs([-0.5, -1.5]),
    pack_ids([8, 9]),
    "stop",
    POLICY,
    0,
)


class Corridor:
    """Three doors; the reward is behind the last. "fall" ends it, anything else goes on."""

    replayable = True

    def open(self, seed: int) -> Observation:
        self.door = 0
        return Observation(f"corridor {seed}")

    def step(self, action: str) -> Observation:
        self.door += 1
        done = self.door == 3
        return Observation(f"door {self.door}", float(done), done or action == "fall")

    def close(self) -> None:
        pass


class WorkingLog(MemoryLog):
    """Whoever reads with a reader lets the crew take a turn first."""

    crew: Sequence[Loop] = ()
    _at_work = False

    def reader(
        self,
        topics: Sequence[str],
        starts: Mapping[TopicPartition, int] | None = None,
        *,
        from_end: bool = False,
    ) -> MemoryReader:
        return WorkingReader(self, topics, starts or {}, from_end=from_end)

    def commits(self, group: str, topic: str) -> dict[int, Commit]:
        """What a group has committed on a topic, with the words that went with it."""
        held = self.groups[group].committed if group in self.groups else {}
        return {n: Commit(t, n, *word) for (t, n), word in held.items() if t == topic}

    def work(self) -> int:
        """One turn of everybody; return how many records they read."""
        if self._at_work:
            return 0
        self._at_work = True
        try:
            return sum(loop.turn(0) for loop in self.crew)
        finally:
            self._at_work = False


class WorkingReader(MemoryReader):
    log: WorkingLog

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        self.log.work()
        return super().poll(timeout_s, most)


@dataclass
class MemoryAdmin:
    log: MemoryLog

    def partitions(self) -> dict[str, int]:
        return {name: len(partitions) for name, partitions in self.log.topics.items()}

    def members(self, groups: Sequence[str]) -> list[GroupMember]:
        """Whoever lives, with what it owns."""
        return [
            GroupMember(name, "a worker", tuple(sorted(source.positions)))
            for name in groups
            for source in self.log.group(name).members
        ]

    def ends(self, partitions: Mapping[str, int]) -> dict[tuple[str, int], int]:
        """Where each partition of the topics ends."""
        return {
            (topic, number): end
            for topic in partitions
            for number, (_, end) in self.log.bounds(topic).items()
        }

    def delete_topics(self, names: Sequence[str]) -> None:
        for name in names:
            self.log.topics.pop(name, None)

    def delete_groups(self, names: Sequence[str]) -> None:
        for name in names:
            self.log.groups.pop(name, None)

    def configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """As the manifest wants them."""
        known = {topic.name: dict(topic.config) for topic in wanted(PREFIX, [POLICY])}
        return {name: known[name] for name in topics}


def _dismiss(crew: Sequence[Loop]) -> None:
    for loop in crew:
        loop.role.close()


class MemoryCluster(Rig):
    """What `rollcall.compose.cluster.Cluster` is to commands, without a broker."""

    registry_url = "in memory"
    log: WorkingLog

    def __init__(self, *, settings: Settings | None = None, objects: Objects | None = None) -> None:
        super().__init__(partitions=3, make_log=WorkingLog, clock=time.time, objects=objects)
        self.settings = settings or Settings(prefix=PREFIX)
        self.admin = MemoryAdmin(self.log)

    def hire(self, script: Script) -> None:
        """One worker of every group; the model answers by script.

        Their rooms, and who lives there, end with the cluster, unless the test has ended them.
        Unless settings say where, they keep their leases and processes by themselves: what a run
        has left in the folder where the tests are started would have their reapers at work.
        """
        settings = self.settings
        if "state_dir" not in settings.model_fields_set:
            home = tempfile.mkdtemp(prefix="rollcall-crew-")
            weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
            settings = settings.model_copy(update={"state_dir": Path(home)})
        factory = WorkerFactory(self.log, self.codec, self.topics, settings, watched=False)
        engine = ScriptedEngine(POLICY, script)
        self.log.crew = [
            factory.agents("agents-1"),
            factory.models("models-1", engine),
            factory.environments("environments-1"),
            factory.rewards("rewards-1"),
        ]
        weakref.finalize(self, _dismiss, tuple(self.log.crew))

    def finish(self) -> None:
        """Let the crew work until nothing moves; polls in which only partitions move count too."""
        quiet = 0
        while quiet < 4:
            quiet = 0 if self.log.work() else quiet + 1


@contextmanager
def hired(directory: Path, answer: Script) -> Iterator[MemoryCluster]:
    """A cluster in a directory, its crew at work for a policy that is a script."""
    places = {"state_dir": directory / "state", "cache_dir": directory / "cache"}
    cluster = MemoryCluster(settings=Settings(prefix=PREFIX, **places))
    cluster.hire(answer)
    yield cluster
    for loop in cluster.log.crew:
        loop.stop(0.0)
