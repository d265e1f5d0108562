"""The steps on train.steps against the scored records that they name."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rollcall.consumers.audit.audit_state import AuditState
from rollcall.consumers.audit.columns import (
    TopicPlace,
    Words,
    firsts,
    pack_named_place,
    pack_place,
    sort_together,
    unpack_place,
    word_of,
)
from rollcall.consumers.audit.report import Breach
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.bounded import whole_metric
from rollcall.schemas.messages import PolicyVersion, TrainStep, Trajectory, TrajectoryRef
from rollcall.schemas.trajectory_refs import refs_of
from rollcall.trainer.checkpoints.step_chain import StepChain
from rollcall.trainer.rules.samples import RECORDED, SHARED
from rollcall.trainer.weights.branches import descent

TRAIN = "train"


@dataclass(slots=True)
class _RecordedStep:
    """One version of a run, by its record."""

    version: int
    parent: int
    first: bool
    """True if no step came before it: its parent is the version that the run began with."""
    partition: int
    offset: int
    digest: int
    refs: slice
    step: int
    weights: str
    """The digest of its weights; empty if it was not recorded."""
    replayed: int
    """The number of references that earlier steps have used, which were trained on again."""


@dataclass
class _RunSteps:
    steps: dict[int, _RecordedStep] = field(default_factory=dict)
    chain: StepChain = field(default_factory=StepChain)

    def living(self) -> Iterable[_RecordedStep]:
        """Return the ancestors of the newest version; a restart has abandoned the other steps."""
        return descent(self.steps, over_gaps=True)

    def below(self, version: int) -> int | None:
        """Return the newest recorded version below this one."""
        return max((known for known in self.steps if known < version), default=None)


class Lineage:
    """Joins the references of all steps with scored records by their places."""

    def __init__(self, case: AuditState) -> None:
        self.case = case
        self.runs: dict[tuple[str, str], _RunSteps] = {}
        self._made: dict[tuple[str, int], tuple[str, TopicPlace]] = {}
        """The first run of each policy and version, and the place of its record."""
        self._announced: dict[tuple[str, str], int] = {}
        """The newest announced version, by policy and run."""
        self._run_of: dict[int, str] = {}
        """The run of each step, by place."""
        self._lent: dict[int, int] = {}
        """The number of references to rollouts of other runs that each step may have, by place."""
        self._places, self._members, self._steps = array("Q"), array("Q"), array("Q")

    def take(self, records: Sequence[Record]) -> None:
        """Take steps, in order within each partition."""
        for record in records:
            step = self.case.decoded(record, TrainStep)
            if step is not None:
                self._step(record, step)

    def _step(self, record: Record, step: TrainStep) -> None:
        report = self.case.report
        report.checked["I7"] += 1
        run = self.runs.setdefault((step.policy_id, step.run_id), _RunSteps())
        head = run.chain.head
        if not run.chain.take(step) and step.writer:
            text = (
                f"step {step.step} of run {step.run_id!r} is a fork of the chain: {step.writer} "
                f"went on from {step.predecessor or 'the beginning'!r}, but {head!r} came first; "
                "two trainers of the run at once, of whom this one counts for nobody"
            )
            self.case.breach("I7", record, text)
            return
        self._check_number(record, step)
        named = refs_of(step)
        digest = word_of(repr((step.parent, named)).encode())
        known = run.steps.get(step.version)
        if known is not None:
            if known.digest == digest:
                report.duplicate(record.topic, record.partition, record.offset)
                return
            text = (
                f"version {step.version} of run {step.run_id!r} is another step at "
                f"{known.partition}@{known.offset}; a version number is never used twice"
            )
            self.case.breach("I7", record, text)
            return
        here = record.partition, record.offset
        self._run_of[pack_place(*here)] = step.run_id
        refs = self._refer(record, named)
        first, replayed = step.step <= 1, whole_metric(step.metrics.get("replayed"))
        lent = sum(whole_metric(step.metrics.get(how)) for how in (RECORDED, SHARED))
        self._lent[pack_place(*here)] = lent
        run.steps[step.version] = _RecordedStep(
            step.version,
            step.parent,
            first,
            *here,
            digest,
            refs,
            step.step,
            step.weights_digest,
            replayed,
        )

    def versions(self, records: Sequence[Record]) -> None:
        """Take announced versions, after all steps."""
        for record in records:
            version = self.case.decoded(record, PolicyVersion) if record.value is not None else None
            if version is not None and (run := (version.policy_id, version.run_id)) in self.runs:
                self._announced[run] = max(version.version, self._announced.get(run, -1))
            if version is not None and version.step > 0:
                self.case.report.checked["I7"] += 1
                self._version(record, version)

    def _version(self, record: Record, version: PolicyVersion) -> None:
        """Check an announced version against its step."""
        topic, window = self.case.topics.train_steps, self.case.window
        run = self.runs.get((version.policy_id, version.run_id), _RunSteps())
        made, what = run.steps.get(version.version), f"version {version.version} of policy"
        if made is None:
            if record.timestamp_ms >= window.horizon_ms.get(topic, 0):
                text = (
                    f"{what} {version.policy_id!r} is announced, but step {version.step} of run "
                    f"{version.run_id!r}, which made it, has no record"
                )
                self.case.breach("I7", record, text, "lost")
            return
        said = version.step, version.parent, version.weights_digest
        if said != (made.step, made.parent, made.weights or version.weights_digest):
            text = (
                f"{what} {version.policy_id!r} is announced as step {said[0]} from version "
                f"{said[1]}, and is not what its step at {made.partition}@{made.offset} made"
            )
            self.case.breach("I7", record, text)

    def _refer(self, record: Record, refs: Sequence[TrajectoryRef]) -> slice:
        """Note the references of a step, to be joined with the scored records."""
        begin = len(self._places)
        for ref in refs:
            named = pack_named_place(ref.partition, ref.offset)
            if named is None or ref.topic != self.case.topics.scored:
                place_ = f"{ref.topic} {ref.partition}@{ref.offset}"
                self.case.breach("I7", record, f"this step names {place_}, where no record can be")
                continue
            self._places.append(named)
            self._members.append(member_word(ref.rollout_id, ref.attempt))
            self._steps.append(pack_place(record.partition, record.offset))
        return slice(begin, len(self._places))

    def _check_number(self, record: Record, step: TrainStep) -> None:
        """Check that a version number has one run: servers identify weights by their number."""
        here = record.partition, record.offset
        run_id, there = self._made.setdefault((step.policy_id, step.version), (step.run_id, here))
        if run_id != step.run_id:
            text = (
                f"version {step.version} of policy {step.policy_id!r} is one of run "
                f"{step.run_id!r} here and one of run {run_id!r} at {there[0]}@{there[1]}; a "
                "version number is never used twice"
            )
            self.case.breach("I7", record, text)

    def close(self) -> None:
        """Check the steps for gaps and repeated rollouts after all are read; sort for joins."""
        for (_, run_id), run in self.runs.items():
            self._check_whole(run_id, run)
            self._check_once(run_id, run)
        self.places, self.members, self.by = sort_together(self._places, self._members, self._steps)
        self._met = np.zeros(len(self.places), bool)

    def _check_whole(self, run_id: str, run: _RunSteps) -> None:
        """Check that every step but a run's first was made from one that has a record."""
        topic = self.case.topics.train_steps
        for step in run.living():
            if step.first or step.parent in run.steps:
                continue
            cut = (topic, step.partition) in self.case.window.starts
            if cut and run.below(step.parent) is None:
                continue  # its record may be before the window
            text = (
                f"version {step.version} of run {run_id!r} was made from version {step.parent}, "
                "whose step has no record: nobody knows what that one was made of"
            )
            self.case.report.add(Breach("I7", text, topic, step.partition, step.offset, "lost"))

    def _check_once(self, run_id: str, run: _RunSteps) -> None:
        steps = sorted(run.living(), key=lambda step: (step.partition, step.offset))
        members, places = array("Q"), array("Q")
        for step in steps:
            members.extend(self._members[step.refs])
            places.extend(self._steps[step.refs])
        self.case.report.checked["I7"] += len(members)
        if not members:
            return
        consumed, by = sort_together(members, places)
        replayed = {pack_place(step.partition, step.offset): step.replayed for step in steps}
        for at in np.flatnonzero(~firsts(consumed)):
            here = int(by[at])
            # A step may use as many earlier rollouts again as its record says.
            if replayed[here] > 0:
                replayed[here] -= 1
                continue
            before = unpack_place(int(by[at - 1]))
            text = (
                f"this step of run {run_id!r} consumes a rollout that the step at "
                f"{before[0]}@{before[1]} has consumed"
            )
            topic = self.case.topics.train_steps
            self.case.report.add(Breach("I7", text, topic, *unpack_place(int(by[at])), "doubled"))

    def refers_to(self, record: Record) -> bool:
        """Return True if a step names the place of a scored record."""
        if not len(self.places):
            return False
        return len(rows_of(self.places, pack_place(record.partition, record.offset))) > 0

    def scored(self, record: Record, trajectory: Trajectory) -> None:
        """Compare a scored record with the references to its place."""
        for at in rows_of(self.places, pack_place(record.partition, record.offset)):
            self._met[at] = True
            if self.members[at] != member_word(trajectory.rollout_id, trajectory.attempt):
                here = f"{record.partition}@{record.offset}"
                text = (
                    f"this step names {here} of {record.topic} as another rollout's than the "
                    f"{trajectory.rollout_id} that is there"
                )
                self._wrong(int(at), text)
            else:
                self._check_own(at, record, trajectory)

    def _check_own(self, at: int, record: Record, trajectory: Trajectory) -> None:
        """Check that a run trains only on rollouts that it requested for training.

        Rollouts for training of other runs may be lent to it; each of its steps has their number.
        """
        step, request = int(self.by[at]), trajectory.request
        run_id = self._run_of[step]
        others = request is not None and request.purpose == TRAIN and request.run_id != run_id
        if others and self._lent.get(step, 0) > 0:
            self._lent[step] -= 1
            return
        if request is None or (request.run_id, request.purpose) != (run_id, TRAIN):
            what = f"run {request.run_id!r} for {request.purpose!r}" if request else "nobody"
            text = (
                f"this step of run {run_id!r} consumes {record.partition}@{record.offset} of "
                f"{record.topic}, a rollout that was asked for by {what}"
            )
            self._wrong(at, text)

    def _check_announced(self) -> None:
        """Check that the last step of a run is announced, if any version of the run is."""
        for (policy_id, run_id), newest in self._announced.items():
            head = self.runs[policy_id, run_id].chain.counted
            last = max(head, default=-1)
            if last <= newest:
                continue
            if not self.case.drained:
                self.case.report.pending += 1
                continue
            step = self.runs[policy_id, run_id].steps[last]
            text = (
                f"version {last} of policy {policy_id!r} was made by this step of run {run_id!r} "
                f"and is not announced; the newest that is announced is {newest}"
            )
            here = self.case.topics.train_steps, step.partition, step.offset
            self.case.report.add(Breach("I7", text, *here, "lost"))

    def finish(self) -> None:
        """Report references without a record, except those before the window."""
        self._check_announced()
        topic, starts = self.case.topics.scored, self.case.window.starts
        for at in np.flatnonzero(~self._met):
            partition, offset = unpack_place(int(self.places[at]))
            if offset >= starts.get((topic, partition), 0):
                text = f"this step names {topic} {partition}@{offset}, where no record can be read"
                self._wrong(int(at), text)

    def _wrong(self, at: int, text: str) -> None:
        topic = self.case.topics.train_steps
        self.case.report.add(Breach("I7", text, topic, *unpack_place(int(self.by[at]))))


def member_word(rollout_id: str, attempt: int) -> int:
    """Return one word for an attempt of a rollout."""
    return word_of(f"{rollout_id}\0{attempt}".encode())


def rows_of(keys: Words, wanted: int) -> range:
    """Return all rows of one key among sorted ones."""
    key = np.uint64(wanted)
    first = int(np.searchsorted(keys, key))
    return range(first, int(np.searchsorted(keys, key, "right")) if first < len(keys) else first)
