"""What becomes of groups that grow too old while they run: `drop`, `wait`, or `weight`.

Ages are in versions. A wait begins, in the time of the log, when the last rollout of a batch has
ended: whoever reads the same records begins it there too, however often. It goes on by a clock.
"""

from dataclasses import dataclass

ON_STALE = ("drop", "wait", "weight")

HALVINGS = 6
"""A group this much older than the bound would weigh less than 1 in 64: it is dropped after all."""


def stale_weight(age: int, bound: int) -> float:
    """What a group's advantages are multiplied by under `weight`: 1 up to the bound, then halved
    with every version beyond it (ours)."""
    return 0.5 ** max(0, age - bound)


def oldest_kept(v_now: int, bound: int, on_stale: str) -> int:
    """The lowest version that may still be trained on."""
    return v_now - bound - (HALVINGS if on_stale == "weight" else 0)


@dataclass(frozen=True)
class StaleWait:
    """Under `wait` no step is taken that would make a running group stale, up to a deadline."""

    bound: int
    """η: after a step to v + 1 what was begun before v + 1 - η is stale."""
    deadline_s: float
    """Seconds from when a batch was there."""
    deadline_steps: int = 0
    """Batches that may pile up; 0: only the seconds count."""

    def holds_back(
        self, v_now: int, oldest_running: int | None, batches: int, now_ms: int, since_ms: int
    ) -> bool:
        """Whether the step that could be taken now has to wait for a group that is running.

        `oldest_running` is the lowest version that one was begun under, `batches` how many are
        there, `since_ms` when the first of them was whole, by the log; `now_ms` is the time of the
        log, or of the clock that goes on from there.
        """
        if oldest_running is None or oldest_running >= v_now + 1 - self.bound:
            return False
        late = now_ms - since_ms >= 1000 * self.deadline_s
        return not (late or 0 < self.deadline_steps < batches)
