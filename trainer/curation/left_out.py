"""Rollouts that a run leaves out of its training, by reason, with a remedy for each.

A fold of the run's steps. A rollout is dropped as a whole, under one reason; or it is trained on
although its policy could not read all of it (`rollcall.trainer.curation.reading`).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollcall.schemas.messages import TrainStep
from rollcall.trainer.curation.judge import BESIDE_LIMIT, UNASKED
from rollcall.trainer.rules.samples import LIMITS

UNKNOWN, CONTEXT, WINDOW = "unknown_words", "context_full", "window_full"
PARTS = (UNKNOWN, CONTEXT, WINDOW)
"""Metrics of a step that count rollouts that the policy could read only in part."""

REPORTED_ABOVE = 0.01
"""Reasons with a share of at most this are not reported."""

CANCELLED = frozenset({"redundant", "cancelled", "continued"})
"""Reasons of rollouts that were cancelled as planned; other reasons may indicate a problem."""

ASKED_FOR = frozenset({"zero_variance", "high_entropy", UNASKED})
"""Reasons that follow from the recipe's own choices."""

_AT_LIMIT = "raise it in [limits], or give shaping = ['overlong'] to train on what ended there"
REMEDIES: Mapping[str, str] = dict.fromkeys(LIMITS, f"ended at a limit: {_AT_LIMIT}") | {
    BESIDE_LIMIT: "could be trained on, but a member of their group ended at a limit: "
    f"{_AT_LIMIT}, or missing = 'train_partial' to train on the others",
    "too_long": "longer than the model reads: ask for fewer turns or tokens",
    "incomplete": "could be trained on, but a member of their group could not: mend what failed, "
    "or give missing = 'train_partial' to train on the others",
    "stale": "sampled by weights that are too old: raise max_staleness, or start fewer rollouts",
    "singleton": "alone of their group: mend what became of the others",
    "sampling_not_followed": "sampled otherwise than the learner assumes: give [sampling] its "
    "temperature, and neither top_p nor top_k",
    "unscored": "their scorer gave no finite number: see `rollcall trajectory ID`",
    UNKNOWN: "trained on, though they read words that the policy has no token for: add "
    "them to tokens of [policy]",
    CONTEXT: "trained on, though cut off where the model's context ends: ask for fewer "
    "turns or tokens, or take a model that reads more",
    WINDOW: "trained on, though cut off where the model's sliding window ends, since no "
    "more is read than that: ask for fewer turns or tokens, or take a model without one",
}


@dataclass(slots=True)
class LeftOut:
    """Counts of the ended rollouts of one policy that were left out."""

    rollouts: int = 0
    """The number of rollouts trained on or dropped, without the cancelled ones."""
    by_reason: Counter[str] = field(default_factory=Counter)

    def take(self, step: TrainStep) -> None:
        """Add the counts of one step."""
        dropped = {r: n for r, n in step.dropped.items() if r not in CANCELLED}
        self.rollouts += int(step.metrics.get("used", len(step.trajectories)))
        self.rollouts += sum(dropped.values())
        self.by_reason.update({r: n for r, n in dropped.items() if r not in ASKED_FOR})
        parts = {part: int(step.metrics.get(part, 0)) for part in PARTS}
        self.by_reason.update({part: count for part, count in parts.items() if count})

    def share(self, reason: str) -> float:
        """Return the share of a reason in all rollouts."""
        return self.by_reason[reason] / self.rollouts if self.rollouts else 0.0

    def reported(self) -> dict[str, int]:
        """Return the counts of reasons above REPORTED_ABOVE, the most frequent first."""
        common = sorted(self.by_reason.items(), key=lambda item: (-item[1], item[0]))
        return {reason: count for reason, count in common if self.share(reason) > REPORTED_ABOVE}

    def __str__(self) -> str:
        """`beside_limit 313 (10 %), token_limit 47 (2 %) of 3,200 rollouts`; empty for nothing."""
        parts = [f"{r} {n:,} ({100 * self.share(r):.0f} %)" for r, n in self.reported().items()]
        return f"{', '.join(parts)} of {self.rollouts:,} rollouts" if parts else ""

    def lines(self) -> list[str]:
        """Return the same as lines, with a remedy per reason."""
        remedies = [f"       {reason}: {remedy_for(reason)}" for reason in self.reported()]
        return [f"left out {self}", *remedies] if remedies else []

    def plain(self) -> dict[str, dict[str, int | float | str]]:
        """Return by reason the count, the share and the remedy, as plain values."""
        return {
            reason: {
                "rollouts": count,
                "share": round(self.share(reason), 4),
                "remedy": remedy_for(reason),
            }
            for reason, count in self.reported().items()
        }


def remedy_for(reason: str) -> str:
    """Return the remedy for a reason."""
    return REMEDIES.get(reason, "dropped: see `rollcall trajectory ID` of one of them")
