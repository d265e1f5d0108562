"""The user limits of one agents worker: the table of quotas, and the two limits based on it."""

from collections.abc import Callable, Iterator, Set

from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.consumers.agents.fold.rollout import Rollout
from rollcall.consumers.agents.quotas.call_pacing import CallPacing
from rollcall.consumers.agents.quotas.rollout_quotas import RolloutQuotas
from rollcall.consumers.agents.quotas.shares import QuotaShare
from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.loop.clock import Clock
from rollcall.consumers.loop.quota_table import QuotaTable
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Quota
from rollcall.schemas.topics import Topics

HEAR_S = 10.0


class UserQuotas:
    """The quotas of users and the limits based on them; the constructor
    reads `quotas` to its end."""

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
        """`unreadable` is called with records that are not valid quotas."""
        self.table = QuotaTable(log_, codec, topics, default, unreadable=unreadable)
        until = clock() + HEAR_S
        while not self.table.known and clock() < until:
            self.table.follow(0.1)
        self.shares = QuotaShare()
        self.rollouts = RolloutQuotas(self.table, self.shares, paused_runs)
        self.pacing = CallPacing(self.table, self.shares, wall)
        self._log = log_
        self._journals = topics.events

    def take_over(self) -> None:
        """Prepare for a journal that will be folded; this worker gets its share after that."""
        self.shares.partitions = self._log.partitions(self._journals)

    def drop(self, partition: int) -> None:
        """Forget a journal that is another worker's now, and its share."""
        self.shares.held.discard(partition)
        self.rollouts.changed()

    def follow(self) -> None:
        """Apply new records of `quotas`."""
        known = self.table.known
        users = self.table.follow()
        self.rollouts.changed(users if known else None)

    def held(self) -> int:
        """Return the number of rollouts that wait for any of the limits."""
        return self.rollouts.held.total() + self.pacing.held.total()

    def ready(self) -> Iterator[Rollout]:
        """Yield the rollouts that may begin now."""
        yield from self.rollouts.ready()

    def due(self) -> Iterator[tuple[Rollout, OutstandingEffect]]:
        """Yield the calls that may be sent now."""
        yield from self.pacing.due()
