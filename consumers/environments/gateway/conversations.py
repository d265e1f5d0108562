"""The conversations of a session by response id: later requests may continue any of them.

A conversation usually continues the one before and repeats all of it, so conversations share the
memory of a common beginning.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import is_
from typing import overload

from rollcall.schemas.messages import Message

COMPARED = 8
"""The number of latest conversations that are tried for sharing."""


class SharedTurns(Sequence[Message]):
    """The first messages of a shared list, to which messages are only appended."""

    __slots__ = ("_count", "_list")

    def __init__(self, messages: Iterable[Message]) -> None:
        self._list = list(messages)
        self._count = len(self._list)

    def then(self, more: Sequence[Message]) -> "SharedTurns":
        """Return these messages and more; share the list if this is its first continuation."""
        if self._count < len(self._list):
            return SharedTurns([*self, *more])
        self._list.extend(more)
        longer = SharedTurns(())
        longer._list, longer._count = self._list, len(self._list)
        return longer

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return islice(self._list, self._count)

    @overload
    def __getitem__(self, at: int) -> Message: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, at: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(at, slice):
            return tuple(self._list[place] for place in range(*at.indices(self._count)))
        return self._list[range(self._count)[at]]


class ConversationStore(dict[str, Sequence[Message]]):
    """Conversations by the id of the response."""

    def add(self, conversations: Mapping[str, Sequence[Message]]) -> None:
        """Add conversations, sharing a common beginning with the latest ones."""
        for name, messages in conversations.items():
            self[name] = self._shared(messages)

    def _shared(self, messages: Sequence[Message]) -> Sequence[Message]:
        for known in islice(reversed(self.values()), COMPARED):
            continued = len(known) <= len(messages) and all(map(is_, known, messages))
            if continued and isinstance(known, SharedTurns):
                return known.then(messages[len(known) :])
        return SharedTurns(messages)
