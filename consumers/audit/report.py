"""The result of an audit: checks per invariant, and every breach with its place."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from rollcall.consumers.audit.quota_use import QuotaFigure
from rollcall.schemas.errors import WireError

INVARIANTS = {
    "I1": "every request starts once and every rollout ends once",
    "I2": "every reader counts the same events",
    "I3": "commands are those that the journal implies",
    "I4": "an answer is applied at most once",
    "I5": "folding again gives the same trajectory, byte for byte",
    "I6": "nothing below a committed offset is unaccounted for",
    "I7": "a rollout is trained on once, and each step says which",
    "I8": "every end has its trajectory, every trajectory its scores",
    "I9": "work is repeated, and written again, at most as often as allowed",
}


LISTED = 100_000
"""The number of breaches that are kept with their places; the rest is counted."""
UNREADABLE_TOLD = 20


@dataclass(frozen=True, slots=True)
class Breach:
    """One place where an invariant does not hold."""

    invariant: str
    text: str
    topic: str
    partition: int
    offset: int
    kind: str = "wrong"
    """`lost`, `doubled` or `wrong`."""

    @property
    def place(self) -> str:
        """The place in the form `topic partition@offset`."""
        return f"{self.topic} {self.partition}@{self.offset}"


@dataclass
class Report:
    """The result of one audit."""

    checked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    """Checked items, by invariant."""
    breaches: list[Breach] = field(default_factory=list)
    """The first of them; `found` counts all."""
    found: Counter[str] = field(default_factory=Counter)
    """Breaches by invariant."""
    kinds: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    """Rollouts that were begun or refused."""
    ended: int = 0
    open: int = 0
    pending: int = 0
    """Effects that may still be written at the end of the log."""
    repeated: int = 0
    """Answers to external work that had been answered before."""
    duplicates: int = 0
    """Repeated trajectories and scored records; the first counts."""
    not_run_again: int = 0
    """Rollouts whose program is missing here, or is another version: counted, not run."""
    before_window: int = 0
    """Rollouts that began before the window."""
    held_back: list[str] = field(default_factory=list)
    """Open transactions, and the records that they hide from readers."""
    cut_off: int = 0
    """Starts of requests that the log has lost, after it was accepted that others took their
    offsets."""
    last_duplicate: tuple[str, int, int] | None = None
    dead_letters: int = 0
    retired: dict[str, str] = field(default_factory=dict)
    """Scorings that owe nothing any more, with the time and reason of their retirement."""
    quotas: list[QuotaFigure] = field(default_factory=list)
    """Quotas of users and their use. Use above a quota is not a breach, and can be legitimate
    (`rollcall.consumers.audit.quota_use`)."""
    records: int = 0
    unreadable: dict[str, int] = field(default_factory=dict)
    """Records that no schema can read, by topic."""
    first_unreadable: list[str] = field(default_factory=list)
    unread: list[tuple[str, int, int]] = field(default_factory=list)
    """The first of their places."""
    seconds: float = 0.0

    def add(self, breach: Breach) -> None:
        """Count a breach, and keep it while there is room."""
        self.found[breach.invariant] += 1
        self.kinds[breach.kind] += 1
        if len(self.breaches) < LISTED:
            self.breaches.append(breach)

    def note_unreadable(self, topic: str, partition: int, offset: int, error: WireError) -> None:
        """Count a record that no schema can read."""
        self.unreadable[topic] = self.unreadable.get(topic, 0) + 1
        if len(self.unread) < LISTED:
            self.unread.append((topic, partition, offset))
        if len(self.first_unreadable) < UNREADABLE_TOLD:
            self.first_unreadable.append(f"{topic} {partition}@{offset}: {error}")

    def duplicate(self, topic: str, partition: int, offset: int) -> None:
        """Count a record that repeats another one."""
        self.duplicates += 1
        self.last_duplicate = topic, partition, offset

    @property
    def lost(self) -> int:
        """The number of breaches by missing records."""
        return self.kinds["lost"]

    @property
    def doubled(self) -> int:
        """The number of breaches by doubled records."""
        return self.kinds["doubled"]

    @property
    def ok(self) -> bool:
        """True if every invariant holds."""
        return not self.found

    def plain(self) -> dict[str, Any]:
        """Return the content of the report as it is written to a file."""
        counted = {"ok": self.ok, "lost": self.lost, "doubled": self.doubled}
        values = {
            name: value for name, value in vars(self).items() if name not in ("kinds", "unread")
        }
        breaches = [asdict(breach) for breach in self.breaches]
        quotas = [asdict(figure) | {"over": figure.over} for figure in self.quotas]
        found = {"found": dict(self.found), "breaches": breaches, "quotas": quotas}
        return {**counted, **values, **found}
