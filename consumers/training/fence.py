"""Fencing of trainers by the log: one trainer per run, also across hosts, unlike a file lock.

Every step names the step before it and its writer (`rollcall.trainer.checkpoints.step_chain`). A
trainer writes a step, reads it back, and announces its version only if the step counts. A trainer
that finds a step of another trainer in the log stops: the other one continues.
"""

from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from threading import Lock
from time import monotonic

from rollcall.consumers.log.protocols import Log, Reader, Record
from rollcall.consumers.loop.decode_in_order import decoded
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import RunSuperseded, Unavailable
from rollcall.schemas.messages import TrainStep
from rollcall.schemas.topics import Topics
from rollcall.trainer.checkpoints.checkpoint import Checkpoint
from rollcall.trainer.checkpoints.step_chain import StepChain, step_id, writer_of

READ_BACK_S = 30.0
POLL_S = 0.02
ELSEWHERE = "elsewhere"
"""The file in a run's folder that lists trainers which continued after this one stopped."""


@dataclass(eq=False)
class Fence:
    """Follows the steps of one run, for both threads of its trainer."""

    log: Log
    codec: Codec
    topics: Topics
    run: TrainingRun
    name: str
    clock: Callable[[], float] = monotonic
    chain: StepChain = field(default_factory=StepChain)
    writer: str = ""
    _ours: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)
    _reader: Reader | None = None
    _unread: deque[Record] = field(default_factory=deque)
    """Records that were polled and not processed yet, since a registry may be unreachable."""
    _taken: str = ""
    """The reason for which this trainer stops; once set it stays."""

    def begin(self, held: Checkpoint | None) -> None:
        """Read the steps so far. Raises Unavailable, and RunSuperseded if another trainer
        continued."""
        self.writer = f"{self.name}-{token_hex(4)}"
        topic = self.topics.train_steps
        bounds = self.log.bounds(topic)
        starts = {
            (topic, number): max(low, self.run.starts.get((topic, number), low))
            for number, (low, _) in bounds.items()
        }
        self._reader = reader = self.log.reader([topic], starts)
        while not reader.caught_up():
            self._read(POLL_S)
        if held is not None:
            self._require_ours(held)

    def _require_ours(self, held: Checkpoint) -> None:
        """Raise RunSuperseded unless the checkpoint's step counts and no trainer continued after
        it."""
        step = None
        if "step" in held.pending:
            step = self.codec.decode(held.pending["step"], TrainStep)
            self._ours.add(step_id(step))
        there = self.chain.counted.get(held.version)
        if step is not None and (step_id(step) in self.chain.lost or there not in _same(step)):
            remedy = "move it away to go on from the one before, or take the other one's folder"
            self._leave(f"checkpoint v{held.version:08d} of this folder is not that step; {remedy}")
        marks = self.run.directory / ELSEWHERE
        gone = marks.read_text().split("\n") if marks.exists() else []
        taken = [name for name in self.chain.after(held.version) if writer_of(name) in gone]
        if taken:
            remedy = f"remove {ELSEWHERE} of this folder to go on from version {held.version}"
            self._leave(f"step {taken[-1]} is not in this folder, which was left then; {remedy}")

    def stamp(self, step: TrainStep) -> TrainStep:
        """Return the step with this trainer as writer and the last step that counts before it."""
        stamped = replace(step, writer=self.writer, predecessor=self.chain.head)
        self._ours.add(step_id(stamped))
        return stamped

    def follow(self) -> None:
        """Read new steps. Raises RunSuperseded if another trainer's step counts, and
        Unavailable."""
        with self._lock:
            self._read(0.0)
            if self._taken:
                self._leave(self._taken)

    def settle(self, value: bytes) -> None:
        """Wait until a written step is read back. Raises RunSuperseded and Unavailable."""
        step = self.codec.decode(value, TrainStep)
        until = self.clock() + READ_BACK_S
        with self._lock:
            while not self._taken and self.chain.counted.get(step.version) != step_id(step):
                if step_id(step) in self.chain.lost:
                    self._leave(f"{self.chain.head} came before our {step_id(step)}")
                if self.clock() > until:
                    msg = f"step {step.step} was not read back within {READ_BACK_S:g} s"
                    raise Unavailable(msg)
                self._read(POLL_S)
            if self._taken:
                self._leave(self._taken)

    def _read(self, timeout_s: float) -> None:
        if self._reader is None:
            return
        # Steps of other writers are history until ours is written or all of the topic is read.
        following = bool(self._ours) or self._reader.caught_up()
        self._unread.extend(self._reader.poll(timeout_s))
        while self._unread:
            self._take(self._unread[0], following)
            self._unread.popleft()

    def _take(self, record: Record, following: bool) -> None:
        if record.key != self.run.policy_id.encode():
            return
        step = decoded(self.codec, record, TrainStep)
        if step is None or step.run_id != self.run.run_id:
            return
        counts, name = self.chain.take(step), step_id(step)
        if counts and following and step.writer and name not in self._ours:
            self._note(step.writer)
            place = f"{record.partition}@{record.offset}"
            self._taken = f"step {step.step} at {place} is by {step.writer}"

    def _note(self, writer: str) -> None:
        with (Path(self.run.directory) / ELSEWHERE).open("a") as marks:
            marks.write(f"{writer}\n")

    def _leave(self, why: str) -> None:
        self._taken = why
        msg = f"another trainer of run {self.run.run_id!r} came first: {why}"
        raise RunSuperseded(msg)

    def close(self) -> None:
        if self._reader is not None:
            with closing(self._reader):
                self._reader = None


def _same(step: TrainStep) -> tuple[str | None, ...]:
    """Return what the log may hold for a step: nothing yet, or the step itself."""
    return (None, step_id(step))
