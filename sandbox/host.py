"""The services of a worker for asynchronous environments and scorers: endpoints, boxes, objects.

An environment gets its `Host` when it is made, if its factory has a parameter of that name. Each
session has a host of its own, whose resources end with the session at the latest.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import socket

    from rollcall.sandbox.agents.agent_box import AgentBox
    from rollcall.sandbox.agents.agent_processes import AgentExit
    from rollcall.sandbox.boxes.box import Box, Spec
    from rollcall.sandbox.boxes.pool import Mode
    from rollcall.schemas.agent_requests import AgentRequest, Reply
    from rollcall.schemas.messages import Claim

T = TypeVar("T")


class AgentEndpoint(Protocol):
    """The environment's end of an HTTP endpoint that one process uses like a model.

    It is used on the event loop of one of the worker's threads.
    """

    url: str
    """The base URL, http://127.0.0.1:PORT/r/KEY; clients append the path of their vendor's API."""
    key: str
    """The API key that callers must send; drawn for this endpoint alone."""

    def open_requests(self) -> "list[AgentRequest]":
        """Return the requests that wait for a reply, in order of arrival, with duplicates."""
        ...

    def shorten(self, request: "AgentRequest", short: "AgentRequest") -> None:
        """Replace a request, the same object that `open_requests` returned, by a shorter copy."""
        ...

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until a request arrives or is withdrawn, `wake` is called, or the timeout."""
        ...

    def wake(self) -> None:
        """Make `wait` return, since something else has happened."""
        ...

    def answer(self, reply: "Reply") -> None:
        """Answer the first waiting request with the reply's digest. Raises KeyError if none."""
        ...

    async def close(self) -> None:
        """Invalidate the key: waiting and later requests get an error for an unknown key.

        May be called twice.
        """
        ...


class Process(Protocol):
    """A running agent; see `rollcall.sandbox.agents.agent_processes.AgentProcess`."""

    async def wait(self) -> "AgentExit":
        """Wait until it has ended; several tasks may wait, and a wait may be cancelled."""
        ...

    async def close(self) -> "AgentExit":
        """End it with its children, and remove its directory. May be called twice."""
        ...


class AgentStarter(Protocol):
    """The interface that starts agents."""

    async def start(
        self,
        agent: str,
        config: Mapping[str, Any],
        *,
        url: str,
        key: str,
        box: "AgentBox | None" = None,
    ) -> Process:
        """Start an agent with the endpoint `url` and its `key`; in a box, if one is given.

        Raises WorkFailed: `agent_missing`, or `agent_start` if no process can be forked.
        """
        ...

    async def imports(self, agent: str, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the host paths of an agent's modules and interpreter, by their path in its box.

        Raises WorkFailed.
        """
        ...


class Processes(AgentStarter, Protocol):
    """All agents of a worker; see `rollcall.sandbox.agents.agent_processes.AgentProcesses`."""

    async def close(self) -> None:
        """End them all."""
        ...


class Boxes(Protocol):
    """The boxes that one session may borrow."""

    @property
    def default(self) -> str:
        """The driver of sessions that name none."""
        ...

    async def lend(self, driver: str | None, spec: "Spec", mode: "Mode" = "persistent") -> "Box":
        """Lend a started, unused box; the borrower must give it back.

        `driver`: None is the worker's default.
        `persistent`: one that was started ahead, if there is one; `ephemeral`: a new one.
        Raises WorkFailed.
        """
        ...

    async def give_back(self, box: "Box", reason: str = "") -> None:
        """Remove a box, since used ones are not lent again. May be called twice.

        `reason`: the cause, if it is not the end of an episode.
        """
        ...

    def driver_of(self, driver: str | None, spec: "Spec") -> str:
        """Return the name of the driver for such a box. Raises WorkFailed(`bad_config`)."""
        ...

    def holds(self, box: "Box") -> bool:
        """Return True if a box is still lent."""
        ...

    def enter_task(self) -> "Box":
        """Return the box of the same rollout's task; the caller does not give it back.

        It is entered once, since an agent's changes in it cannot be undone. Raises
        WorkFailed(`session_lost`) if it was entered before, or if there is none.
        """
        ...


class Host(AgentStarter, Protocol):
    """The services of a worker for one session."""

    place: str
    """The description of the session, for people."""

    @property
    def boxes(self) -> Boxes:
        """The worker's boxes. Raises WorkFailed(`box_unavailable`) if it has none."""
        ...

    async def open_endpoint(
        self,
        policies: Sequence[str],
        task: Mapping[str, object],
        listener: "socket.socket | None" = None,
    ) -> AgentEndpoint:
        """Open an endpoint for these policies, which also serves the task.

        With a listener it is reachable there alone, and it owns the listener.

        An endpoint serves one process: a client that retries gets the same replies again, so a
        restarted process needs another endpoint, whose key the old process does not have.
        """
        ...

    def keep(self, name: str, content: bytes) -> str:
        """Put an object into the store; return its reference. Raises Unavailable."""
        ...


class ScoringHost(Protocol):
    """The services of a worker for asynchronous scorers; one for each trajectory."""

    @property
    def timeout_s(self) -> float:
        """The time limit of one scorer, in seconds."""
        ...

    async def fetch(self, claim: "Claim") -> bytes:
        """Fetch an object from the store. Raises ObjectLost, and Unavailable."""
        ...

    async def open_box(self, spec: "Spec") -> "Box":
        """Open an unused box; the caller closes it. Raises WorkFailed."""
        ...

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return the value of this name for this trajectory; the first call makes it."""
        ...
