"""What a batch may hold beside a run's own rollouts: recorded by an earlier run, or shared.

Recorded groups are tokens of the same tokenizer, with log-probabilities as they were noted when
they were sampled. Shared groups are text: whoever trains on them reads it as tokens of its own, and
has no log-probabilities for them but its own. Neither's versions are numbers of ours, so both have
none here. Sources: UI-S1 (semi-online replay); SAPO, arXiv 2509.08721 (swarm sharing).
"""

import re
from dataclasses import dataclass
from math import floor

from schemas.errors import Refused
from schemas.rules import require
from trainer.tables import Table

RECORDED, SHARED = "recorded", "shared"
STRETCH = re.compile(r"(\d{1,9}):(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True)
class Recorded(Table):
    """`[learner.recorded]`: groups of an earlier run, in log order, from where they lie."""

    run: str = ""
    policy: str = ""
    """Whose tokens are trained on; empty: those of the run's first policy, which is named as it."""
    ratio: float = 0.25
    """The share of a batch's groups, as long as there are some."""
    offsets: tuple[str, ...] = ()
    """Stretches `PARTITION:FIRST-END` of `trajectories.scored`; none: all from before this run."""
    passes: int = 1
    """How often all of them are gone through; 0: without end."""

    def __post_init__(self) -> None:
        text = isinstance(self.run, str) and isinstance(self.policy, str)
        require("run", self.run, text and self.run != "", "name the run that was recorded")
        _require_share(self.ratio)
        whole = isinstance(self.passes, int) and self.passes >= 0
        require("passes", self.passes, whole, "give 0 (without end) or a number of times")
        self.stretches()

    @property
    def policy_id(self) -> str:
        """Whose tokens are trained on."""
        return self.policy or self.run

    def stretches(self) -> dict[int, tuple[int, int]]:
        """By partition its first offset and the one to end before. Raises Refused."""
        found = {}
        for text in self.offsets:
            match = STRETCH.fullmatch(text) if isinstance(text, str) else None
            if match is None or int(match[2]) >= int(match[3]) or int(match[1]) in found:
                msg = f"offsets has {text!r}; write PARTITION:FIRST-END, each partition once"
                raise Refused(msg)
            found[int(match[1])] = int(match[2]), int(match[3])
        return found


@dataclass(frozen=True)
class Share(Table):
    """`[learner.share]`: groups that other runs are trained on at the same time, as text."""

    ratio: float = 0.25
    """The share of a batch's groups, as far as there are some: the batch waits for none."""
    runs: tuple[str, ...] = ()
    """Whose; none named: those of all runs with the same scoring."""
    max_age_s: float = 300.0
    """In seconds of the log since a rollout ended: what is older is dropped."""
    capacity: int = 64
    """So many whole groups are kept, the newest."""

    def __post_init__(self) -> None:
        _require_share(self.ratio)
        texts = isinstance(self.runs, tuple) and all(isinstance(run, str) for run in self.runs)
        require("runs", self.runs, texts, "give a list of run ids")
        require("max_age_s", self.max_age_s, self.max_age_s > 0, "give a number of seconds")
        whole = isinstance(self.capacity, int) and self.capacity >= 1
        require("capacity", self.capacity, whole, "give a number of groups, such as 64")

    def wants(self, run_id: str) -> bool:
        """Whether groups of another run are taken."""
        return run_id in self.runs if self.runs else run_id != ""


def groups_of(ratio: float, groups: int) -> int:
    """How many groups of a batch that share is."""
    return floor(groups * ratio + 1e-9)


def _require_share(ratio: float) -> None:
    number = isinstance(ratio, (int, float)) and 0 < ratio < 1
    require("ratio", ratio, number, "give a share between 0 and 1, such as 0.25")
