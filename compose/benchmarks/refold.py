"""The speed at which a worker that takes over a partition restores its open rollouts.

Recorded journal entries of interleaved rollouts are decoded and folded, with their programs run
against them, in one process and without a broker. The ceiling is the decoding alone. Both are
measured several times, alternately, and the quickest of each counts, to exclude other load.
"""

import gc
from collections.abc import Iterator
from itertools import islice
from random import Random

from rollcall.compose.benchmarks import load
from rollcall.compose.benchmarks.figure import Figure, timed
from rollcall.compose.settings import Settings
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.journal import Journal
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.loop.loop import GC_THRESHOLDS
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.messages import Event
from rollcall.schemas.topics import Topics

TOKENS = 64
ROLLOUTS = 2000
LIVE = 500
ROUNDS = 5


def refold(settings: Settings, *, rollouts: int = ROLLOUTS, rounds: int = ROUNDS) -> Figure:
    """Measure journal entries folded per second."""
    del settings
    codec = Codec(LocalRegistry())
    values = list(record(codec, rollouts))
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)  # as in a worker
    try:
        folding, decoding = [], []
        for _ in range(rounds):
            gc.collect()
            folding.append(timed(lambda: fold(codec, values))[0])
            gc.collect()
            decoding.append(timed(lambda: decode(codec, values))[0])
    finally:
        gc.set_threshold(*before)
    per_event = 1e6 * min(folding) / len(values)
    note = (
        f"{len(values):,} entries of {rollouts:,} rollouts, {TOKENS} tokens a turn, "
        f"{LIVE} rollouts side by side; {per_event:.1f} us an entry"
    )
    return Figure(
        len(values) / min(folding), "events/s", len(values) / min(decoding), notes=(note,)
    )


def record(codec: Codec, rollouts: int) -> Iterator[bytes]:
    """Yield the journal of `rollouts` whole rollouts, `LIVE` of them open at a time."""
    player = load.Player(codec, TOKENS, Topics())
    names = (f"{number:032x}" for number in range(rollouts))
    live = [player.journal(load.request(name)) for name in islice(names, LIVE)]
    while live:
        going = []
        for journal in live:
            written = next(journal, None)
            if written is None and (name := next(names, None)) is not None:
                journal = player.journal(load.request(name))
                written = next(journal)
            if written is not None:
                yield written
                going.append(journal)
        live = going


def fold(codec: Codec, values: list[bytes]) -> Journal:
    """Fold a journal as a new owner of its partition does; return it."""
    journal = Journal(0, FoldContext(program_of, Random), "bench")
    for offset, value in enumerate(values):
        journal.apply_event(codec.decode(value, Event), offset, load.NOW_MS, silent=True)
    return journal


def decode(codec: Codec, values: list[bytes]) -> None:
    for value in values:
        codec.decode(value, Event)
