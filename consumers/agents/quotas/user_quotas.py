"""The user limits of one agents worker: the table of quotas, the pacing of calls, and how many
rollouts of one user run at once.

A quota delays a rollout's first command, never its start: an accepted request is in the journal.
Rollouts of one user begin in the order of their starts, while fewer run here than this worker's
share of `running`. Lowering a quota stops no rollout: those above it end normally. A paused run has
a queue of its own, from which no rollout begins before the run is resumed.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Set

from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.consumers.agents.fold.rollout import Rollout
from rollcall.consumers.agents.quotas.call_pacing import CallPacing, QuotaShare
from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.loop.clock import Clock
from rollcall.consumers.loop.quota_table import QuotaTable
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Quota
from rollcall.schemas.topics import Topics


class RolloutQuotas:
    """Running and waiting rollouts, by user."""

    def __init__(
        self, table: QuotaTable, shares: QuotaShare, paused_runs: Set[str] = frozenset()
    ) -> None:
        """`paused_runs` is a live set that the caller changes."""
        self.table = table
        self.paused_runs = paused_runs
        self.shares = shares
        self.held: Counter[int] = Counter()
        """The number of waiting rollouts, by partition."""
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, OrderedDict[Rollout, None]] = {}
        """Waiting rollouts by user, in order of their starts."""
        self._look_at: set[str] = set()
        """Users with waiting rollouts that may now begin."""
        self._of_paused: dict[str, OrderedDict[Rollout, None]] = {}
        """Waiting rollouts by paused run, in order of their starts."""

    def limits(self, rollout: Rollout) -> bool:
        """Return True if a rollout may have to wait."""
        limited = self.table.of(rollout.request.user).running > 0
        return limited or not self.table.known or self._is_paused(rollout)

    def _is_paused(self, rollout: Rollout) -> bool:
        run_id = rollout.request.run_id
        return bool(run_id) and run_id in self.paused_runs

    def admit(self, rollout: Rollout, *, ahead: bool = False) -> bool:
        """Let a rollout begin, or queue it; `ahead` puts it before those that wait already."""
        who = rollout.request.user
        if self._is_paused(rollout):
            self._of_paused.setdefault(rollout.request.run_id, OrderedDict())[rollout] = None
            self.held[rollout.partition] += 1
            return False
        if (who in self._waiting and not ahead) or not self._has_room(who):
            self._waiting.setdefault(who, OrderedDict())[rollout] = None
            self.held[rollout.partition] += 1
            return False
        self.run(rollout)
        return True

    def _has_room(self, user: str) -> bool:
        if not self.table.known:
            return False
        most = self.table.of(user).running
        return not most or self._running[user] < self.shares.part_of(most)

    def run(self, rollout: Rollout) -> None:
        """Count a rollout as running, whether there is room or not."""
        self._running[rollout.request.user] += 1
        rollout.admitted = True

    def leave(self, rollout: Rollout) -> None:
        """Forget a rollout that has ended or belongs to another worker now."""
        who = rollout.request.user
        if rollout.admitted:
            rollout.admitted = False
            self._running[who] -= 1
            if not self._running[who]:
                del self._running[who]
            self._look_at.add(who)
        else:
            self._let_go(rollout)

    def _let_go(self, rollout: Rollout) -> None:
        """Remove a rollout from its queue."""
        lines = (self._waiting, rollout.request.user), (self._of_paused, rollout.request.run_id)
        for line, name in lines:
            if rollout in line.get(name, ()):
                del line[name][rollout]
                self.held[rollout.partition] -= 1
                if not line[name]:
                    del line[name]

    def changed(self, users: Iterable[str] | None = None) -> None:
        """Check the queues of these users again; None means all, for example after a rebalance."""
        self._look_at.update(self._waiting if users is None else users)

    def ready(self) -> Iterator[Rollout]:
        """Yield the rollouts that may begin now, counted as running."""
        for run_id in [run for run in self._of_paused if run not in self.paused_runs]:
            for rollout in list(self._of_paused[run_id]):
                self._let_go(rollout)
                if self.admit(rollout):
                    yield rollout
        while self._look_at:
            who = self._look_at.pop()
            while who in self._waiting and self._has_room(who):
                rollout = next(iter(self._waiting[who]))
                self._let_go(rollout)
                if self.admit(rollout, ahead=True):
                    yield rollout


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
