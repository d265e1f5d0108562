"""The trainer's own words on `control`: rollouts that nobody needs any more are cancelled.

A word is a courtesy that saves work and may be said twice: whatever a rollout comes to all the
same, the accounts say what becomes of it. So nothing is remembered of who was told.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from producers.control import write_control
from producers.publisher import Publisher
from schemas.codec import Codec
from schemas.messages import Control
from schemas.topics import Topics

REDUNDANT = "redundant: the other members of its group are enough"


@dataclass(frozen=True, slots=True)
class Cancels:
    """Asks the agents to end rollouts, each by its id."""

    publisher: Publisher
    codec: Codec
    topics: Topics
    source: str

    def ask(self, rollout_ids: Iterable[str], reason: str) -> None:
        """Have these end as cancelled, as soon as their owners hear of it."""
        for rollout_id in rollout_ids:
            word = Control("cancel", rollout_id=rollout_id, reason=reason)
            write_control(self.publisher, self.codec, self.topics, word, self.source)
