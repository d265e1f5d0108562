"""Finds records that kill their workers: deaths that no `except` sees, counted in commit metadata.

A record may kill its worker: by a segmentation fault, out of memory, or the watchdog. The next
worker only finds the last commit of the dead one. Behind the role's own metadata that commit may
carry a mark: `!r<level>` while records are in flight, `!q<level>` while none is and one is about to
be alone again, `!c<level>` where the partition was released or idle, `^<round>` where trials were
given up before, then `,<offset>.<deaths>` for every suspect, followed by `*` for the one that is
alone.

1. A partition that is taken over with records left is *noted* until its commit has moved. A death
   before that raises the suspicion: first *few* records are in flight at once, after the next death
   one *alone*. One that is taken over at its end is free: no death can be due to its records, and
   the first that comes waits for no commit. If that one kills, its next worker notes it.
2. Alone means that nothing else is in flight in the whole process, and that the commit states it
   before the record is handed over. Only such a death counts against a record; three condemn it.
3. Others wait for a record that is alone, so its time is limited. Work that takes longer continues
   beside others; a worker that dies then begins the next *round*, in which each has six times as
   long. So a verdict is reached after some deaths, however long the work around the record takes.
4. Before a record that was alone at a death is handed over again, its worker runs for a while with
   nothing in flight (a control). If it dies meanwhile the cause was another: deaths are reset.
5. A suspicion ends when the commit has passed all that was in flight under it without a death.

So a worker that is killed from outside condemns a record only if it dies three times in a row while
that record is alone, and never in the longer controls between. No mark is written in normal work,
and a reader that does not know marks takes metadata with one as invalid, at worst. Behind the mark,
or in its place, follows `@` and the id of the topic, since an offset is valid for one incarnation
of a topic.
"""

import re
from dataclasses import dataclass, field

FREE, NOTED, FEW, ALONE = range(4)
FEW_RECORDS = 32
"""Records in flight at once under the first suspicion; a commit follows each batch."""
ALONE_RECORDS = 200
"""Records to hand over one by one; more than can lie between a commit and the
record that killed under FEW."""
QUIET_S = 60.0
"""The time without a death that lowers a suspicion."""
ALONE_S = 10.0
"""The time that a record may be alone in the first round."""
LONGER = 6
"""The factor by which each round is longer than the one before."""
MOST_ROUNDS = 7
CONTROL = 2
"""The length of a control, in times of a trial: the worker runs with nothing in flight."""
LONGEST_CONTROL_S = 3600.0
DEATHS = 3
MOST_SUSPECTS = 8
MARK = "!"
OF_TOPIC = "@"
MARK_BYTES = 6 + MOST_SUSPECTS * 24 + 32
PATTERN = re.compile(r"([rcq])([0-3])(?:\^([0-7]))?((?:,\d{1,19}\.\d\*?)*)", re.ASCII)


