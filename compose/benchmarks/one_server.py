"""A models worker with real weights on an in-memory log, with methods to drive it."""

from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall.compose.settings import Settings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.ids import call_seed, command_id
from rollcall.schemas.messages import Message, ModelCall, PolicyVersion, Sampling
from rollcall.schemas.published_weights import Published
from rollcall.schemas.topics import Topics, wanted

if TYPE_CHECKING:
    from rollcall.trainer.learner.step import Learner

POLICY = "bench"
FAR_MS = 1 << 50
"""A deadline that is never reached."""


class OneServer:
    """A server of a directory's policy; `thread` reads weights beside the loop's thread."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        *,
        threads: int | None = None,
        thread: Executor | None = None,
    ) -> None:
        from rollcall.inference.transformers_engine import TransformersEngine

        self.topics = Topics("bench.")
        self.log = MemoryLog(wanted("bench.", [POLICY], partitions=1))
        self.codec = Codec(LocalRegistry())
        self.engine = TransformersEngine(POLICY, directory, threads=threads)
        factory = WorkerFactory(self.log, self.codec, self.topics, settings, watched=False)
        self.loop = factory.models("models", self.engine, thread=thread)

    def announce(self, version: PolicyVersion) -> None:
        """Announce a version."""
        value = self.codec.encode(self.topics.versions, version)
        self.log.append(self.topics.versions, POLICY.encode(), value)

    def begin(self, version: PolicyVersion) -> None:
        """Announce the first version, and run until it is served."""
        self.announce(version)
        while self.engine.version < 0:
            self.loop.turn(0.0)

    def send(self, calls: Iterable[ModelCall]) -> None:
        """Append calls to the log."""
        topic = self.topics.calls(POLICY)
        for call in calls:
            self.log.append(topic, call.rollout_id.encode(), self.codec.encode(topic, call))

    def at_work(self) -> bool:
        """Return True if it has running calls."""
        return bool(self.loop.role.in_flight())


def call_of(rollout_id: str, message: Message, tokens: int) -> ModelCall:
    """Return the first call of a new rollout, which samples `tokens` tokens."""
    return ModelCall(
        rollout_id,
        0,
        0,
        0,
        command_id(rollout_id, 0, 0, 0),
        rollout_id.encode(),
        0,
        FAR_MS,
        "sample",
        POLICY,
        0,
        (message,),
        Sampling(max_tokens=tokens),
        call_seed(rollout_id, 0, 0),
        b"",
        0,
    )


def announced(learner: "Learner", number: int, published: Published) -> PolicyVersion:
    """Return a trainer's record of a published version."""
    canary, newest = learner.canary(), published.newest
    return PolicyVersion(
        POLICY,
        number,
        number - 1,
        "bench",
        number,
        newest.weights_digest,
        published.full,
        canary.ids,
        canary.logprobs,
        published.deltas,
        precision=learner.published,
    )
