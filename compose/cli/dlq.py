"""`rollcall dlq`: list, show, replay, drop and skip dead letters."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from rollcall.compose.cli.connection import cluster, signature
from rollcall.compose.cli.option_sets import takes
from rollcall.compose.console import safe
from rollcall.compose.terminal import one_line, say

if TYPE_CHECKING:
    from rollcall.consumers.history.replay.dead_letter_index import (
        DeadLetter,
        DeadLetterIndex,
        DeadLetterSelection,
    )
    from rollcall.consumers.loop.dead_letter_records import SkipOrder

RECORDS_NAMED = 5
"""The most records that a dry run names one by one."""

Reason = Annotated[str, typer.Option(help="Why; it is kept in the log.")]
Places = Annotated[
    list[str] | None,
    typer.Argument(help="PARTITION@OFFSET or PARTITION@FIRST-LAST of the dead letters."),
]
Source = Annotated[str, typer.Option(help="Only dead letters of this topic.")]
Error = Annotated[str, typer.Option(help="Only those with this error, such as BadMagic.")]
Since = Annotated[str, typer.Option(help="Only newer ones: 2h, 3d, or ISO 8601.")]
Every = Annotated[bool, typer.Option("--all", help="All dead letters.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without it nothing changes.")]


def _choice(
    places: list[str] | None = None,
    source: str = "",
    error: str = "",
    since: str = "",
    *,
    every: bool = False,
) -> "DeadLetterSelection":
    from rollcall.consumers.history.replay.dead_letter_index import select_dead_letters

    return select_dead_letters(places or [], source=source, error=error, since=since, every=every)


takes_letters = takes(
    "choice",
    {
        "places": (Places, None),
        "source": (Source, ""),
        "error": (Error, ""),
        "since": (Since, ""),
        "every": (Every, False),
    },
    _choice,
    first=True,
)
"""A decorator that adds the options that name dead letters, passed as parameter `choice`."""


def list_letters(
    source: Source = "",
    error: Error = "",
    since: Since = "",
    every: Annotated[bool, typer.Option("--all", help="Also replayed and dropped ones.")] = False,
) -> None:
    """List dead letters with time, place, reader and error.

    Example: rollcall dlq list --source rollout.requests --since 2h
    """
    from rollcall.compose.terminal import page
    from rollcall.consumers.history.replay.dead_letter_index import DeadLetterIndex

    index = DeadLetterIndex(cluster())
    chosen = index.chosen(_choice(None, source, error, since, every=True))
    letters = [letter for letter in chosen if every or not letter.state]
    with page() as terminal:
        if letters:
            terminal.print(letters_table(letters, handled=every))
        terminal.print(letters_line(chosen, index), soft_wrap=True)


def show(place: Annotated[str, typer.Argument(help="PARTITION@OFFSET, as listed.")]) -> None:
    """Show one dead letter: all headers, and its value, decoded if possible.

    Example: rollcall dlq show 0@12
    """
    from rollcall.compose.terminal import emit_json
    from rollcall.consumers.history.reading.record_lines import decoder, envelope
    from rollcall.consumers.history.replay.dead_letter_index import DeadLetterIndex

    history = cluster()
    index = DeadLetterIndex(history)
    letter, record = index.letter_at(place)
    plain = envelope(record) | {"state": letter.state or "waits"}
    plain |= decoder(history, index.topic)(record)
    emit_json(plain)


@takes_letters
def replay(
    choice: "DeadLetterSelection",
    yes: Yes = False,
    again: Annotated[bool, typer.Option("--again", help="Also those replayed before.")] = False,
    rate: Annotated[float, typer.Option(min=0, help="The most per second; 0: no limit.")] = 0,
) -> None:
    """Publish dead letters again, unchanged, to the topic and partition that they came from.

    This is a dry run without --yes. Replayed letters are marked, and not replayed a second time.

    Example: rollcall dlq replay 0@12-20 --yes --rate 10
    """
    from rollcall.consumers.history.replay.dead_letter_actions import (
        NotReplayed,
        plan_replay,
        replay_letters,
    )
    from rollcall.consumers.history.replay.dead_letter_index import DeadLetterIndex

    index = DeadLetterIndex(cluster())
    plan = plan_replay(index, index.chosen(choice), again=again)
    if plan.passed:
        say(f"{_counted(plan.passed)} passed over: replayed or dropped before")
    _echo_refused(plan.refused)
    refused = len(plan.refused)
    if not yes:
        _rehearse("send", plan.letters)
    else:
        too_large = replay_letters(index, plan.letters, rate, by=signature())
        _echo_refused(too_large)
        refused += len(too_large)
        say(f"{_counted(len(plan.letters) - len(too_large))} replayed")
    if refused:
        msg = f"{refused:,} letters cannot be replayed; `rollcall dlq drop` takes them off the list"
        raise NotReplayed(msg)


@takes_letters
def drop(choice: "DeadLetterSelection", yes: Yes = False) -> None:
    """Mark dead letters as dropped, so that they are no longer listed or replayed.

    This is a dry run without --yes. Kafka cannot remove single records, so the bytes stay until
    the topic's retention ends.

    Example: rollcall dlq drop --error BadMagic --yes
    """
    from rollcall.consumers.history.replay.dead_letter_actions import drop_letters
    from rollcall.consumers.history.replay.dead_letter_index import DeadLetterIndex

    index = DeadLetterIndex(cluster())
    letters = [letter for letter in index.chosen(choice) if letter.state != "dropped"]
    if not yes:
        _rehearse("drop", letters)
        return
    drop_letters(index, letters, by=signature())
    say(f"{_counted(len(letters))} dropped; their bytes stay until retention takes them")


def skip(
    group: Annotated[str, typer.Argument(help="The consumer group, such as agents.")],
    topic: Annotated[str, typer.Argument(help="The topic, such as rollout.requests.")],
    place: Annotated[str, typer.Argument(help="PARTITION@FIRST-LAST: offsets of the topic.")],
    reason: Reason = "",
    by: Annotated[str, typer.Option(help="The name to record; default: you.")] = "",
    yes: Yes = False,
) -> None:
    """Let a group skip records that stop it, readable or not.

    This is a dry run without --yes. The decision and its reason are recorded on dead.letters. The
    group also sends each skipped record there, so that it can be replayed. A skipped request ends
    as refused. To skip an entry of the journal, stop all agents workers first.

    Example: rollcall dlq skip agents rollout.requests 0@17-67 --reason "JSON by mistake"
    """
    from rollcall.consumers.history.replay.dead_letter_actions import decide_skip, write_skip

    here = cluster()
    by = by or signature()
    decided = decide_skip(here, group, topic, place, reason=reason, by=by)
    where = f"{decided.topic} {decided.partition}@{decided.first}-{decided.last}"
    if not yes:
        _echo_records(decided)
        say(f"{decided.group} would pass over {where}; nothing was done, --yes does it")
        return
    write_skip(here, decided)
    say(
        f"{decided.group} passes over {where}; its workers learn of it when they start or are "
        "given the partition"
    )


def _counted(count: int) -> str:
    return f"{count:,} letter{'' if count == 1 else 's'}"


def _rehearse(verb: str, letters: "Sequence[DeadLetter]") -> None:
    for letter in letters:
        say(f"would {verb} {letter.place()}, from {letter.came_from()}")
    say(f"{_counted(len(letters))}; nothing was done, --yes does it")


def _echo_refused(refused: "Sequence[tuple[DeadLetter, str]]") -> None:
    for letter, why in refused:
        say(f"{letter.place()} cannot {why}")


def _echo_records(decided: "SkipOrder") -> None:
    """Print the records in a range."""
    from collections import Counter

    from rollcall.consumers.history.replay.dead_letter_actions import records_in, unreadable_because

    history = cluster()
    counts: Counter[str] = Counter()
    for record in records_in(history, decided):
        why = unreadable_because(history, record)
        counts[why.partition(":")[0] or "readable"] += 1
        if counts.total() <= RECORDS_NAMED:
            say(f"{record.partition}@{record.offset}  {why or 'can be read'}")
    say(", ".join(f"{count:,} {what}" for what, count in counts.items()) or "no records")


WHY_CHARS = 160


def letters_table(letters: "Sequence[DeadLetter]", *, handled: bool) -> Table:
    """Return a row per letter; with `handled`, also what was done with it."""
    from rollcall.consumers.history.reading.times import iso

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


def letters_line(chosen: "Sequence[DeadLetter]", index: "DeadLetterIndex") -> str:
    """Return the counts of letters as a sentence."""
    from rollcall.consumers.loop.dead_letter_records import MARKS

    states = Counter(letter.state for letter in chosen)
    words = [f"{states['']:,} dead letters waiting"]
    words += [f"{states[s]:,} {s}" for s in MARKS.values() if states[s]]
    words += [f"{index.foreign:,} there that we did not write"] if index.foreign else []
    words += [f"{len(index.skips):,} ranges skipped"] if index.skips else []
    hint = "; look at one with `rollcall dlq show PARTITION@OFFSET`" if states[""] else ""
    return ", ".join(words) + hint
