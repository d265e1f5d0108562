"""What was trained on: train.steps against the scored records that they name."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from consumers.console.case import Case
from consumers.console.columns import Words, firsts, place, sort_together, split, word_of
from consumers.console.report import Breach
from consumers.log import Record
from schemas.messages import TrainStep, Trajectory


@dataclass(slots=True)
class _Step:
    """One version of a run, as its record says."""

    parent: int
    partition: int
    offset: int
    digest: int
    refs: slice


@dataclass
class _Run:
    steps: dict[int, _Step] = field(default_factory=dict)

    def living(self) -> Iterable[_Step]:
        """The steps that the newest version descends from; others were abandoned in a restart."""
        version = max(self.steps, default=-1)
        while version in self.steps:
            step = self.steps[version]
            yield step
            version = step.parent if step.parent < version else -1


class Lineage:
    """Joins the references of all steps with scored records by their places."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.runs: dict[tuple[str, str], _Run] = {}
        self._places, self._members, self._steps = array("Q"), array("Q"), array("Q")

    def take(self, records: Sequence[Record]) -> None:
        for record in records:
            step = self.case.decoded(record, TrainStep)
            if step is not None:
                self._step(record, step)

    def _step(self, record: Record, step: TrainStep) -> None:
        report = self.case.report
        report.checked["I7"] += 1
        run = self.runs.setdefault((step.policy_id, step.run_id), _Run())
        digest = word_of(repr((step.parent, step.trajectories)).encode())
        known = run.steps.get(step.version)
        if known is not None:
            if known.digest == digest:
                report.duplicates += 1
                return
            text = (
                f"version {step.version} of run {step.run_id!r} is another step at "
                f"{known.partition}@{known.offset}; a version number is never used twice"
            )
            self.case.breach("I7", record, text)
            return
        begin = len(self._places)
        for ref in step.trajectories:
            self._places.append(place(ref.partition, ref.offset))
            self._members.append(member_word(ref.rollout_id, ref.attempt))
            self._steps.append(place(record.partition, record.offset))
        refs = slice(begin, len(self._places))
        run.steps[step.version] = _Step(step.parent, record.partition, record.offset, digest, refs)

    def close(self) -> None:
        """All steps are read: nothing may be consumed twice; sort what has to be met."""
        for (_, run_id), run in self.runs.items():
            self._check_once(run_id, run)
        self.places, self.members, self.by = sort_together(self._places, self._members, self._steps)
        self._met = np.zeros(len(self.places), bool)

    def _check_once(self, run_id: str, run: _Run) -> None:
        steps = sorted(run.living(), key=lambda step: (step.partition, step.offset))
        members, places = array("Q"), array("Q")
        for step in steps:
            members.extend(self._members[step.refs])
            places.extend(self._steps[step.refs])
        self.case.report.checked["I7"] += len(members)
        if not members:
            return
        found, by = sort_together(members, places)
        for at in np.flatnonzero(~firsts(found)):
            before = split(int(by[at - 1]))
            text = (
                f"this step of run {run_id!r} consumes a rollout that the step at "
                f"{before[0]}@{before[1]} has consumed"
            )
            topic = self.case.topics.train_steps
            self.case.report.add(Breach("I7", text, topic, *split(int(by[at])), "doubled"))

    def scored(self, record: Record, trajectory: Trajectory) -> None:
        """A scored record, to be compared with the references to its place."""
        if not len(self.places):
            return
        for at in rows_of(self.places, place(record.partition, record.offset)):
            self._met[at] = True
            if self.members[at] != member_word(trajectory.rollout_id, trajectory.attempt):
                here = f"{record.partition}@{record.offset}"
                text = (
                    f"this step names {here} of {record.topic} as another rollout's than the "
                    f"{trajectory.rollout_id} that is there"
                )
                self._wrong(int(at), text)

    def finish(self) -> None:
        """References that no record has met; those below what is read are not looked for."""
        topic, starts = self.case.topics.scored, self.case.window.starts
        for at in np.flatnonzero(~self._met):
            partition, offset = split(int(self.places[at]))
            if offset >= starts.get((topic, partition), 0):
                text = f"this step names {topic} {partition}@{offset}, where no record can be read"
                self._wrong(int(at), text)

    def _wrong(self, at: int, text: str) -> None:
        topic = self.case.topics.train_steps
        self.case.report.add(Breach("I7", text, topic, *split(int(self.by[at]))))


def member_word(rollout_id: str, attempt: int) -> int:
    return word_of(f"{rollout_id}\0{attempt}".encode())


def rows_of(keys: Words, wanted: int) -> range:
    """All rows of one key among sorted ones."""
    key = np.uint64(wanted)
    first = int(np.searchsorted(keys, key))
    return range(first, int(np.searchsorted(keys, key, "right")) if first < len(keys) else first)
