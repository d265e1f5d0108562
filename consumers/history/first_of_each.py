"""The first of several records that tell of the same thing."""

from collections.abc import Callable
from typing import Generic, TypeVar

from schemas.ids import digest

M = TypeVar("M")


class FirstOfEach(Generic[M]):
    """Tells the first message under each key from those that come again.

    Of a key eight bytes of BLAKE2b are kept. Among n keys two share them with a chance of about
    n^2 / 2^65: of ten million rollouts one is lost in one of 370,000 readings.
    """

    def __init__(self, key: Callable[[M], tuple[object, ...]]) -> None:
        self._key = key
        self._digests: set[bytes] = set()

    def add(self, message: M) -> bool:
        """Note a message; return whether it is the first under its key."""
        name = self._digest(message)
        if name in self._digests:
            return False
        self._digests.add(name)
        return True

    def __contains__(self, message: M) -> bool:
        """Whether one under the same key was noted."""
        return self._digest(message) in self._digests

    def _digest(self, message: M) -> bytes:
        return digest(*self._key(message), size_bytes=8)
