"""What a reader of history is given: a cluster is one, and so is a rig in memory."""

from typing import Protocol

from consumers.log.protocols import Log
from schemas.codec import Codec
from schemas.topics import Topics


class History(Protocol):
    """A log, how its records are read, and what its topics are called."""

    @property
    def log(self) -> Log: ...

    @property
    def codec(self) -> Codec: ...

    @property
    def topics(self) -> Topics: ...
