"""What a reader of history is given: a cluster is one, and so is a rig in memory."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the command line names ranges of history before it reads any
    from consumers.log.protocols import Log
    from producers.admin import Admin
    from schemas.codec import Codec
    from schemas.topics import Topics


class History(Protocol):
    """A log, how its records are read, and what its topics are called."""

    @property
    def log(self) -> "Log": ...

    @property
    def codec(self) -> "Codec": ...

    @property
    def topics(self) -> "Topics": ...


class LiveHistory(History, Protocol):
    """The same, of brokers that say who is at work and how long a topic is kept."""

    @property
    def admin(self) -> "Admin": ...
