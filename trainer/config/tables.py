"""The tables of a recipe with keys of their own: `[policy.lora]`, and groups of other runs.

Recorded groups are tokens of the same tokenizer, with the log-probabilities of their sampling.
Shared groups are text: the trainer tokenises it for its own policy, and has only its own
log-probabilities for it. The versions of both belong to other runs, so they are dropped here.
Sources: UI-S1 (semi-online replay); SAPO, arXiv 2509.08721 (swarm sharing).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import floor
from typing import Any, Self

from rollcall.schemas import names
from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import require


class Table:
    """A base of dataclasses that are made from a table with their fields as keys."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build it from a recipe's table, lists as tuples. Raises Refused for an unknown key."""
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for key in values:
            if key not in known:
                where = f"key of {cls.__name__.lower()}"
                raise names.unknown_name(where, key, known)
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


@dataclass(frozen=True, slots=True)
class Lora(Table):
    """`[policy.lora]` of a recipe."""

    rank: int = 16
    alpha: float = 32.0
    """The factor of the product of the two matrices, times rank."""
    targets: tuple[str, ...] = ()
    """Suffixes of module names, such as q_proj; none: every linear layer but the head."""

    def __post_init__(self) -> None:
        whole = isinstance(self.rank, int) and self.rank >= 1
        require("rank", self.rank, whole, "give a number of at least 1, such as 16")
        require("alpha", self.alpha, self.alpha > 0, "give a number above 0, such as 32")


STRETCH = re.compile(r"(\d{1,9}):(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True)
class Recorded(Table):
    """`[learner.recorded]`: groups of an earlier run, in log order, read from the log."""

    run: str = ""
    policy: str = ""
    """The policy whose tokens are trained on; empty: the run's first, which has the run's name."""
    ratio: float = 0.25
    """The share of a batch's groups, as long as recorded groups are left."""
    offsets: tuple[str, ...] = ()
    """Ranges `PARTITION:FIRST-END` of `trajectories.scored`; none: all from before this run."""
    passes: int = 1
    """The number of passes over all of them; 0: unlimited."""

    def __post_init__(self) -> None:
        text = isinstance(self.run, str) and isinstance(self.policy, str)
        require("run", self.run, text and self.run != "", "name the run that was recorded")
        _require_share(self.ratio)
        whole = isinstance(self.passes, int) and self.passes >= 0
        require("passes", self.passes, whole, "give 0 (without end) or a number of times")
        self.stretches()

    @property
    def policy_id(self) -> str:
        """The policy whose tokens are trained on."""
        return self.policy or self.run

    def stretches(self) -> dict[int, tuple[int, int]]:
        """Return by partition the first offset and the end, exclusive. Raises Refused."""
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
    """`[learner.share]`: groups of other runs that train at the same time, as text."""

    ratio: float = 0.25
    """The share of a batch's groups, if there are that many: a batch does not wait for them."""
    runs: tuple[str, ...] = ()
    """The ids of these runs; none: all runs with the same scoring."""
    max_age_s: float = 300.0
    """The largest age since a rollout ended, in seconds of the log; older groups are dropped."""
    capacity: int = 64
    """The number of complete groups that are kept, the newest."""

    def __post_init__(self) -> None:
        _require_share(self.ratio)
        texts = isinstance(self.runs, tuple) and all(isinstance(run, str) for run in self.runs)
        require("runs", self.runs, texts, "give a list of run ids")
        require("max_age_s", self.max_age_s, self.max_age_s > 0, "give a number of seconds")
        whole = isinstance(self.capacity, int) and self.capacity >= 1
        require("capacity", self.capacity, whole, "give a number of groups, such as 64")

    def wants(self, run_id: str) -> bool:
        """Return True if groups of that other run are used."""
        return run_id in self.runs if self.runs else run_id != ""


def groups_of(ratio: float, groups: int) -> int:
    """Return the number of groups of a batch that the share amounts to, rounded down."""
    return floor(groups * ratio + 1e-9)


def _require_share(ratio: float) -> None:
    number = isinstance(ratio, (int, float)) and 0 < ratio < 1
    require("ratio", ratio, number, "give a share between 0 and 1, such as 0.25")
