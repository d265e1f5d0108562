"""What was said lately, kept so that it can be said again: bounded by the memory that it takes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from sys import getsizeof
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")
KEPT_BYTES = 64 << 20
OVERTAKEN_BYTES = 2 << 20
ENTRY_BYTES = 400
"""What a small message, its key and their place in the table take beside texts and bytes."""


@dataclass(slots=True)  # not frozen: one is made for every answer
class _Kept(Generic[V]):
    value: V
    size_bytes: int
    of: Hashable


class AnswerCache(Generic[V]):
    """Values by key, the least recently used out first. Any thread may use it.

    A value is a message, a text or bytes; one that alone is above the bound is not kept. Where
    values follow one another, whoever asks for the next one has had the one before: it is kept for
    what comes twice from a log alone, among at most `overtaken_bytes` of such.
    """

    def __init__(
        self, most_bytes: int = KEPT_BYTES, overtaken_bytes: int = OVERTAKEN_BYTES
    ) -> None:
        self.most_bytes = most_bytes
        self.overtaken_bytes = overtaken_bytes
        self.size_bytes = 0
        self._latest: OrderedDict[Hashable, _Kept[V]] = OrderedDict()
        self._overtaken: OrderedDict[Hashable, _Kept[V]] = OrderedDict()
        self._overtaken_size = 0
        self._last_of: dict[Hashable, Hashable] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._latest) + len(self._overtaken)

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            for table in (self._latest, self._overtaken):
                found = table.get(key)
                if found is not None:
                    table.move_to_end(key)
                    return found.value
            return None

    def keep(self, key: Hashable, value: V, of: Hashable = None) -> None:
        """Keep a value in place of the one that was there.

        `of`: what it is a value of, of which only the last one is asked for; None: of nothing.
        """
        size_bytes = size_of(value)
        with self._lock:
            if key in self._latest or key in self._overtaken:
                self._forget(key)
            if of is not None:
                self._overtake(of)
            if size_bytes > self.most_bytes:
                return
            self._latest[key] = _Kept(value, size_bytes, of)
            self.size_bytes += size_bytes
            if of is not None:
                self._last_of[of] = key
            while self.size_bytes > self.most_bytes:
                self._forget(next(iter(self._overtaken or self._latest)))

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._forget(key)

    def _overtake(self, of: Hashable) -> None:
        key = self._last_of.pop(of, None)
        if key is None:
            return
        self._overtaken[key] = kept = self._latest.pop(key)
        self._overtaken_size += kept.size_bytes
        while self._overtaken_size > self.overtaken_bytes:
            self._forget(next(iter(self._overtaken)))

    def _forget(self, key: Hashable) -> None:
        if kept := self._latest.pop(key, None):
            if kept.of is not None:
                del self._last_of[kept.of]
        elif kept := self._overtaken.pop(key, None):
            self._overtaken_size -= kept.size_bytes
        self.size_bytes -= kept.size_bytes if kept else 0


def size_of(value: object) -> int:
    """About the bytes of memory that a message, a text or bytes take."""
    kind: type = type(value)
    held: tuple[object, ...] = _texts_of(kind)(value)
    return ENTRY_BYTES + sum(map(getsizeof, held))


@cache
def _texts_of(kind: type) -> Callable[[object], tuple[object, ...]]:
    """Gets the texts and bytes of a message, which has several; else the value itself."""
    if not is_dataclass(kind):
        return lambda value: (value,)
    return attrgetter(*(field.name for field in fields(kind) if field.type in (str, bytes)))
