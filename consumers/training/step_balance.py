"""Metrics of the balance in every step: produced, used and lost rollouts, and waiting time.

Counts are of the time since the step before. A produced rollout is used, dropped, cancelled, or
still held. Means of lengths, in tokens sampled by the policy, show whether long rollouts are
lost; they are 0 if there were none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rollcall.consumers.training.announcement import NOT_OURS
from rollcall.trainer.curation.drops import Tally
from rollcall.trainer.curation.left_out import CANCELLED
from rollcall.trainer.rules.samples import Sample


@dataclass(eq=False)
class StepBalance:
    """The balance of one trainer; after a restart, held rollouts count as produced again."""

    clock: Callable[[], float]
    _drops: Mapping[str, Tally] = field(default_factory=dict)
    _held: int = 0
    _trained_at: float = 0.0
    _waits_since: float = 0.0

    def begin(self, drops: Mapping[str, Tally]) -> None:
        """Count drops from here on; earlier ones have been announced."""
        self._drops = drops
        self._trained_at = self._waits_since = self.clock()

    def waits(self) -> None:
        """Note that the trainer waits for rollouts from now on."""
        self._waits_since = self.clock()

    def step(
        self, began: float, samples: Sequence[Sample], drops: Mapping[str, Tally], held: int
    ) -> dict[str, float]:
        """Return the metrics of a step that ended now and began at `began`; `drops` are totals."""
        now = self.clock()
        wait_s, cycle_s = max(0.0, began - self._waits_since), now - self._trained_at
        lost = {r: t for r, t in self._since(drops).items() if r not in NOT_OURS}
        cancelled = _sum(tally for reason, tally in lost.items() if reason in CANCELLED)
        dropped = _sum(tally for reason, tally in lost.items() if reason not in CANCELLED)
        used = Tally(len(samples), sum(sample.length for sample in samples))
        produced = used.count + dropped.count + cancelled.count + held - self._held
        self._drops, self._held = dict(drops), held
        self._trained_at = self._waits_since = now
        return {
            "produced": float(produced),
            "used": float(used.count),
            "dropped": float(dropped.count),
            "cancelled": float(cancelled.count),
            "length_used": _mean(used),
            "length_dropped": _mean(dropped),
            "length_cancelled": _mean(cancelled),
            "wait_seconds": wait_s,
            "cycle_seconds": cycle_s,
            "wait_share": wait_s / cycle_s if cycle_s > 0 else 0.0,
        }

    def _since(self, drops: Mapping[str, Tally]) -> dict[str, Tally]:
        before = {reason: self._drops.get(reason, Tally()) for reason in drops}
        return {
            reason: Tally(tally.count - before[reason].count, tally.length - before[reason].length)
            for reason, tally in drops.items()
        }


def _sum(tallies: Iterable[Tally]) -> Tally:
    count = length = 0
    for tally in tallies:
        count, length = count + tally.count, length + tally.length
    return Tally(count, length)


def _mean(tally: Tally) -> float:
    return tally.length / tally.count if tally.count else 0.0
