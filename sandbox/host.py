"""What a worker offers environments and scorers that wait: a line to the models, boxes, objects.

An environment is given its `Host` when it is made, if its factory has a parameter of that name. It
is one host for one session: whatever is drawn from it ends with the session, at the latest.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import socket

    from sandbox.agents.agent_box import AgentBox
    from sandbox.agents.agent_processes import AgentExit
    from sandbox.boxes.box import Box, Spec
    from sandbox.boxes.pool import Mode
    from schemas.asks import Ask, Reply
    from schemas.messages import Claim

T = TypeVar("T")


class Line(Protocol):
    """The environment's end of an HTTP endpoint that one process talks to, as if to a model.

    All of it belongs to the event loop of the worker's room.
    """

    url: str
    """http://127.0.0.1:PORT/r/KEY; clients append the path that their vendor wants."""
    key: str
    """What the endpoint asks its callers for; drawn for this line alone."""

    def asked(self) -> "list[Ask]":
        """The requests that wait for a reply, in order of arrival; equal ones each count."""
        ...

    def shorten(self, ask: "Ask", short: "Ask") -> None:
        """Hold this in place of one that `asked` has shown, the very object."""
        ...

    async def wait(self, timeout_s: float | None) -> None:
        """Return when a request arrives or one is taken away, when woken, or after so long."""
        ...

    def wake(self) -> None:
        """Let whoever waits look again: something else has happened."""
        ...

    def tell(self, reply: "Reply") -> None:
        """Answer the first waiting request of the reply's digest; KeyError when none waits."""
        ...

    async def close(self) -> None:
        """From now on the key is unknown: requests that wait, and later ones, are told so.

        May be called twice.
        """
        ...


class Process(Protocol):
    """An agent that runs; see `sandbox.agents.agent_processes.AgentProcess`."""

    async def wait(self) -> "AgentExit":
        """Until it has ended; several may wait, and a wait may be cancelled."""
        ...

    async def close(self) -> "AgentExit":
        """End it and all that it has started, and remove what it has left. May be called twice."""
        ...


class Starts(Protocol):
    """What starts agents."""

    async def start(
        self,
        agent: str,
        config: Mapping[str, Any],
        *,
        url: str,
        key: str,
        box: "AgentBox | None" = None,
    ) -> Process:
        """A process of an agent, which asks at `url` with `key`; in a box where one is given.

        Raises WorkFailed: `agent_missing`, or `agent_start` where there is no room for one more.
        """
        ...

    async def imports(self, agent: str, config: Mapping[str, Any]) -> Mapping[str, str]:
        """What an agent's box is shown of its modules and its interpreter, by its place there.

        Raises WorkFailed.
        """
        ...


class Processes(Starts, Protocol):
    """All agents of a worker; see `sandbox.agents.agent_processes.AgentProcesses`."""

    async def close(self) -> None:
        """End them all."""
        ...


class Boxes(Protocol):
    """What lends boxes to one session."""

    @property
    def default(self) -> str:
        """The driver of whoever names none."""
        ...

    async def lend(self, driver: str | None, spec: "Spec", mode: "Mode" = "persistent") -> "Box":
        """A started box in which nobody has been; whoever borrows it gives it back.

        `driver`: None is the worker's own choice.
        `persistent`: one that waits started, where there is one; `ephemeral`: made for this.
        Raises WorkFailed.
        """
        ...

    async def give_back(self, box: "Box", reason: str = "") -> None:
        """Remove a box: nobody is given a used one. May be called twice.

        `reason`: why, where that is not the end of an episode.
        """
        ...

    def driver_of(self, driver: str | None, spec: "Spec") -> str:
        """Which driver would open such a box. Raises WorkFailed(`bad_config`)."""
        ...

    def holds(self, box: "Box") -> bool:
        """Whether it is lent still, and was not given back by whoever it was lent to."""
        ...

    def enter_task(self) -> "Box":
        """The box that the environment of the same rollout was lent; whoever asks gives none back.

        Asked for once: what an agent did in it is not undone. Raises WorkFailed(`session_lost`)
        where it was, and where there is none.
        """
        ...


class Host(Starts, Protocol):
    """What one session may ask of the worker that it lives in."""

    place: str
    """Which session it is, for people."""

    @property
    def boxes(self) -> Boxes:
        """Where commands run. Raises WorkFailed(`box_unavailable`) where a worker has none."""
        ...

    async def line(
        self,
        policies: Sequence[str],
        task: Mapping[str, object],
        listener: "socket.socket | None" = None,
    ) -> Line:
        """Open a line on which these policies can be asked for, and which tells its task.

        With a listener it can be reached there alone, and the listener is the line's.

        A line is one process's: a client that comes back is told again what it was told, so a
        process that is started anew needs another line, whose key the old one does not have.
        """
        ...

    def keep(self, name: str, content: bytes) -> str:
        """Put an object into the store; return its reference. Raises Unavailable."""
        ...


class ScoringHost(Protocol):
    """What scorers that wait may ask of the worker that they live in; one for each trajectory."""

    @property
    def timeout_s(self) -> float:
        """How long one scorer may take."""
        ...

    async def fetch(self, claim: "Claim") -> bytes:
        """An object of the store. Raises ObjectLost, and Unavailable."""
        ...

    async def open_box(self, spec: "Spec") -> "Box":
        """A box in which nobody has been; whoever opens it closes it. Raises WorkFailed."""
        ...

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """What was made under this name for this trajectory; made when it is first asked for."""
        ...
