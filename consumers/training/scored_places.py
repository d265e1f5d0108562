"""Scored trajectories that are read again by their offsets."""

from collections.abc import Collection, Iterator
from itertools import chain

from rollcall.consumers.log.protocols import Log
from rollcall.consumers.log.reading import read_between, spans
from rollcall.consumers.loop.decode_in_order import decoded
from rollcall.schemas.codec import Codec
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.trainer.rules.samples import ScoredPlace


def scored_at(
    log: Log, codec: Codec, topic: str, places: Collection[ScoredPlace]
) -> Iterator[tuple[ScoredPlace, ScoredTrajectory]]:
    """Yield those that retention has left and that are readable. Raises Unavailable."""
    if not places:
        return
    stretches = (((topic, number), at, at) for number, at in places)
    for record in chain.from_iterable(read_between(log, *spans(log, stretches))):
        place = record.partition, record.offset
        if place in places:
            scored = decoded(codec, record, ScoredTrajectory)
            if scored is not None:
                yield place, scored
