"""The requests that both ends of a rollout know, so that a new one can be sent as a difference.

One end is the program, the other the agent's process. Both derive the set from the actions between
them, so they agree without further messages, also after the process is restarted.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

from rollcall.schemas.agent_requests import AgentAction, AgentRequest, RequestFingerprint

ANSWERED = 16
"""The number of answered requests that stay known: agents continue from one of the last."""
Held = TypeVar("Held", AgentRequest, RequestFingerprint)


class _Known(Generic[Held]):
    """The open requests, and the requests that were answered last."""

    def __init__(self) -> None:
        self._requests: dict[str, Held] = {}
        self._answered: dict[str, None] = {}
        """Names in order of their last replies."""
        self._open: tuple[str, ...] = ()

    def apply(self, action: AgentAction) -> None:
        """Keep the requests that an action names: from now on both ends know them."""
        for reply in action.replies:
            self._answered.pop(reply.d, None)
            self._answered[reply.d] = None
        for name in list(self._answered)[:-ANSWERED]:
            del self._answered[name]
        self._open = action.open
        kept = {*self._answered, *self._open}
        self._requests = {name: request for name, request in self._requests.items() if name in kept}

    def at_both_ends(self) -> list[Held]:
        """Return the requests that both ends know, the most recent last."""
        names = dict.fromkeys((*self._answered, *self._open))
        return [self._requests[name] for name in names if name in self._requests]

    def by_name(self) -> Mapping[str, Held]:
        """Return all requests of this end, by name."""
        return self._requests


class KnownRequests(_Known[AgentRequest]):
    """Receiver side: keeps requests in full."""

    def add(self, request: AgentRequest) -> None:
        """Add a request; the next action tells whether the other end knows it."""
        if request.d not in self._requests:
            self._requests[request.d] = request.sharing(list(self._requests.values()))


class KnownFingerprints(_Known[RequestFingerprint]):
    """Sender side: keeps digests of requests."""

    def add(self, request: AgentRequest) -> None:
        """Add a request; the next action tells whether the other end knows it."""
        if request.d in self._requests:
            return
        seen = RequestFingerprint.of(request)
        for other in self._requests.values():
            other.share(seen)
            seen.share(other)
        self._requests[request.d] = seen
