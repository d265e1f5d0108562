"""The interface for readers of history, implemented by clusters and by the in-memory rig."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the command line names ranges of history before it reads any
    from rollcall.consumers.log.protocols import Log
    from rollcall.producers.admin import Admin
    from rollcall.schemas.codec import Codec
    from rollcall.schemas.topics import Topics


class History(Protocol):
    """A log, its codec, and the names of its topics."""

    @property
    def log(self) -> "Log": ...

    @property
    def codec(self) -> "Codec": ...

    @property
    def topics(self) -> "Topics": ...


class LiveHistory(History, Protocol):
    """A history whose brokers also report members of groups and retention of topics."""

    @property
    def admin(self) -> "Admin": ...
