"""Which asks both ends of a rollout know, so that new ones may be told by their difference.

The one end is a program, the other an agent's process; what each was told stands in the actions
between them. So both come to the same by themselves, and a process that is begun anew, too.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

from rollcall.schemas.asks import AgentAction, Ask, RequestFingerprint

ANSWERED = 16
"""So many asks are known after their replies: agents go on from one of the last."""
Held = TypeVar("Held", Ask, RequestFingerprint)


class _Known(Generic[Held]):
    """The open asks, and the asks that were answered last."""

    def __init__(self) -> None:
        self._asks: dict[str, Held] = {}
        self._answered: dict[str, None] = {}
        """In order of their last replies."""
        self._open: tuple[str, ...] = ()

    def act(self, action: AgentAction) -> None:
        """An action was told: what it names is known at both ends."""
        for reply in action.replies:
            self._answered.pop(reply.d, None)
            self._answered[reply.d] = None
        for name in list(self._answered)[:-ANSWERED]:
            del self._answered[name]
        self._open = action.open
        kept = {*self._answered, *self._open}
        self._asks = {name: ask for name, ask in self._asks.items() if name in kept}

    def at_both_ends(self) -> list[Held]:
        """Those to tell others by, the most recent last."""
        names = dict.fromkeys((*self._answered, *self._open))
        return [self._asks[name] for name in names if name in self._asks]

    def by_name(self) -> Mapping[str, Held]:
        """All that may be told by."""
        return self._asks


class KnownRequests(_Known[Ask]):
    """Receiver side: keeps asks in full."""

    def see(self, ask: Ask) -> None:
        """It was asked; whether the other end knows it is told by the next action."""
        if ask.d not in self._asks:
            self._asks[ask.d] = ask.sharing(list(self._asks.values()))


class KnownFingerprints(_Known[RequestFingerprint]):
    """Sender side: keeps digests of asks."""

    def see(self, ask: Ask) -> None:
        """It was asked; whether the other end knows it is told by the next action."""
        if ask.d in self._asks:
            return
        seen = RequestFingerprint.of(ask)
        for other in self._asks.values():
            other.share(seen)
            seen.share(other)
        self._asks[ask.d] = seen
