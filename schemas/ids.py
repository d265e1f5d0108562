"""Ids as pure functions of a place in a rollout: a repeated command has the same id."""

from hashlib import blake2b
from typing import Protocol

DRAW_DIGITS = 18
"""The most digits of a draw's number. An id with more is not one of ours."""


def digest(*parts: object, size_bytes: int = 16) -> bytes:
    """Return a digest of parts; each is prefixed with its length, so that ('ab', 'c') and
    ('a', 'bc') differ."""
    text = "".join(f"{len(part)}:{part}" for part in map(str, parts))
    return blake2b(text.encode(), digest_size=size_bytes).digest()


def command_id(rollout_id: str, attempt: int, position: int, tries: int) -> bytes:
    """Return the 16-byte id of the command at one place in a rollout."""
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
"""The key of a running rollout: its id and its journal partition. Two rollouts with one id may run
at once in different partitions."""


def rollout_of(command: CommandOrigin) -> RolloutKey:
    """Return the rollout that a command belongs to."""
    return command.rollout_id, command.answer_partition


def command_key(command: CommandOrigin) -> tuple[bytes, bytes, int]:
    """Return a command's unique key: ids alone repeat if a rollout id is used again."""
    return command.command_id, command.body_digest, command.answer_partition


def call_seed(seed_key: str, attempt: int, position: int) -> int:
    """Return the seed of one model call, in [0, 2**63).

    It does not depend on the try, so a retry samples the same tokens.
    """
    place = f"{seed_key}\0{attempt}\0{position}\0seed"
    return int.from_bytes(blake2b(place.encode(), digest_size=8).digest(), "big") >> 1


LONG_PREFIX = 1024
"""In tokens. A call names a longer prefix by digest; the server that answered last holds it."""


def prefix_digest(packed_ids: bytes) -> bytes:
    """Return the 16-byte digest of the tokens of a sequence so far."""
    return prefix_hash(packed_ids).digest()


def prefix_hash(packed_ids: bytes) -> blake2b:
    """Return a hash of a sequence so far, which can be updated with further ids."""
    return blake2b(packed_ids, digest_size=16)


def request_id(run_id: str, draw: int, member: int) -> str:
    """Return the id of a training run's request, which is the same after a restart."""
    return digest("request", run_id, draw, member).hex()


def continued_id(rollout_id: str, generation: int) -> str:
    """Return the id of a request that continues a cancelled one, with its generation."""
    base, _ = split_continued_id(rollout_id)
    return f"{base}:{generation}" if generation else base


def split_continued_id(rollout_id: str) -> tuple[str, int]:
    """Return the original id of a request, and how many times it was continued."""
    base, _, generation = rollout_id.partition(":")
    if generation.isascii() and generation.isdigit() and len(generation) <= DRAW_DIGITS:
        return base, int(generation)
    return rollout_id, 0


def group_id(run_id: str, draw: int) -> str:
    """Return the group id of a training run's draw."""
    return f"{run_id}/{draw}"


def draw_of(run_id: str, group: str) -> int:
    """Return the number of the draw that made a group; -1 if admission did not make it."""
    _, _, draw = group.rpartition("/")
    number = int(draw) if draw.isascii() and draw.isdigit() and len(draw) <= DRAW_DIGITS else -1
    return number if number >= 0 and group == group_id(run_id, number) else -1


def scored_id(rollout_id: str, attempt: int, scoring_id: str) -> str:
    """Return the event id of a scored trajectory, which names it even if it is unreadable."""
    return digest(rollout_id, attempt, scoring_id).hex()
