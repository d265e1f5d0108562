"""The ends of all rollouts: their places in the journal, and the trajectories they imply."""

from array import array
from dataclasses import replace

from rollcall.consumers.audit.columns import Words, sort_together, word_of
from rollcall.schemas.codec import PREFIX, Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Trajectory
from rollcall.schemas.reduced_trajectory import reduced_forms
from rollcall.schemas.topics import Topics

OPTIONAL = 1
"""Mark of entries before the beginning of the other topics, which need not hold their effects."""
LARGE_BYTES = 100_000
"""Only a trajectory above this size can have been written without sequences and steps."""


class RolloutEnds:
    """One row for each counted terminal event; the columns exist once the journal is read."""

    places: Words
    """Places of the ends; the columns are sorted by it."""
    owners: Words
    bodies: Words
    """Digest of the implied trajectory; 0 if the program was not run."""
    applied: Words
    """Answers counted in the attempt that ended."""
    sizes: Words
    """Bytes of the trajectory."""
    older: Words
    """Digest of the trajectory as a worker writes it that does not know the newest field."""
    marks: Words
    asked: Words
    """Index into `named` of the scorings that each request names."""

    def __init__(self, codec: Codec, topics: Topics) -> None:
        self.codec = codec
        self.topic = topics.trajectories
        self.bare: dict[int, frozenset[int]] = {}
        """Digests of the records that may replace a trajectory that is too large, by place."""
        self._adopted: set[int] = set()
        self.named: list[tuple[str, ...]] = [()]
        """The distinct sets of scorings that requests name."""
        self._named_at: dict[tuple[str, ...], int] = {(): 0}
        self._columns = tuple(array("Q") for _ in range(8))

    def note(
        self,
        trajectory: Trajectory | None,
        at: int,
        owner: int,
        applied: int,
        mark: int,
        scorings: tuple[str, ...] = (),
    ) -> None:
        """Note the end of a rollout at a place; the trajectory is None if its program was not run.

        `scorings` are those that its request names.
        """
        body = size = older = 0
        if trajectory is not None:
            body, size, older = self._digests(trajectory, at)
        asked = self._named_at.setdefault(scorings, len(self.named))
        if asked == len(self.named):
            self.named.append(scorings)
        row = at, owner, body, applied, size, older, mark, asked
        for column, word in zip(self._columns, row, strict=True):
            column.append(word)

    def close(self) -> None:
        """Sort the columns for joins."""
        ordered = iter(sort_together(*self._columns))
        self.places, self.owners, self.bodies, self.applied = (next(ordered) for _ in range(4))
        self.sizes, self.older, self.marks, self.asked = ordered

    def adopt(self, row: int, trajectory: Trajectory) -> None:
        """Take a written trajectory as the expected one, since none was folded here."""
        self._adopted.add(row)
        self.bodies[row] = self._word(trajectory)
        self.older[row] = self._word(without_newest_field(trajectory))

    def adopted_from_older(self, row: int, trajectory: Trajectory) -> bool:
        """Return True if the adopted trajectory is this one without the newest field."""
        bodies, older = self.bodies[row], self.older[row]
        known = row in self._adopted and bodies == older
        return known and bool(older == self._word(without_newest_field(trajectory)))

    def _digests(self, trajectory: Trajectory, at: int) -> tuple[int, int, int]:
        """Return the word of the implied trajectory, 0 if it cannot be written whole; its size;

        and the word of the trajectory without the newest field.
        """
        try:
            encoded = self.codec.encode(self.topic, trajectory)
        except WireError:
            return 0, 0, 0
        size = len(encoded) - PREFIX.size
        older = without_newest_field(trajectory)
        body = word_of(memoryview(encoded)[PREFIX.size :])
        if size > LARGE_BYTES:
            # The forms that may be written if the whole is too large, without code and reason.
            both = (replace(each, code="", reason="") for each in (trajectory, older))
            self.bare[at] = frozenset(
                self._word(bare) for each in both for bare in reduced_forms(each)
            )
        return body, size, body if older is trajectory else self._word(older)

    def _word(self, trajectory: Trajectory) -> int:
        return word_of(memoryview(self.codec.encode(self.topic, trajectory))[PREFIX.size :])


def without_newest_field(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory without the scorings of its request, the newest field.

    A worker of the release before this field writes it so, beside workers of this release.
    """
    request = trajectory.request
    if request is None or not request.scorings:
        return trajectory
    return replace(trajectory, request=replace(request, scorings=()))
