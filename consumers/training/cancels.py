"""Cancel commands that the trainer writes to `control`, for rollouts it no longer needs.

A cancel only saves work and may be repeated: the ledger counts the rollout whatever its end.
So there is no record of which rollouts were cancelled.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rollcall.producers.control import write_control
from rollcall.producers.publisher import Publisher
from rollcall.schemas.codec import Codec
from rollcall.schemas.messages import Control
from rollcall.schemas.topics import Topics

REDUNDANT = "redundant: the other members of its group are enough"


@dataclass(frozen=True, slots=True)
class Cancels:
    """Asks agents to end rollouts, by id."""

    publisher: Publisher
    codec: Codec
    topics: Topics
    source: str

    def ask(self, rollout_ids: Iterable[str], reason: str) -> None:
        """Ask for these to end as cancelled."""
        for rollout_id in rollout_ids:
            command = Control("cancel", rollout_id=rollout_id, reason=reason)
            write_control(self.publisher, self.codec, self.topics, command, self.source)
