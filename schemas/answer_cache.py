"""What was said lately, kept so that it can be said again: bounded by the memory that it takes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from sys import getsizeof
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")
KEPT_BYTES = 64 << 20
ENTRY_BYTES = 400
"""What a small message, its key and their place in the table take beside texts and bytes."""


class AnswerCache(Generic[V]):
    """Values by key, the least recently used out first. Any thread may use it.

    A value is a message, a text or bytes; one that alone is above the bound is not kept.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self.most_bytes = most_bytes
        self.size_bytes = 0
        self._kept: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def keep(self, key: Hashable, value: V) -> None:
        """Keep a value in place of the one that was there."""
        size_bytes = size_of(value)
        with self._lock:
            self._forget(key)
            if size_bytes > self.most_bytes:
                return
            self._kept[key] = value, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self.most_bytes:
                self._forget(next(iter(self._kept)))

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._forget(key)

    def _forget(self, key: Hashable) -> None:
        self.size_bytes -= self._kept.pop(key, (None, 0))[1]


def size_of(value: object) -> int:
    """About the bytes of memory that a message, a text or bytes take."""
    kind = type(value)
    held = _texts_of(kind)(value) if is_dataclass(kind) else (value,)
    return ENTRY_BYTES + sum(map(getsizeof, held))


@cache
def _texts_of(message: type) -> Callable[[object], tuple[object, ...]]:
    """Gets the texts and bytes of a message, which has several."""
    return attrgetter(*(field.name for field in fields(message) if field.type in (str, bytes)))
