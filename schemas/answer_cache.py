"""A cache of recent answers, so that a retry gets the same answer; bounded by memory."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from sys import getsizeof
from threading import Lock
from typing import Any, Generic, TypeVar

V = TypeVar("V")
_Kept = tuple[V, int, Hashable]
"""A value, its size in bytes, and its owner. A named tuple would take twice the time."""
KEPT_BYTES = 64 << 20
OVERTAKEN_BYTES = 2 << 20
ENTRY_BYTES = 400
"""Memory of a small message, its key and their table entry, without texts and bytes."""


class AnswerCache(Generic[V]):
    """Values by key; the least recently used is dropped first. Any thread may use it.

    A value is a message, a text or bytes. A value larger than the bound is not kept. Values of one
    owner follow one another: a caller that asks for the next value has received the previous one.
    The previous value is then needed only if the log delivers a command twice, so all such values
    together are limited to `overtaken_bytes`.
    """

    def __init__(
        self, most_bytes: int = KEPT_BYTES, overtaken_bytes: int = OVERTAKEN_BYTES
    ) -> None:
        self.most_bytes = most_bytes
        self.overtaken_bytes = overtaken_bytes
        self.size_bytes = 0
        self._kept: OrderedDict[Hashable, _Kept[V]] = OrderedDict()
        self._last_of: dict[Hashable, Hashable] = {}
        self._overtaken: OrderedDict[Hashable, None] = OrderedDict()
        """Keys of values that a later one of their owner has overtaken; dropped first, in order."""
        self._overtaken_size = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> V | None:
        # Most calls miss, and a miss does not have to wait for a thread that is storing a value.
        if key not in self._kept:
            return None
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            self._kept.move_to_end(key)
            if key in self._overtaken:
                self._overtaken.move_to_end(key)
            return kept[0]

    def keep(self, key: Hashable, value: V, of: Hashable = None) -> None:
        """Keep a value under a key; it replaces an earlier one.

        `of` is the owner, for which only the newest value is asked for; None if there is no owner.
        """
        size_bytes = size_of(value)
        with self._lock:
            if key in self._kept:
                self._forget(key)
            before = None if of is None else self._last_of.pop(of, None)
            if before is not None:
                self._overtake(before)
            if size_bytes > self.most_bytes:
                return
            self._kept[key] = value, size_bytes, of
            self.size_bytes += size_bytes
            if of is not None:
                self._last_of[of] = key
            while self.size_bytes > self.most_bytes:
                self._forget(next(iter(self._overtaken or self._kept)))

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._forget(key)

    def _overtake(self, key: Hashable) -> None:
        self._overtaken[key] = None
        self._overtaken_size += self._kept[key][1]
        while self._overtaken_size > self.overtaken_bytes:
            self._forget(next(iter(self._overtaken)))

    def _forget(self, key: Hashable) -> None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        _, size_bytes, of = kept
        self.size_bytes -= size_bytes
        if key in self._overtaken:
            del self._overtaken[key]
            self._overtaken_size -= size_bytes
        elif of is not None:
            del self._last_of[of]


def size_of(value: object) -> int:
    """Return the approximate memory, in bytes, of a message, a text or bytes."""
    kind: type = type(value)
    return _weigher(kind)(value)


@cache
def _weigher(kind: type) -> Callable[[Any], int]:
    """Return a function that sizes a message by its texts and bytes, other values as a whole."""
    if not is_dataclass(kind):
        return lambda value: ENTRY_BYTES + getsizeof(value)
    texts = [f"size(m.{each.name})" for each in fields(kind) if each.type is str]
    packed = [f"len(m.{each.name})" for each in fields(kind) if each.type is bytes]
    fixed = ENTRY_BYTES + getsizeof(b"") * len(packed)
    # Compiled into one expression because it runs for every answer. `sizeof` is needed for texts:
    # a character may take one to four bytes.
    weigh: Callable[[Any], int]
    weigh = eval(f"lambda m: {' + '.join([str(fixed), *texts, *packed])}", {"size": str.__sizeof__})
    return weigh
