"""The treatment of groups that become stale while they run: `drop`, `wait`, or `weight`.

Ages are in versions. A wait begins when the last rollout of a batch has ended, by the time of the
log, so that a restarted trainer begins it at the same time. From there a clock measures it.
"""

from dataclasses import dataclass

ON_STALE = ("drop", "wait", "weight")

HALVINGS = 6
"""Versions beyond the bound after which a group is dropped: its weight would be below 1/64."""


def stale_weight(age: int, bound: int) -> float:
    """Return the factor of a group's advantages under `weight`: 1 up to the bound, then halved
    with every version beyond it (ours)."""
    return 0.5 ** max(0, age - bound)


def oldest_kept(v_now: int, bound: int, on_stale: str) -> int:
    """Return the lowest version that may still be trained on."""
    return v_now - bound - (HALVINGS if on_stale == "weight" else 0)


@dataclass(frozen=True)
class StaleWait:
    """The `wait` rule: hold back a step that would make a running group stale, up to a deadline."""

    bound: int
    """η: after a step to v + 1, a group begun before v + 1 - η is stale."""
    deadline_s: float
    """Seconds after a batch was complete."""
    deadline_steps: int = 0
    """The number of batches that may accumulate; 0: only the seconds count."""

    def holds_back(
        self, v_now: int, oldest_running: int | None, batches: int, now_ms: int, since_ms: int
    ) -> bool:
        """Return True if the next step has to wait for a running group.

        `oldest_running` is the lowest version at the start of a running group, `batches` the number
        of complete batches, `since_ms` the time of the log when the first of them was complete;
        `now_ms` is the time of the log, advanced by a clock.
        """
        if oldest_running is None or oldest_running >= v_now + 1 - self.bound:
            return False
        late = now_ms - since_ms >= 1000 * self.deadline_s
        return not (late or 0 < self.deadline_steps < batches)
