"""Ids are pure functions of a place: whoever asks there again asks under the same id."""

from hashlib import blake2b
from typing import Protocol

DRAW_DIGITS = 18
"""More than any run draws; a longer number is somebody else's."""


def digest(*parts: object, size_bytes: int = 16) -> bytes:
    """Name what the parts spell; each part is set off by its length, so none runs into the next."""
    text = "".join(f"{len(part)}:{part}" for part in map(str, parts))
    return blake2b(text.encode(), digest_size=size_bytes).digest()


def command_id(rollout_id: str, attempt: int, position: int, tries: int) -> bytes:
    """Name one place in one rollout, 16 bytes."""
    place = f"{rollout_id}\0{attempt}\0{position}\0{tries}"
    return blake2b(place.encode(), digest_size=16).digest()


class CommandOrigin(Protocol):
    """The fields of every command that identify the asking rollout."""

    @property
    def rollout_id(self) -> str: ...
    @property
    def command_id(self) -> bytes: ...
    @property
    def body_digest(self) -> bytes: ...
    @property
    def answer_partition(self) -> int: ...


RolloutKey = tuple[str, int]
"""A rollout among all that run: its id, and the journal partition that it lives in. Two of one id
may run at once, in different partitions."""


def rollout_of(command: CommandOrigin) -> RolloutKey:
    """The rollout that a command is of."""
    return command.rollout_id, command.answer_partition


def command_key(command: CommandOrigin) -> tuple[bytes, bytes, int]:
    """Return a command's unique key: ids alone repeat if a rollout id is used again."""
    return command.command_id, command.body_digest, command.answer_partition


def call_seed(seed_key: str, attempt: int, position: int) -> int:
    """The seed of one model call, in [0, 2**63).

    The try is not in it: retrying is not resampling.
    """
    place = f"{seed_key}\0{attempt}\0{position}\0seed"
    return int.from_bytes(blake2b(place.encode(), digest_size=8).digest(), "big") >> 1


LONG_PREFIX = 1024
"""Tokens; where a prefix is longer, a call names it, for the server that answered last holds it."""


def prefix_digest(packed_ids: bytes) -> bytes:
    """Name the tokens of a sequence so far, 16 bytes."""
    return prefix_hash(packed_ids).digest()


def prefix_hash(packed_ids: bytes) -> blake2b:
    """The same for a sequence that goes on: more ids can be put in, and its digest asked again."""
    return blake2b(packed_ids, digest_size=16)


def request_id(run_id: str, draw: int, member: int) -> str:
    """The id of a training run's request, so that a restart neither forgets nor doubles one."""
    return digest("request", run_id, draw, member).hex()


def continued_id(rollout_id: str, generation: int) -> str:
    """The id of a request that goes on with a cancelled one: of its so manieth generation."""
    base, _ = split_continued_id(rollout_id)
    return f"{base}:{generation}" if generation else base


def split_continued_id(rollout_id: str) -> tuple[str, int]:
    """The id that a request began with, and how often it was gone on with."""
    base, _, generation = rollout_id.partition(":")
    if generation.isascii() and generation.isdigit() and len(generation) <= DRAW_DIGITS:
        return base, int(generation)
    return rollout_id, 0


def group_id(run_id: str, draw: int) -> str:
    """The group of a training run's draw."""
    return f"{run_id}/{draw}"


def draw_of(run_id: str, group: str) -> int:
    """Which draw of a run a group is; -1 where admission did not draw it."""
    _, _, draw = group.rpartition("/")
    number = int(draw) if draw.isascii() and draw.isdigit() and len(draw) <= DRAW_DIGITS else -1
    return number if number >= 0 and group == group_id(run_id, number) else -1


def scored_id(rollout_id: str, attempt: int, scoring_id: str) -> str:
    """The event id of a scored trajectory: names it also where its value cannot be read."""
    return digest(rollout_id, attempt, scoring_id).hex()
