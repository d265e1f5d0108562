"""Reports from a run's steps if its trainer waits for rollouts or rollouts wait for the trainer,
and how many model servers would balance both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.runs.training_record import TrainedRun, steps_of
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import TrainStep
from rollcall.trainer.weights.branches import branch_of

BUSY_BELOW, IDLE_ABOVE = 0.05, 0.10
"""Shares of a trainer's time in waits: below the first it is busy, above the second starved."""
SPARE = 1.10
"""Margin over the number of trajectories that were consumed."""


def proposed_servers(servers: int, wait_share: float, consumed: int, entered: int) -> int:
    """Return the proposed number of servers, given G (`servers`); G means no change.

    w > 0.10: ceil(G / (1 − w));  w < 0.05: min(G, ceil(1.10·G·consumed/entered));  else G.
    `wait_share` is w, the trainer's Σ wait / Σ step; `consumed` and `entered` are trajectories that
    were trained on and that were produced. The result is at most 10·G and at least one.
    """
    if wait_share > IDLE_ABOVE:
        return math.ceil(servers / max(1 - wait_share, 0.1))
    if wait_share < BUSY_BELOW and entered > 0:
        return max(1, min(servers, math.ceil(SPARE * servers * consumed / entered)))
    return servers


STEPS = 10
"""The number of last steps that are included."""


@dataclass(frozen=True, slots=True)
class BalanceReport:
    """Sums over some steps of a run."""

    run_id: str
    first: int
    last: int
    """The last step; both are included."""
    wait_share: float
    """The share of the trainer's time that it waited."""
    produced: int
    used: int
    dropped: int
    cancelled: int
    length_used: float
    """A mean in sampled tokens, like the next two; 0 if there were none."""
    length_dropped: float
    length_cancelled: float
    servers: int
    proposed: int

    @property
    def change(self) -> int:
        """The number of servers to add; to remove if negative."""
        return self.proposed - self.servers


def balance_of(
    history: History, run: TrainedRun, servers: int, steps: int = STEPS
) -> BalanceReport:
    """Return the report on the last steps of the newest branch; raises
    Refused if there are none."""
    records = list(steps_of(history, run))
    if not records:
        msg = f"run {run.run_id!r} has no record in {history.topics.train_steps}: it has no step"
        raise Refused(msg)
    taken = branch_of(records, None).steps
    last = [taken[number] for number in sorted(taken)[-steps:]]
    told = [step for step in last if "wait_seconds" in step.metrics]
    if not told:
        msg = (
            f"the last steps of run {run.run_id!r} do not tell how long they waited: a release "
            "before this one trained them; ask again after its next step"
        )
        raise Refused(msg)
    return _report(run.run_id, told, servers)


def _report(run_id: str, steps: Sequence[TrainStep], servers: int) -> BalanceReport:
    def total(key: str) -> float:
        return sum(step.metrics[key] for step in steps)

    def mean_length(what: str) -> float:
        tokens = sum(step.metrics[what] * step.metrics[f"length_{what}"] for step in steps)
        return tokens / total(what) if total(what) else 0.0

    wait_share = total("wait_seconds") / max(total("cycle_seconds"), 1e-9)
    used, entered = int(total("used")), int(total("produced") - total("cancelled"))
    return BalanceReport(
        run_id=run_id,
        first=steps[0].step,
        last=steps[-1].step,
        wait_share=wait_share,
        produced=int(total("produced")),
        used=used,
        dropped=int(total("dropped")),
        cancelled=int(total("cancelled")),
        length_used=mean_length("used"),
        length_dropped=mean_length("dropped"),
        length_cancelled=mean_length("cancelled"),
        servers=servers,
        proposed=proposed_servers(servers, wait_share, used, entered),
    )
