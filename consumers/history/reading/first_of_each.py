"""Detects repeated records, of which only the first counts."""

from collections.abc import Callable
from typing import Generic, TypeVar

from rollcall.schemas.ids import digest

M = TypeVar("M")


class FirstOfEach(Generic[M]):
    """Distinguishes the first message under each key from repetitions.

    It keeps eight bytes of BLAKE2b for each key. Among n keys two collide with a probability of
    about n^2 / 2^65: of ten million rollouts one is lost in one of 370,000 readings.
    """

    def __init__(self, key: Callable[[M], tuple[object, ...]]) -> None:
        self._key = key
        self._digests: set[bytes] = set()

    def add(self, message: M) -> bool:
        """Note a message; return True if it is the first under its key."""
        name = self._digest(message)
        if name in self._digests:
            return False
        self._digests.add(name)
        return True

    def __contains__(self, message: M) -> bool:
        """Return True if a message under the same key was noted."""
        return self._digest(message) in self._digests

    def _digest(self, message: M) -> bytes:
        return digest(*self._key(message), size_bytes=8)
