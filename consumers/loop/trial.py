"""Which record is in hand alone, as it may kill its worker, and how the commits come to say so."""

from consumers.loop.commits import Commits
from consumers.loop.partition_progress import PartitionProgress
from consumers.loop.role import Role


class Trial:
    """At most one partition's next record is on trial: nothing else is in hand meanwhile."""

    def __init__(self, role: Role, commits: Commits) -> None:
        self.role = role
        self.commits = commits
        self._accused: PartitionProgress | None = None

    def end(self, waiting: list[PartitionProgress]) -> None:
        """Let the commits say that many are in hand, before the first of a partition is."""
        fresh = [p for p in waiting if p.handed < p.floor <= p.held[-1].offset]
        for progress in fresh:
            progress.handed = next(r.offset for r in progress.held if r.offset >= progress.floor)
        if self._accused is not None:
            self._accused.suspicion.alone = None  # also if it is not through: it has had its time
        if fresh or self._accused is not None:
            self._accused = None
            self.commits.now()

    def accuse(self, progress: PartitionProgress) -> bool:
        """Let the commits say that the next record is in hand alone; False if they would not."""
        if self._accused is not None:
            self._accused.suspicion.alone = None
        self._accused = progress
        progress.suspicion.alone = progress.handed = progress.held[0].offset
        return self.commits.now()

    def acquit(self) -> None:
        """Who has nothing more in hand is not in danger; the next commit says so."""
        accused = self._accused
        if accused is None or accused.suspicion.alone is None or self.role.in_flight():
            return
        accused.suspicion.alone = None
        self.commits.hasten()
