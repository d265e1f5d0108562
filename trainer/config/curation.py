"""The settings by which a buffer admits samples."""

from dataclasses import dataclass, field

from rollcall.schemas.rules import RuleChoice
from rollcall.trainer.config.tables import Groups, Recorded, Share, Staleness


@dataclass(frozen=True, slots=True)
class Curation:
    """The settings by which a buffer admits samples."""

    run_id: str
    policy_id: str
    groups: Groups = field(default_factory=Groups)
    staleness: Staleness = field(default_factory=Staleness)
    continues: str = ""
    """The reason of cancelled drawn rollouts that are continued later; empty: none."""
    filters: tuple[str | RuleChoice, ...] = ("none",)
    batch: str | RuleChoice = "groups"
    """The rule that decides when a batch is complete."""
    needs_group: bool = True
    """True if the advantage rule compares within a group, so that a group of one is useless."""
    temperature: float = 1.0
    """The trainer's temperature; samples of another temperature are refused."""
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
