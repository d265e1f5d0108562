"""References to the trajectories of a step: plain if they fit the record, otherwise packed."""

import re
from collections.abc import Sequence

import numpy as np

from rollcall.schemas.messages import TrainStep, TrajectoryRef, TrajectoryRefs
from rollcall.schemas.packed import IDS

PLAIN = 8192
"""The most plain references: one takes some 65 bytes, and a record may have a million."""
OFFSETS = np.dtype("<i8")
DIGEST = re.compile(r"[0-9a-f]{32}")


def fitted(
    refs: Sequence[TrajectoryRef],
) -> tuple[tuple[TrajectoryRef, ...], TrajectoryRefs | None]:
    """Return a step's `trajectories` and `packed`; one of them holds all references."""
    if len(refs) <= PLAIN or len({ref.topic for ref in refs}) > 1:
        return tuple(refs), None
    return (), pack_refs(refs)


def pack_refs(refs: Sequence[TrajectoryRef]) -> TrajectoryRefs:
    """Pack references to records of one topic; at least one is required."""
    ids = [ref.rollout_id for ref in refs]
    digests = all(map(DIGEST.fullmatch, ids))
    return TrajectoryRefs(
        refs[0].topic,
        np.array([ref.partition for ref in refs], IDS).tobytes(),
        np.array([ref.offset for ref in refs], OFFSETS).tobytes(),
        np.array([ref.attempt for ref in refs], IDS).tobytes(),
        bytes.fromhex("".join(ids)) if digests else b"",
        () if digests else tuple(ids),
    )


def refs_of(step: TrainStep) -> tuple[TrajectoryRef, ...]:
    """Return the references to the trajectories of a step, in order, in either form."""
    if step.packed is None:
        return step.trajectories
    packed = step.packed
    raw = packed.rollout_ids
    ids = packed.names or tuple(raw[at : at + 16].hex() for at in range(0, len(raw), 16))
    places = zip(
        np.frombuffer(packed.partitions, IDS).tolist(),
        np.frombuffer(packed.offsets, OFFSETS).tolist(),
        ids,
        np.frombuffer(packed.attempts, IDS).tolist(),
        strict=True,
    )
    return tuple(TrajectoryRef(packed.topic, *place) for place in places)
