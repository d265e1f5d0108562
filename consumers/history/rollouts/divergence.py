"""Compares two rollouts and finds the point at which they diverge.

The comparison covers the last attempt of each: model answers by their tokens, environments by their
observations. A fork's recorded turns, which its request holds, count as its own. Ids of tool calls
are derived from commands, so they differ between rollouts, and with them the names of all requests
that quote them: differences in these ids alone are ignored.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rollcall.consumers.agents.fork import Past, RecordedAnswer, RecordedFailure
from rollcall.consumers.agents.hosted import AGENT
from rollcall.consumers.history.rollouts.rollout_story import Story
from rollcall.schemas.agent_requests import differences_of
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import CallFailed, EnvironmentStepped, ModelAnswered, RolloutFinished
from rollcall.schemas.packed import ids_of
from rollcall.schemas.tool_calls import tool_calls_of

WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of a rollout; equal moments have the same effect on it."""

    kind: str
    text: str = field(compare=False)
    token_ids: tuple[int, ...] = ()
    reward: float = 0.0
    ends: bool = False
    session: str = ""
    recorded: bool = field(default=False, compare=False)
    """True if it is from a fork's request, not from its journal."""
    tool_calls: str = field(default="", compare=False)
    """The model's tool calls, with ids."""
    neutral: str = ""
    """The text and the calls, with generated ids replaced by numbers."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        values = asdict(self)
        del values["tool_calls"], values["neutral"]
        return values


@dataclass(frozen=True, slots=True)
class Divergence:
    """The common part of two rollouts, and the rest of each."""

    same: tuple[Moment, ...]
    left: tuple[Moment, ...]
    right: tuple[Moment, ...]

    @property
    def turns(self) -> int:
        """The number of model answers in the common part."""
        return sum(moment.kind == "model" for moment in self.same)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            name: [moment.plain() for moment in moments]
            for name, moments in (("same", self.same), ("a", self.left), ("b", self.right))
        }


def find_divergence(left: Story, right: Story) -> Divergence:
    """Return the point at which two rollouts diverge; both rests are empty if they do not."""
    ours, theirs = (tuple(_neutral(moments_of(story))) for story in (left, right))
    common = next(
        (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    return Divergence(ours[:common], ours[common:], theirs[common:])


def moments_of(story: Story) -> Iterator[Moment]:
    """Yield a rollout's moments in order; those that a fork replayed are in their places."""
    lived = deque(_lived(story))
    for recorded in past_of(story):
        if isinstance(recorded, RecordedAnswer):
            yield _answer(recorded, recorded=True)
        elif isinstance(recorded, RecordedFailure) and not (lived and _is_miss(lived[0], recorded)):
            yield Moment("failed", recorded.code, recorded=True)
        elif lived:
            yield lived.popleft()
    yield from lived


def past_of(story: Story) -> Sequence[object]:
    """Return the recorded moments that a fork was given; empty for other rollouts."""
    request = story.request
    if request is None or request.agent != "fork" or not request.parent_rollout_id:
        return ()
    past = Past.read(request.agent_config)
    return past.recorded if past else ()


def relation(left: Story, right: Story) -> str:
    """Describe the relation of two rollouts; empty if there is none."""
    a, b = left.request, right.request
    if a is None or b is None:
        return ""
    if a.parent_rollout_id == b.rollout_id:
        return f"the first is a fork of the second, from its position {a.parent_position}"
    if b.parent_rollout_id == a.rollout_id:
        return f"the second is a fork of the first, from its position {b.parent_position}"
    if a.parent_rollout_id and a.parent_rollout_id == b.parent_rollout_id:
        return f"both are forks of {a.parent_rollout_id}"
    return f"both are of group {a.group_id}" if a.group_id and a.group_id == b.group_id else ""


def _lived(story: Story) -> Iterator[Moment]:
    for body in (event.body for event in story.outcomes()):
        if isinstance(body, ModelAnswered):
            yield _answer(body)
        elif isinstance(body, EnvironmentStepped):
            ends = body.terminated or body.truncated
            yield Moment("environment", body.text, (), body.reward, ends, body.session)
        elif isinstance(body, CallFailed):
            yield Moment("failed", body.code)
        elif isinstance(body, RolloutFinished):
            yield Moment(body.status, body.code or body.result)


def _is_miss(moment: Moment, recorded: RecordedFailure) -> bool:
    return (moment.kind, moment.text) == ("failed", recorded.code)


def _answer(said: ModelAnswered | RecordedAnswer, *, recorded: bool = False) -> Moment:
    ids = tuple(ids_of(said.token_ids).tolist())
    return Moment("model", said.text, ids, recorded=recorded, tool_calls=said.tool_calls)


def _neutral(moments: Iterable[Moment]) -> Iterator[Moment]:
    """Replace generated ids in the compared text by numbers, in the order in which
    they occur in the rollout."""
    numbers: dict[str, str] = {}
    for moment in moments:
        for name in _drawn_in(moment):
            numbers.setdefault(name, f"#{len(numbers)}")
        text = f"{moment.text}\0{moment.tool_calls}"
        named = WORD.sub(lambda found: numbers.get(found[0], found[0]), text) if numbers else text
        yield replace(moment, neutral=named)


def _drawn_in(moment: Moment) -> Iterator[str]:
    """Yield the ids of an answer's tool calls, and the names of requests of an agent's process."""
    if moment.kind == "environment" and moment.session == AGENT:
        try:
            yield from (asked.d for asked in differences_of(moment.text))
        except WireError:
            return
    yield from (call.id for call in tool_calls_of(moment.tool_calls) if call.id)
