"""One effect whose answer has not been counted yet: the answer that fits it, and its deadlines."""

from dataclasses import dataclass
from functools import lru_cache

from rollcall.consumers.agents.effects import CallModel, Effect
from rollcall.consumers.agents.fold.conversation import Conversation
from rollcall.schemas.messages import CallFailed, Event, Message, ModelAnswered, Sampling

PATIENCE = 2.5
"""The deadline of an answer, in timeouts of its command: one to be begun in, one to be
carried out in, half of one for transport. With less, a full server would work on
commands that are given up."""
FAR_MS = 10**13
"""Three hundred years in ms: a longer timeout counts as none, and every clock can hold this one."""


@dataclass(slots=True)
class OutstandingEffect:
    """One effect whose answer has not been counted yet."""

    effect: Effect
    position: int
    digest: bytes
    opened_ms: int
    timeout_s: float
    sequence: Conversation | None = None
    new: tuple[Message, ...] = ()
    sampling: Sampling | None = None
    tries: int = 0
    failures: int = 0
    turned_away: int = 0
    """The number of tries that were answered by a full server."""
    with_history: bool = False
    """True if the full history was asked for and is sent."""
    deadline_written: bool = False
    """True if its deadline was written. It is lost in a crash, which is harmless."""

    def fits(self, event: Event) -> bool:
        """Return True if the event has this effect's digest and type, and no later try."""
        if event.body_digest != self.digest or event.tries > self.tries:
            return False
        # Both kinds of command can fail, so a failure fits either.
        of_model = isinstance(event.body, ModelAnswered)
        return of_model == isinstance(self.effect, CallModel) or isinstance(event.body, CallFailed)

    def not_after_ms(self) -> int:
        """Return the time after which work on this effect must not begin."""
        return self.opened_ms + whole_ms(self.timeout_s)

    def deadline_ms(self) -> int:
        """Return the time after which no answer to this effect is waited for."""
        return self.opened_ms + whole_ms(PATIENCE * self.timeout_s)

    def try_again(self, now_ms: int) -> None:
        self.tries += 1
        self.opened_ms = now_ms
        self.deadline_written = False


@lru_cache(maxsize=1024)
def whole_ms(timeout_s: float) -> int:
    """Convert a timeout to whole ms; one that is no finite number never passes."""
    ms = timeout_s * 1000
    return int(ms) if -FAR_MS < ms < FAR_MS else FAR_MS
