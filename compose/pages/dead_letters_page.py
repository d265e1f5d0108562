"""The text output of dead letters."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from rollcall.compose.console import safe
from rollcall.compose.terminal import one_line
from rollcall.consumers.history.reading.times import iso
from rollcall.consumers.history.replay.dead_letter_index import DeadLetter, DeadLetterIndex
from rollcall.consumers.loop.dead_letter_records import MARKS

WHY_CHARS = 160


def letters_table(letters: Sequence[DeadLetter], *, handled: bool) -> Table:
    """Return a row per letter; with `handled`, also what was done with it."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("letter", *(["state"] if handled else []), "when", "from", "who"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", overflow="fold")
    for letter in letters:
        why = f"{letter.error}: {letter.message:.{WHY_CHARS}}"
        state = [letter.state or "waits"] if handled else []
        who = ", ".join(letter.groups)
        when = iso(letter.buried_ms) or ""
        table.add_row(letter.place(), *state, when, letter.came_from(), who, safe(one_line(why)))
    return table


def letters_line(chosen: Sequence[DeadLetter], index: DeadLetterIndex) -> str:
    """Return the counts of letters as a sentence."""
    states = Counter(letter.state for letter in chosen)
    words = [f"{states['']:,} dead letters waiting"]
    words += [f"{states[s]:,} {s}" for s in MARKS.values() if states[s]]
    words += [f"{index.foreign:,} there that we did not write"] if index.foreign else []
    words += [f"{len(index.skips):,} ranges skipped"] if index.skips else []
    hint = "; look at one with `rollcall dlq show PARTITION@OFFSET`" if states[""] else ""
    return ", ".join(words) + hint
