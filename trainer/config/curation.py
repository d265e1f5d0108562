"""The settings by which a buffer admits samples, and by which used ones are replayed."""

from dataclasses import dataclass
from math import floor

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import RuleChoice
from rollcall.trainer.config.tables import Recorded, Share
from rollcall.trainer.rules.staleness import ON_STALE


@dataclass(frozen=True, slots=True)
class ReplayRule:
    """The amount and the age of replayed samples."""

    ratio: float = 0.0
    """The share of replayed groups in a batch."""
    capacity: int = 64
    """The number of groups that are kept."""
    max_age: int = 8
    """The largest age of the oldest token, in versions; older samples are forgotten."""
    max_uses: int = 4
    """The most uses of a group, the first included."""
    pool: int = 0
    """The number of tasks whose latest success is kept for failed groups; 0: none."""

    def groups(self, groups: int) -> int:
        """Return the number of replayed groups in a batch, if that many are kept."""
        return floor(groups * self.ratio + 1e-9)

    def fresh(self, groups: int) -> int:
        """Return the number of groups in a batch that are used for the first time."""
        return groups - self.groups(groups)


@dataclass(frozen=True, slots=True)
class Curation:
    """The settings by which a buffer admits samples."""

    run_id: str
    policy_id: str
    max_staleness: int = 2
    missing: str = "drop"
    """The treatment of a group with failed members: `drop`, or `train_partial` on the others."""
    continues: str = ""
    """The reason of cancelled drawn rollouts that are continued later; empty: none."""
    retention: int = 0
    """The most continuations of a rollout; 0: no bound."""
    redundancy: int = 0
    """The number of members that may be missing when a drawn group counts as complete."""
    order: str = "edf"
    """The order of groups: `edf` the one that is stale next, `fifo` the one that came first."""
    on_stale: str = "drop"
    """The treatment of stale groups: `drop`; or `wait` with a step that would make a running group
    stale; or `weight` their advantages down."""
    stale_wait_s: float = 60.0
    """The longest time that a step is held back, in seconds of the log."""
    stale_wait_steps: int = 0
    """The number of batches that may accumulate meanwhile; 0: any number."""
    filters: tuple[str | RuleChoice, ...] = ("none",)
    batch: str | RuleChoice = "groups"
    """The rule that decides when a batch is complete."""
    needs_group: bool = True
    """True if the advantage rule compares within a group, so that a group of one is useless."""
    temperature: float = 1.0
    """The trainer's temperature; samples of another temperature are refused."""
    capacity_groups: int = 64
    vocabulary: int = 0
    """The vocabulary size of the model; 0: not known, token ids are not checked."""
    context: int = 0
    """The number of positions of the model; 0: not known, lengths are not checked."""
    abandoned: tuple[tuple[int, int], ...] = ()
    """Ranges of abandoned versions, both ends included."""
    admits_limits: frozenset[str] = frozenset()
    """The limits at which a rollout may end and still be trained on, if a shaping rule values it;
    before shaping its reward is the score, or 0 without one."""

    teacher: str = ""
    """The prefix of the scorer that must have scored every token of our policy; "": none."""

    recorded: Recorded | None = None
    """The settings of recorded groups of an earlier run, if used."""
    share: Share | None = None
    """The settings of groups shared by other runs, if used."""
    joins: bool = False
    """True if another policy requests the rollouts: those without a token of ours still count as
    members of their groups."""

    def __post_init__(self) -> None:
        _one_of("missing", self.missing, ("drop", "train_partial"))
        _one_of("order", self.order, ("edf", "fifo"))
        _one_of("on_stale", self.on_stale, ON_STALE)
        _at_least("max_staleness", self.max_staleness, 0)
        _at_least("capacity_groups", self.capacity_groups, 1)


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        msg = f"{key} is {value!r}; use one of {', '.join(known)}"
        raise Refused(msg)


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        msg = f"{key} is {value}; it must be at least {least}"
        raise Refused(msg)
