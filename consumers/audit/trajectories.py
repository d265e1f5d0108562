"""Trajectories and scored records against the terminal events of the journal."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcall.consumers.agents.fork import recorded_answers
from rollcall.consumers.audit.audit_state import AuditState
from rollcall.consumers.audit.columns import (
    find,
    find_one,
    pack_named_place,
    pack_place,
    unpack_place,
    word_of,
)
from rollcall.consumers.audit.ends import OPTIONAL
from rollcall.consumers.audit.owed_scores import OwedScores
from rollcall.consumers.audit.report import Breach
from rollcall.consumers.audit.train_steps import Lineage
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.codec import PREFIX as WIRE
from rollcall.schemas.messages import ScoredTrajectory, Trajectory

PREFIX = WIRE.size
EMPTY = Trajectory("", 1, "finished", None, (), None, None, 0, 0, 0, 0, 0, 0, 0, 0)


NAMES = (
    "scoring_id",
    "trajectory.rollout_id",
    "trajectory.journal_partition",
    "trajectory.last_offset",
)


class _ScoredEnd(NamedTuple):
    """The scoring and the end of a rollout that a scored record names."""

    scoring_id: str
    rollout_id: str
    journal_partition: int
    last_offset: int


class OutcomeChecks:
    """The records written for each terminal event, one row per event."""

    def __init__(self, case: AuditState, lineage: Lineage) -> None:
        self.case = case
        self.lineage = lineage
        ends = case.journal.ends
        self._by_body = np.argsort(ends.bodies, kind="stable")
        self._bodies = ends.bodies[self._by_body]
        self._first = np.zeros(len(ends.places), np.uint64)
        self._written = np.zeros(len(ends.places), bool)
        self._scores: dict[str, NDArray[np.bool_]] = {}
        self._prefix = b""

    def trajectories(self, records: Sequence[Record]) -> None:
        """Take records of `trajectories`, in order within each partition."""
        bodies, readable = [], []
        for record in records:
            body = self._body(record)
            if body is not None:
                bodies.append(body)
                readable.append(record)
        if not readable:
            return
        at = find(self._bodies, np.array(bodies, np.uint64))
        rows = np.where(at >= 0, self._by_body[at] if len(self._bodies) else -1, -1)
        for row, record in zip(rows.tolist(), readable, strict=True):
            judged = row if row >= 0 else self._judge(record)
            if judged >= 0:
                self._note_trajectory(judged, record)

    def _note_trajectory(self, row: int, record: Record) -> None:
        self.case.report.checked["I5"] += 1
        self.case.report.checked["I8"] += 1
        if self._written[row]:
            self.case.report.duplicate(record.topic, record.partition, record.offset)
            return
        self._written[row] = True
        self._first[row] = pack_place(record.partition, record.offset)

    def _body(self, record: Record) -> int | None:
        """Return the word of a trajectory in the present schema."""
        value = record.value
        if not self._prefix:
            self._prefix = self.case.codec.encode(self.case.topics.trajectories, EMPTY)[:PREFIX]
        if value is not None and value.startswith(self._prefix):
            return word_of(memoryview(value)[PREFIX:])
        trajectory = self.case.decoded(record, Trajectory)
        return None if trajectory is None else self._encoded(trajectory)

    def _encoded(self, trajectory: Trajectory) -> int:
        return word_of(
            memoryview(self.case.codec.encode(self.case.topics.trajectories, trajectory))[PREFIX:]
        )

    def _judge(self, record: Record) -> int:
        """Return the row of a trajectory that equals no folded one; -1 if it has none.

        The log holds a light record of a heavy one, whose claimed content is compared.
        """
        trajectory = self.case.decoded(record, Trajectory)
        row = -1 if trajectory is None else self._row_of(trajectory, record)
        if trajectory is not None and row >= 0:
            self._compare(row, trajectory, record, self._encoded(trajectory))
        return row

    def _row_of(self, trajectory: Trajectory | _ScoredEnd, record: Record) -> int:
        """Return the row of the terminal event that a trajectory names; report a missing one."""
        ends = self.case.journal.ends
        named = pack_named_place(trajectory.journal_partition, trajectory.last_offset)
        row = -1 if named is None else find_one(ends.places, named)
        if row >= 0 and ends.owners[row] == word_of(trajectory.rollout_id.encode()):
            return row
        self._of_no_end(trajectory, record)
        return -1

    def _compare(self, row: int, trajectory: Trajectory, record: Record, body: int) -> None:
        """Report a trajectory that differs from the fold of its journal."""
        ends = self.case.journal.ends
        if body in (ends.bodies[row], ends.older[row]):
            return
        counted = int(ends.applied[row])
        bare = trajectory.sequences is None and trajectory.steps is None
        if ends.bodies[row] == 0:
            if not bare:
                self._check_applied(trajectory, counted, record)
                ends.adopt(row, trajectory)
        elif ends.adopted_from_older(row, trajectory):
            ends.adopt(row, trajectory)
        elif bare and (wanted := self.case.journal.ends.bare.get(int(ends.places[row]))):
            if self._encoded(replace(trajectory, code="", reason="")) not in wanted:
                self._differs(trajectory, record)
        elif self._check_applied(trajectory, counted, record):
            self._differs(trajectory, record)

    def _differs(self, trajectory: Trajectory, record: Record) -> None:
        text = (
            f"folding the journal of rollout {trajectory.rollout_id} to offset "
            f"{trajectory.last_offset} of partition {trajectory.journal_partition} gives another "
            "trajectory"
        )
        self.case.breach("I5", record, text)

    def _check_applied(self, trajectory: Trajectory, counted: int, record: Record) -> bool:
        steps, sequences = trajectory.steps, trajectory.sequences
        if steps is None or sequences is None:
            return True
        answers = sum(_answers(sequence.loss_mask) for sequence in sequences)
        positions = [step.position for step in steps]
        answers -= recorded_answers(trajectory.request)
        if len(steps) + answers <= counted and len(set(positions)) == len(positions):
            return True
        text = (
            f"the trajectory of rollout {trajectory.rollout_id} holds {len(steps)} observations "
            f"and {answers} model answers, the journal counted {counted} answers in all"
        )
        self.case.breach("I4", record, text, "doubled")
        return False

    def _of_no_end(self, trajectory: Trajectory | _ScoredEnd, record: Record) -> None:
        if self.case.after(record) or self.case.before(
            trajectory.rollout_id, trajectory.journal_partition
        ):
            return
        text = (
            f"a trajectory of rollout {trajectory.rollout_id} that ended at "
            f"{trajectory.journal_partition}@{trajectory.last_offset}, where the journal has no "
            "counted end of it"
        )
        self.case.breach("I8", record, text, "doubled")

    # Scores

    def scored(self, records: Sequence[Record]) -> None:
        """Take records of `trajectories.scored`, in order within each partition."""
        for record in records:
            named = self._named(record)
            if named is None:
                continue
            if self.lineage.refers_to(record):
                scored = self.case.decoded(record, ScoredTrajectory)
                if scored is not None:
                    self.lineage.scored(record, scored.trajectory)
            row = self._row_of(named, record)
            if row < 0 or not self._right(record, named, row):
                continue
            self.case.report.checked["I8"] += 1
            self.case.report.checked["I5"] += 1
            scores = self._scores.setdefault(
                named.scoring_id, np.zeros(len(self.case.journal.ends.places), bool)
            )
            if scores[row]:
                self.case.report.duplicate(record.topic, record.partition, record.offset)
            scores[row] = True

    def _named(self, record: Record) -> _ScoredEnd | None:
        """Read the names in a scored record, without the rest of it."""
        picked = self.case.picked(record, ScoredTrajectory, *NAMES)
        return None if picked is None else _ScoredEnd(*picked)

    def _right(self, record: Record, named: _ScoredEnd, row: int) -> bool:
        """Compare the trajectory inside; return False if it is unreadable."""
        if self._holds(record, named.scoring_id, row):
            return True
        scored = self.case.decoded(record, ScoredTrajectory)
        if scored is not None:
            trajectory = scored.trajectory
            self._compare(row, trajectory, record, self._encoded(trajectory))
        return scored is not None

    def _holds(self, record: Record, scoring_id: str, row: int) -> bool:
        """Return True if the folded bytes follow the scoring id, which saves encoding again.

        False means nothing: the id may be long, or the schema another.
        """
        ends = self.case.journal.ends
        begin = PREFIX + 1 + len(scoring_id.encode())
        inside = memoryview(record.value or b"")[begin : begin + int(ends.sizes[row])]
        return bool(ends.bodies[row]) and word_of(inside) == ends.bodies[row]

    def finish(self) -> None:
        """Report ends without a trajectory, and trajectories without a score."""
        self._missing_trajectories()
        OwedScores(self.case, self._first, self._written, self._scores).check()

    def _missing_trajectories(self) -> None:
        ends = self.case.journal.ends
        for row in np.flatnonzero(~self._written & (ends.marks != OPTIONAL)):
            cause = int(ends.places[row])
            if self.case.owed(cause):
                text = "a rollout ended here, but no trajectory of it was written"
                self.case.report.add(
                    Breach("I8", text, self.case.topics.events, *unpack_place(cause), "lost")
                )


def _answers(mask: bytes) -> int:
    """Return the least number of answers sampled into a sequence: its runs of sampled tokens.

    Messages do not tell: a prompt may hold examples of an assistant's messages.
    """
    return mask.count(b"\0\1") + mask.startswith(b"\1")
