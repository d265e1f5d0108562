"""The counting rule without any program: place in the log, attempt, position and try.

An answer counts if its attempt is the current one and it is the first at its (position, try), where
try is the number of failures counted there. A start counts if it continues the chain of requests.
The rule is implemented separately from the fold, so that the two can be compared.
"""

from dataclasses import dataclass

from rollcall.consumers.agents.fold.attempt import FREE_FAILURES, MOST_BUSY
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.messages import (
    NO_EPOCH,
    AttemptStarted,
    CallFailed,
    DeadlinePassed,
    EnvironmentStepped,
    Event,
    Limits,
    ModelAnswered,
    RolloutCancelled,
    RolloutFinished,
    RolloutRefused,
    RolloutStarted,
)

Start = RolloutStarted | RolloutRefused
STARTS = (RolloutStarted, RolloutRefused)
NOT_OPEN = "the rollout is not open"
JOINED = "the rollout is open already"


@dataclass(slots=True)
class _Position:
    """One position of the current attempt."""

    tries: int = 0
    failures: int = 0
    busy: int = 0
    with_history: bool = False
    settled: bool = False

    def fail(self, body: CallFailed, limits: Limits, attempt: int) -> None:
        if body.code == FailureCode.SESSION_LOST and attempt < limits.max_attempts:
            self.settled = True  # a new attempt follows
            return
        busy = body.code == FailureCode.BUSY and self.busy < MOST_BUSY
        history = body.code in FREE_FAILURES and not self.with_history
        self.busy += busy
        self.failures += not (busy or history)
        self.tries += 1
        self.with_history = self.with_history or history
        self.settled = not body.retriable or self.failures >= limits.max_tries


class Counting:
    """The counting rule for one rollout in one journal partition."""

    def __init__(self) -> None:
        self.open = False
        self.attempt = 0
        self.turns = 0
        """Model answers counted in the current attempt."""
        self.steps = 0
        """Observations counted in the current attempt."""
        self.failures = 0
        self._started: int | None = None
        self._limits = Limits()
        self._places: dict[int, _Position] = {}

    def take(self, event: Event) -> str:
        """Take one event, in log order; return why it does not count, empty if it does."""
        body = event.body
        if isinstance(body, STARTS):
            return self._start(body)
        if not self.open:
            return NOT_OPEN
        if isinstance(body, AttemptStarted):
            return self._new_attempt(event.attempt)
        if isinstance(body, (RolloutCancelled, DeadlinePassed)):
            self.open = False
            return ""
        if event.attempt != self.attempt:
            return f"of attempt {event.attempt}, while {self.attempt} was current"
        if isinstance(body, RolloutFinished):
            self.open = False
            return ""
        return self._answer(event, body)

    def _start(self, body: Start) -> str:
        if self._started is not None and body.request_offset <= self._started:
            return "its request was started before"
        self._started = body.request_offset
        if self.open:
            return JOINED
        self.open = isinstance(body, RolloutStarted)
        self._begin(1)
        self._limits = body.request.limits if body.request else Limits()
        return ""

    def _new_attempt(self, attempt: int) -> str:
        if attempt != self.attempt + 1:
            return f"attempt {self.attempt} was current"
        self._begin(attempt)
        return ""

    def _begin(self, attempt: int) -> None:
        self.attempt, self.turns, self.steps, self.failures = attempt, 0, 0, 0
        self._places.clear()

    def _answer(self, event: Event, body: ModelAnswered | EnvironmentStepped | CallFailed) -> str:
        place = self._places.setdefault(event.position, _Position())
        if place.settled:
            return "answered already"
        if event.tries != place.tries:
            return f"of try {event.tries}, while {place.tries} was current"
        if isinstance(body, CallFailed):
            before = place.failures
            place.fail(body, self._limits, self.attempt)
            self.failures += place.failures - before
        else:
            place.settled = True
            by_model = isinstance(body, ModelAnswered)
            self.turns += by_model
            self.steps += not by_model
        return ""


class CountingRule:
    """The counting rule for one journal partition."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        """The last counted request offset; None if none has been counted."""
        self._epoch = NO_EPOCH
        self._requests: list[str] = []
        """Ids of the requests' topic, as stated by starts, the present one last."""
        self.open: dict[str, Counting] = {}

    def take(self, event: Event) -> str:
        """Take one event, in log order; return why it does not count, empty if it does."""
        body = event.body
        if isinstance(body, STARTS):
            return self._start(event, body)
        counting = self.open.get(event.rollout_id)
        if counting is None:
            return NOT_OPEN
        ignored = counting.take(event)
        if not counting.open:
            del self.open[event.rollout_id]
        return ignored

    def _start(self, event: Event, body: Start) -> str:
        if self._is_out_of_turn(body):
            return f"its request is {body.request_offset}, the last one started {self.last}"
        self.last, self._epoch = body.request_offset, body.request_epoch
        if body.requests_id and body.requests_id not in self._requests:
            self._requests.append(body.requests_id)
        if event.rollout_id in self.open:
            return JOINED
        counting = Counting()
        counting.take(event)
        if counting.open:
            self.open[event.rollout_id] = counting
        return ""

    def _is_out_of_turn(self, body: Start) -> bool:
        """Return True if a request is not the next one."""
        if body.requests_id and body.requests_id in self._requests[:-1]:
            return True
        # In another incarnation of the topic, offsets are not comparable; the first start counts.
        if self.last is None or (
            body.requests_id and self._requests and body.requests_id != self._requests[-1]
        ):
            return False
        if body.from_offset > self.last + 1:
            return True
        # A later leader may have replaced the records at offsets that were started.
        if NO_EPOCH not in (body.request_epoch, self._epoch) and body.request_epoch != self._epoch:
            return body.request_epoch < self._epoch
        return body.request_offset <= self.last