@dataclass(slots=True)
class Suspicion:
    """The suspicion against the records of one partition."""

    level: int = NOTED
    deaths: dict[int, int] = field(default_factory=dict)
    """By offset, the number of workers that died with only that record in flight."""
    alone: int | None = None
    """The offset in flight alone."""
    began_at: int = 0
    """The committed offset when the partition was taken over."""
    left: int = ALONE_RECORDS
    until: float = 0.0
    """The latest end of this level, or of the trial of a record, on the loop's clock."""
    round: int = 0
    """The number of times that trials were given up because they took too long."""
    passed_at: int | None = None
    """The commit that ends the level, when its time is over."""
    controls: bool = False
    """True while the worker runs with nothing in flight, as a control."""
    quiet_until: float = 0.0
    """The end of the control, on the loop's clock; then the record may be alone again."""

    @property
    def alone_s(self) -> float:
        """The time that a record may be alone."""
        return float(ALONE_S * LONGER**self.round)

    def is_poison(self, offset: int) -> bool:
        """Return True if a record has killed too many workers to be handed over unchanged."""
        return self.deaths.get(offset, 0) >= DEATHS

    def begin_at(self, start: int, next_offset: int) -> None:
        """Begin to read at `start`: records before it are not taken again."""
        self.began_at = next_offset
        self.deaths = {offset: n for offset, n in self.deaths.items() if offset >= start}

    def note_commit(self, next_offset: int, known_end: int) -> None:
        """Lower the suspicion as the commit moves.

        Records in flight at a death lay below the end that the next worker found.
        """
        passed = next_offset >= (known_end if self.passed_at is None else self.passed_at)
        if self.level == NOTED and (passed or next_offset > self.began_at):
            self.level = FREE
        if self.level >= FEW and passed:
            self.level, self.round, self.passed_at = FREE, 0, None

    def note_dispatched(self, offset: int, now: float) -> None:
        """Note one more record that was handed over without a death."""
        self.left -= 1
        if self.level == ALONE and self.left <= 0:
            self._go_on(now)
        elif self.level == FEW and self.passed_at is None and now >= self.until:
            self.passed_at = offset + 1

    def end_if_overdue(self, now: float) -> None:
        """End a trial whose time is over, as others wait: continue with few
        records, one round further."""
        if now >= self.until:
            self.round = min(self.round + 1, MOST_ROUNDS)
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        self.level, self.until, self.left = FEW, now + QUIET_S, ALONE_RECORDS
        self.passed_at = None

    def note_other_cause(self, now: float) -> None:
        """Lower the suspicion, as another record was found to cause the deaths."""
        if self.level == ALONE:
            self.round = 0
            self._go_on(now)

    def is_in_control(self, offset: int, now: float) -> bool:
        """Return True if a record that was alone at a death has to wait
        for the end of the control."""
        if not 0 < self.deaths.get(offset, 0) < DEATHS:
            return False
        if not self.quiet_until:
            self.quiet_until = now + min(CONTROL * self.alone_s, LONGEST_CONTROL_S)
        return now < self.quiet_until

    def release(self) -> None:
        """Clear the record that was alone: it has survived its time, so
        earlier deaths do not count."""
        if self.alone is not None and not self.is_poison(self.alone):
            self.deaths.pop(self.alone, None)
        self.alone = None

    def isolate(self, offset: int, now: float) -> None:
        """Begin the trial of a record, alone in flight."""
        self.alone, self.until, self.quiet_until = offset, now + self.alone_s, 0.0
        self.controls = False

    def mark(self, next_offset: int, *, busy: bool) -> str:
        """Return the mark for a commit of `next_offset`; empty in normal work."""
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


def metadata_suffix(deaths: str, topic_id: str) -> str:
    """Return the suffix of a role's metadata: the mark of deaths, and the id of the topic.

    A reader that does not know ids finds an unreadable mark, and the metadata unchanged.
    """
    return f"{deaths or MARK}{OF_TOPIC}{topic_id}" if topic_id else deaths


def split_metadata(metadata: str) -> tuple[str, str]:
    """Split metadata into the role's own part and the mark of deaths, each possibly empty."""
    word, mark, text = metadata.rpartition(MARK)
    return (word, text.partition(OF_TOPIC)[0]) if mark else (metadata, "")


def topic_of(metadata: str) -> str:
    """Return the id of the topic that a commit was made for; empty if it is not stated."""
    _, mark, text = metadata.rpartition(MARK)
    return text.partition(OF_TOPIC)[2] if mark else ""


def read_suspicion(mark: str, now: float) -> Suspicion:
    """Return the suspicion that follows from the last commit's mark: a
    running one means a death."""
    found = PATTERN.fullmatch(mark)
    if found is None:
        return Suspicion(until=now + QUIET_S)
    died, level, deaths = found[1] == "r", int(found[2]), {}
    for suspect in found[4].split(",")[1:]:
        offset, _, count = suspect.partition(".")
        before = int(count.rstrip("*"))
        if found[1] == "q" and before < DEATHS:
            continue  # the worker died without it in flight
        deaths[int(offset)] = before + (died and suspect.endswith("*"))
    made = Suspicion(max(NOTED, min(level + died, ALONE)), deaths, round=int(found[3] or 0))
    made.until = now + (made.alone_s if made.level == ALONE else QUIET_S)
    return made
