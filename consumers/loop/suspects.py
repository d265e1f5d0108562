"""Which record kills its workers: deaths that no `except` sees, counted in the commits' metadata.

A record may kill whoever takes it: a segmentation fault, memory, the watchdog. The next worker only
finds the commit of the one before. Behind the role's own word that commit may carry a mark:
`!r<level>` while records are in hand, `!c<level>` where the partition was left alone or in peace,
then `,<offset>.<deaths>` for every suspect, `*` behind the one that is in hand alone.

1. A partition that is taken over is *noted* until its commit has moved. To die before that raises
   the suspicion: first *few* records are in hand at once, after the next death one *alone*.
2. Alone means that nothing else is in hand in the whole process, and that the commit says so before
   the record is handed over. Only such a death counts against a record; three condemn it.
3. What went well for a while lowers the suspicion again.

So a worker that is killed from outside, however often, condemns a record only if it dies three
times during the same one's moments alone. No mark is written in normal work, and whoever knows none
reads a word with one as a word that others wrote, at worst.
"""

import re
from dataclasses import dataclass, field

FREE, NOTED, FEW, ALONE = range(4)
FEW_RECORDS = 32
"""Records in hand at once under the first suspicion; a commit follows each so many."""
ALONE_RECORDS = 200
"""One by one; more than can lie between a commit and the record that killed under FEW."""
QUIET_S = 60.0
"""So long without a death lowers a suspicion."""
DEATHS = 3
MOST_SUSPECTS = 8
MARK = "!"
MARK_BYTES = 4 + MOST_SUSPECTS * 24
PATTERN = re.compile(r"([rc])([0-3])((?:,\d{1,19}\.\d\*?)*)")


@dataclass(slots=True)
class Suspicion:
    """What is thought of the records of one partition."""

    level: int = NOTED
    deaths: dict[int, int] = field(default_factory=dict)
    """By offset, how many workers died while they had only that in hand."""
    alone: int | None = None
    """The offset in hand alone."""
    began_at: int = 0
    """What was committed when the partition was taken over."""
    left: int = ALONE_RECORDS
    until: float = 0.0
    """On the loop's clock, when this level is over at the latest."""

    def condemned(self, offset: int) -> bool:
        """Whether a record has killed too many to be handed over as it is."""
        return self.deaths.get(offset, 0) >= DEATHS

    def began(self, start: int, next_offset: int) -> None:
        """Reading begins at `start`: nobody takes again what lies before."""
        self.began_at = next_offset
        self.deaths = {offset: n for offset, n in self.deaths.items() if offset >= start}

    def moved(self, next_offset: int) -> None:
        """Whoever comes so far was not stopped at the first step."""
        if self.level == NOTED and next_offset > self.began_at:
            self.level = FREE

    def went_well(self, now: float) -> None:
        """One more record was handed over and nobody died."""
        self.left -= 1
        if self.level == ALONE:
            self.lasts(now)
        elif self.level == FEW and now >= self.until:
            self.level = FREE

    def lasts(self, now: float) -> None:
        """One after another has taken its time: go on with a few, others wait."""
        if self.left <= 0 or now >= self.until:
            self.level, self.until = FEW, now + QUIET_S

    def mark(self, next_offset: int, *, busy: bool) -> str:
        """What goes behind the word of a commit of `next_offset`; nothing in normal work."""
        suspects = {o: n for o, n in self.deaths.items() if n >= DEATHS or o >= next_offset}
        if busy and self.alone is not None:
            suspects.setdefault(self.alone, 0)
        if not suspects and (self.level == FREE or (self.level == NOTED and not busy)):
            return ""
        worst_first = sorted(suspects.items(), key=lambda s: (s[0] != self.alone, -s[1]))
        listed = "".join(
            f",{offset}.{min(n, 9)}{'*' if busy and offset == self.alone else ''}"
            for offset, n in worst_first[:MOST_SUSPECTS]
        )
        return f"{MARK}{'r' if busy else 'c'}{self.level}{listed}"


def parted(metadata: str) -> tuple[str, str]:
    """The role's own word and the mark behind it, each perhaps empty."""
    word, mark, text = metadata.rpartition(MARK)
    return (word, text) if mark else (metadata, "")


def suspicion_of(mark: str, now: float) -> Suspicion:
    """What to think of a partition whose last commit said this: a running one was a death."""
    found = PATTERN.fullmatch(mark)
    if found is None:
        return Suspicion(until=now + QUIET_S)
    died = found[1] == "r"
    deaths = {}
    for suspect in found[3].split(",")[1:]:
        offset, _, count = suspect.partition(".")
        deaths[int(offset)] = int(count.rstrip("*")) + (died and suspect.endswith("*"))
    level = max(NOTED, min(int(found[2]) + died, ALONE))
    return Suspicion(level, deaths, until=now + QUIET_S)
