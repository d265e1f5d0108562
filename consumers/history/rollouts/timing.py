"""The division of a rollout's time, from the append times of its journal alone.

Every interval between two counted events belongs to one timer, that of the later event, so the four
timers add up to the whole. The journal does not record when a server took up a call: queueing is
part of `model`, as is the worker's own time between an event and its command.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rollcall.consumers.agents.fold.phases import AttemptPhases
from rollcall.consumers.history.rollouts.rollout_story import Entry, Story
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.messages import (
    CallFailed,
    EnvironmentStepped,
    ModelAnswered,
    RolloutStarted,
    RolloutTimers,
)

MODEL = "model"
ENVIRONMENT = "environment"
WAITING = "waiting_for_model"
OVERHEAD = "overhead"
OF_MODELS = {
    FailureCode.PREFIX_NEEDED,
    FailureCode.TOO_LONG,
    FailureCode.BAD_SAMPLING,
    FailureCode.BAD_PREFIX,
    FailureCode.NOT_RENDERABLE,
    FailureCode.NOT_FINITE,
}
OF_ENVIRONMENTS = {
    FailureCode.BAD_CONFIG,
    FailureCode.BAD_HISTORY,
    FailureCode.BOX_DIED,
    FailureCode.BOX_UNAVAILABLE,
    FailureCode.EPISODE_OVER,
    FailureCode.HISTORY_NEEDED,
    FailureCode.RAISED,
    FailureCode.SESSION_LOST,
    FailureCode.STALE_ATTEMPT,
    FailureCode.UNKNOWN_ENVIRONMENT,
    FailureCode.UNKNOWN_KIND,
}
"""Codes that attribute a failure if its position never got an answer."""


@dataclass(frozen=True, slots=True)
class Timers:
    """Seconds, from the start to the end, or to the last event so far."""

    waiting_for_model: float = 0.0
    """In tries of model calls that brought no answer."""
    model: float = 0.0
    """From the previous event to the model's answer: queue and sampling."""
    environment: float = 0.0
    """From the previous event to the environment's observation, failed tries included."""
    overhead: float = 0.0
    """Decisions in transit through the journal, and failures that cannot be attributed."""


def timers_of(story: Story) -> Timers:
    """Return the story's timers, each interval given to the event that ended it."""
    timers = Timers()
    before = story.started_ms
    for entry in story.counted():
        timer = _timer(entry, story)
        spent = (entry.at_ms - before) / 1000
        timers = replace(timers, **{timer: getattr(timers, timer) + spent})
        before = entry.at_ms
    return timers


def phases_of(story: Story) -> RolloutTimers | None:
    """Return the phases of its last attempt, like its trajectory; so far, while it is open."""
    start = story.entries[0].event
    body = start.body if start else None
    entries = story.last_attempt()
    if not entries or not isinstance(body, RolloutStarted):
        return None
    phases = AttemptPhases(entries[0].at_ms)
    for entry in entries:
        if entry.event is not None and isinstance(entry.event.body, EnvironmentStepped):
            phases.observe(entry.event.body, entry.at_ms)
    return phases.timers(body.requested_ms, story.started_ms, entries[-1].at_ms)


def _timer(entry: Entry, story: Story) -> str:
    body = entry.event.body if entry.event else None
    if isinstance(body, ModelAnswered):
        return MODEL
    if isinstance(body, EnvironmentStepped):
        return ENVIRONMENT
    if isinstance(body, CallFailed):
        return next(_whose(entry, story), OVERHEAD)
    return OVERHEAD


def _whose(failed: Entry, story: Story) -> Iterator[str]:
    """Yield the timer of a failure: by the answer at its position, else by the codes there."""
    assert failed.event is not None
    place = failed.event.attempt, failed.event.position
    there = [
        entry.event.body
        for entry in story.entries
        if entry.event and (entry.event.attempt, entry.event.position) == place
    ]
    for body in there:
        if isinstance(body, ModelAnswered):
            yield WAITING
        if isinstance(body, EnvironmentStepped):
            yield ENVIRONMENT
    codes = {body.code for body in there if isinstance(body, CallFailed)}
    if codes & OF_MODELS:
        yield WAITING
    if codes & OF_ENVIRONMENTS:
        yield ENVIRONMENT
