"""What was said lately, kept so that it can be said again: bounded by the memory that it takes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from sys import getsizeof
from threading import Lock
from typing import Any, Generic, TypeVar

V = TypeVar("V")
_Kept = tuple[V, int, Hashable]
"""A value, its size in bytes, and what it is a value of: a named tuple takes twice the time."""
KEPT_BYTES = 64 << 20
OVERTAKEN_BYTES = 2 << 20
ENTRY_BYTES = 400
"""What a small message, its key and their place in the table take beside texts and bytes."""


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
        # Most often there is nothing, and whoever keeps something now need not be waited for.
        if key not in self._latest and key not in self._overtaken:
            return None
        with self._lock:
            for table in (self._latest, self._overtaken):
                if key in table:
                    table.move_to_end(key)
                    value, _, _ = table[key]
                    return value
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
            self._latest[key] = value, size_bytes, of
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
        self._overtaken[key] = kept = self._latest[key]  # in both for a moment, never in neither
        del self._latest[key]
        _, size_bytes, _ = kept
        self._overtaken_size += size_bytes
        while self._overtaken_size > self.overtaken_bytes:
            _, (_, size_bytes, _) = self._overtaken.popitem(last=False)
            self._overtaken_size -= size_bytes
            self.size_bytes -= size_bytes

    def _forget(self, key: Hashable) -> None:
        kept = self._latest.pop(key, None)
        overtaken = None if kept else self._overtaken.pop(key, None)
        if kept:
            _, size_bytes, of = kept
            if of is not None:
                del self._last_of[of]
        elif overtaken:
            _, size_bytes, _ = overtaken
            self._overtaken_size -= size_bytes
        else:
            return
        self.size_bytes -= size_bytes


def size_of(value: object) -> int:
    """About the bytes of memory that a message, a text or bytes take."""
    kind: type = type(value)
    return _weigher(kind)(value)


@cache
def _weigher(kind: type) -> Callable[[Any], int]:
    """What weighs a message by its texts and bytes, of which it has several; else the value."""
    if not is_dataclass(kind):
        return lambda value: ENTRY_BYTES + getsizeof(value)
    names = {of: [field.name for field in fields(kind) if field.type is of] for of in (str, bytes)}
    held_of, texts = attrgetter(*names[str], *names[bytes]), len(names[str])
    apart = ENTRY_BYTES + getsizeof("") * (texts - 1) + getsizeof(b"") * len(names[bytes])

    def weigh(message: Any) -> int:
        held = held_of(message)  # texts as one: a character may take four bytes
        return apart + getsizeof("".join(held[:texts])) + sum(map(len, held[texts:]))

    return weigh
