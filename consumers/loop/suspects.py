"""Which record kills its workers: deaths that no `except` sees, counted in the commits' metadata.

A record may kill whoever takes it: a segmentation fault, memory, the watchdog. The next worker only
finds the commit of the one before. Behind the role's own word that commit may carry a mark:
`!r<level>` while records are in hand, `!q<level>` while none is and one is about to be alone
again, `!c<level>` where the partition was left alone or in peace, `^<round>` where trials were
given up before, then `,<offset>.<deaths>` for every suspect, `*` behind the one that is alone.

1. A partition that is taken over with records left is *noted* until its commit has moved. To die
   before that raises the suspicion: first *few* records are in hand at once, after the next death
   one *alone*. One that is taken over at its end is free: no death can have been of its records,
   and the first that comes waits for no commit. If that one kills, its next worker notes it.
2. Alone means that nothing else is in hand in the whole process, and that the commit says so before
   the record is handed over. Only such a death counts against a record; three condemn it.
3. Others wait for a record that is alone, so it has a time for that. Work that takes longer goes on
   beside others; a worker that dies then begins the next *round*, in which each has six times as
   long. So a verdict comes after some deaths, however long the work is that lies around the record.
4. Before a record that was alone at a death is handed over again, its worker lives for a while with
   nothing in hand. One that dies meanwhile was killed by something else: no death counts any more.
5. A suspicion ends where the commit has passed all that was in hand under it, and nobody died.

So a worker that is killed from outside condemns a record only if it dies three times in a row
during that one's moments alone, and never in the longer moments without it. No mark is written in
normal work, and whoever knows none reads a word with one as a word that others wrote, at worst.
Behind the mark, or where it would be, `@` and the id of the topic follow, since an offset holds for
one incarnation of a topic.
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
ALONE_S = 10.0
"""How long a record may be alone in the first round."""
LONGER = 6
"""In each round so many times as long as in the one before."""
MOST_ROUNDS = 7
CONTROL = 2
"""So many times as long a worker lives with nothing in hand before one is alone again."""
LONGEST_CONTROL_S = 3600.0
DEATHS = 3
MOST_SUSPECTS = 8
MARK = "!"
OF_TOPIC = "@"
MARK_BYTES = 6 + MOST_SUSPECTS * 24 + 32
PATTERN = re.compile(r"([rcq])([0-3])(?:\^([0-7]))?((?:,\d{1,19}\.\d\*?)*)", re.ASCII)


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
    """On the loop's clock, when this level, or the trial of a record, is over at the latest."""
    round: int = 0
    """How often trials were given up for the time that they took."""
    passed_at: int | None = None
    """The commit that ends the level, where its time is over."""
    controls: bool = False
    """Whether its worker lives with nothing in hand just now."""
    quiet_until: float = 0.0
    """On the loop's clock, when a record may be alone that was so at a death."""

    @property
    def alone_s(self) -> float:
        """How long a record may be alone."""
        return float(ALONE_S * LONGER**self.round)

    def condemned(self, offset: int) -> bool:
        """Whether a record has killed too many to be handed over as it is."""
        return self.deaths.get(offset, 0) >= DEATHS

    def began(self, start: int, next_offset: int) -> None:
        """Reading begins at `start`: nobody takes again what lies before."""
        self.began_at = next_offset
        self.deaths = {offset: n for offset, n in self.deaths.items() if offset >= start}

    def moved(self, next_offset: int, known_end: int) -> None:
        """Whoever comes so far was not stopped at the first step.

        What was in hand at a death lay below the end that its successor found.
        """
        passed = next_offset >= (known_end if self.passed_at is None else self.passed_at)
        if self.level == NOTED and (passed or next_offset > self.began_at):
            self.level = FREE
        if self.level >= FEW and passed:
            self.level, self.round, self.passed_at = FREE, 0, None

    def handed(self, offset: int, now: float) -> None:
        """One more record was handed over and nobody died."""
        self.left -= 1
        if self.level == ALONE and self.left <= 0:
            self._go_on(now)
        elif self.level == FEW and self.passed_at is None and now >= self.until:
            self.passed_at = offset + 1

    def lasts(self, now: float) -> None:
        """Others wait for a trial: where its time is over, go on with a few, one round further."""
        if now >= self.until:
            self.round = min(self.round + 1, MOST_ROUNDS)
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        self.level, self.until, self.left = FEW, now + QUIET_S, ALONE_RECORDS
        self.passed_at = None

    def is_explained(self, now: float) -> None:
        """The deaths so far have found their record: the others go on with a few."""
        if self.level == ALONE:
            self.round = 0
            self._go_on(now)

    def is_in_control(self, offset: int, now: float) -> bool:
        """Whether a record that was alone at a death has to wait: its worker may die without it."""
        if not 0 < self.deaths.get(offset, 0) < DEATHS:
            return False
        if not self.quiet_until:
            self.quiet_until = now + min(CONTROL * self.alone_s, LONGEST_CONTROL_S)
        return now < self.quiet_until

    def acquit(self) -> None:
        """The record that was alone has lived through its time: what died before was not its."""
        if self.alone is not None and not self.condemned(self.alone):
            self.deaths.pop(self.alone, None)
        self.alone = None

    def accuse(self, offset: int, now: float) -> None:
        """From here on a record is alone in hand."""
        self.alone, self.until, self.quiet_until = offset, now + self.alone_s, 0.0
        self.controls = False

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
        rounds = f"^{self.round}" if self.round else ""
        kind = "c" if not busy else "q" if self.controls else "r"
        return f"{MARK}{kind}{self.level}{rounds}{listed}"


def marked(deaths: str, topic_id: str) -> str:
    """What goes behind a role's word: the mark of deaths, and the id of the topic.

    Whoever knows of no ids finds a mark that it cannot read, and the word as it is.
    """
    return f"{deaths or MARK}{OF_TOPIC}{topic_id}" if topic_id else deaths


def parted(metadata: str) -> tuple[str, str]:
    """The role's own word and the mark of deaths behind it, each perhaps empty."""
    word, mark, text = metadata.rpartition(MARK)
    return (word, text.partition(OF_TOPIC)[0]) if mark else (metadata, "")


def topic_of(metadata: str) -> str:
    """The id of the topic that a commit was made for; empty where it does not say."""
    _, mark, text = metadata.rpartition(MARK)
    return text.partition(OF_TOPIC)[2] if mark else ""


def suspicion_of(mark: str, now: float) -> Suspicion:
    """What to think of a partition whose last commit said this: a running one was a death."""
    found = PATTERN.fullmatch(mark)
    if found is None:
        return Suspicion(until=now + QUIET_S)
    died, level, deaths = found[1] == "r", int(found[2]), {}
    for suspect in found[4].split(",")[1:]:
        offset, _, count = suspect.partition(".")
        before = int(count.rstrip("*"))
        if found[1] == "q" and before < DEATHS:
            continue  # its worker died while it was not in hand
        deaths[int(offset)] = before + (died and suspect.endswith("*"))
    made = Suspicion(max(NOTED, min(level + died, ALONE)), deaths, round=int(found[3] or 0))
    made.until = now + (made.alone_s if made.level == ALONE else QUIET_S)
    return made
