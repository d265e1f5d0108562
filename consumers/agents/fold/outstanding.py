"""One wish whose answer has not been counted yet: which answer fits it, and until when."""

from dataclasses import dataclass
from functools import lru_cache

from consumers.agents.fold.conversation import Conversation
from consumers.agents.wishes import CallModel, Wish
from schemas.messages import CallFailed, Event, Message, ModelAnswered, Sampling

PATIENCE = 2.5
"""In timeouts of a command: one to be begun in, one to be carried out in, half for the ways. Were
its owner to give up when it may just be begun, a full server would work for nobody."""
FAR_MS = 10**13
"""Three hundred years: a timeout beyond is as good as none, and fits every clock."""


@dataclass(slots=True)
class Outstanding:
    """One wish whose answer has not been counted yet."""

    wish: Wish
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
    """By servers that were full."""
    with_history: bool = False
    """Whether all there is was asked for and is sent."""
    deadline_written: bool = False
    """Forgotten in a crash, harmlessly."""

    def fits(self, event: Event) -> bool:
        """Whether the event answers just this wish and try."""
        if event.body_digest != self.digest or event.tries > self.tries:
            return False
        of_model = isinstance(event.body, ModelAnswered)
        return of_model == isinstance(self.wish, CallModel) or isinstance(event.body, CallFailed)

    def not_after_ms(self) -> int:
        """When it is too late to begin with this wish."""
        return self.opened_ms + whole_ms(self.timeout_s)

    def deadline_ms(self) -> int:
        """When it is too late for an answer to this wish."""
        return self.opened_ms + whole_ms(PATIENCE * self.timeout_s)

    def try_again(self, now_ms: int) -> None:
        self.tries += 1
        self.opened_ms = now_ms
        self.deadline_written = False


@lru_cache(maxsize=1024)
def whole_ms(timeout_s: float) -> int:
    """A timeout as the clock of the log counts; what is no number of seconds never passes."""
    ms = timeout_s * 1000
    return int(ms) if -FAR_MS < ms < FAR_MS else FAR_MS
