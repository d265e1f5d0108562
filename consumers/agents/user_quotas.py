"""All that one agents worker knows of what users may take: one table, and three limits by it."""

from collections.abc import Callable, Iterator, Set

from consumers.agents.begun_this_hour import BegunThisHour
from consumers.agents.call_pacing import CallPacing
from consumers.agents.fold.outstanding import Outstanding
from consumers.agents.fold.rollout import Rollout
from consumers.agents.rollout_quotas import RolloutQuotas
from consumers.agents.shares import Shares
from consumers.agents.watermark import Watermark
from consumers.clock import Clock
from consumers.log.protocols import Log, Record
from consumers.quota_table import QuotaTable
from schemas.codec import Codec
from schemas.errors import WireError
from schemas.messages import Quota
from schemas.topics import Topics

HEAR_S = 10.0


class UserQuotas:
    """Reads `quotas` to its end while it is made."""

    def __init__(
        self,
        log_: Log,
        codec: Codec,
        topics: Topics,
        default: Quota,
        unreadable: Callable[[Record, WireError], None],
        clock: Callable[[], float],
        wall: Clock,
        paused_runs: Set[str],
    ) -> None:
        """`unreadable` is told about what is no quota."""
        self.table = QuotaTable(log_, codec, topics, default, clock=clock, unreadable=unreadable)
        until = clock() + HEAR_S
        while not self.table.known and clock() < until:
            self.table.follow(0.1)
        self.shares = Shares()
        self.hour = BegunThisHour(log_, codec, topics.trajectories, wall)
        self.rollouts = RolloutQuotas(self.table, self.shares, self.hour, paused_runs)
        self.pacing = CallPacing(self.table, self.shares, wall)
        self._log = log_
        self._journals = topics.events

    def take_over(self, partition: int, begin: Watermark) -> None:
        """A journal will be folded from here on; then this worker has its share."""
        self.shares.partitions = self._log.partitions(self._journals)
        self.hour.take_over(partition, begin)

    def drop(self, partition: int) -> None:
        """A journal, and its share, are another worker's now."""
        self.hour.drop(partition)
        self.shares.held.discard(partition)
        self.rollouts.changed()

    def follow(self) -> None:
        """Take what is said on `quotas`."""
        known = self.table.known
        users = self.table.follow()
        self.rollouts.changed(users if known else None)

    def look_back(self, over: Callable[[], bool]) -> None:
        """Read on in what ended in this hour, until the time is over."""
        if self.hour.read(over):
            self.rollouts.changed()

    def look_at_the_hour(self) -> None:
        """With a new hour, its windows are clear."""
        if self.hour.turn():
            self.rollouts.changed()
            self.pacing.forget_idle()

    def held(self) -> int:
        """Rollouts that wait for any of the limits."""
        return self.rollouts.held.total() + self.pacing.held.total()

    def ready(self) -> Iterator[Rollout]:
        """Rollouts that may begin now."""
        self.look_at_the_hour()
        yield from self.rollouts.ready()

    def due(self) -> Iterator[tuple[Rollout, Outstanding]]:
        """Calls that may be sent now."""
        yield from self.pacing.due()
