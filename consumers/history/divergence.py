"""Two rollouts side by side, and where they part.

Compared is what each lived through in its last attempt: model answers by their tokens, environments
by what they showed. A fork's recorded turns count as its own: they stand in its request. The ids of
tool calls are drawn from commands, and so are other ones in every rollout, and other names of all
asks that quote them: what differs by these alone is the same.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from consumers.agents.fork import Missed, Past, Said
from consumers.agents.hosted import AGENT
from consumers.history.rollout_story import Story
from schemas.asks import differences_of
from schemas.errors import WireError
from schemas.messages import CallFailed, EnvironmentStepped, ModelAnswered, RolloutFinished
from schemas.packed import ids_of
from schemas.tool_calls import tool_calls_of

WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened to a rollout; equal moments are the same to it."""

    kind: str
    text: str = field(compare=False)
    token_ids: tuple[int, ...] = ()
    reward: float = 0.0
    ends: bool = False
    session: str = ""
    recorded: bool = field(default=False, compare=False)
    """Whether it stands in a fork's request, not in its journal."""
    tool_calls: str = field(default="", compare=False)
    """What the model called, with ids."""
    neutral: str = ""
    """The text and the calls without what is drawn anew in every rollout."""

    def plain(self) -> dict[str, Any]:
        """As JSON knows it."""
        values = asdict(self)
        del values["tool_calls"], values["neutral"]
        return values


@dataclass(frozen=True, slots=True)
class Parting:
    """What two rollouts have in common, and how each went on."""

    same: tuple[Moment, ...]
    left: tuple[Moment, ...]
    right: tuple[Moment, ...]

    @property
    def turns(self) -> int:
        """Of the common part."""
        return sum(moment.kind == "model" for moment in self.same)

    def plain(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {
            name: [moment.plain() for moment in moments]
            for name, moments in (("same", self.same), ("a", self.left), ("b", self.right))
        }


def parting_of(left: Story, right: Story) -> Parting:
    """Where two rollouts part; with nothing left over where they do not."""
    ours, theirs = (tuple(_neutral(moments_of(story))) for story in (left, right))
    common = next(
        (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    return Parting(ours[:common], ours[common:], theirs[common:])


def moments_of(story: Story) -> Iterator[Moment]:
    """What a rollout lived through, in order; what a fork lived again stands in its place."""
    lived = deque(_lived(story))
    for recorded in past_of(story):
        if isinstance(recorded, Said):
            yield _answer(recorded, recorded=True)
        elif isinstance(recorded, Missed) and not (lived and _is_miss(lived[0], recorded)):
            yield Moment("failed", recorded.code, recorded=True)
        elif lived:
            yield lived.popleft()
    yield from lived


def past_of(story: Story) -> Sequence[object]:
    """What a fork was given of its parent; nothing for what is no fork."""
    request = story.request
    if request is None or request.agent != "fork" or not request.parent_rollout_id:
        return ()
    past = Past.read(request.agent_config)
    return past.recorded if past else ()


def relation(left: Story, right: Story) -> str:
    """What two rollouts have to do with one another, in words; empty for nothing."""
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


def _is_miss(moment: Moment, recorded: Missed) -> bool:
    return (moment.kind, moment.text) == ("failed", recorded.code)


def _answer(said: ModelAnswered | Said, *, recorded: bool = False) -> Moment:
    ids = tuple(ids_of(said.token_ids).tolist())
    return Moment("model", said.text, ids, recorded=recorded, tool_calls=said.tool_calls)


def _neutral(moments: Iterable[Moment]) -> Iterator[Moment]:
    """The same, with numbers for drawn names in the text that is compared: the first that comes up
    in a rollout is 0, whatever it is."""
    numbers: dict[str, str] = {}
    for moment in moments:
        for name in _drawn_in(moment):
            numbers.setdefault(name, f"#{len(numbers)}")
        text = f"{moment.text}\0{moment.tool_calls}"
        named = WORD.sub(lambda found: numbers.get(found[0], found[0]), text) if numbers else text
        yield replace(moment, neutral=named)


def _drawn_in(moment: Moment) -> Iterator[str]:
    """The ids of an answer's tool calls; the names of what an agent's process asks."""
    if moment.kind == "environment" and moment.session == AGENT:
        try:
            yield from (ask.d for ask in differences_of(moment.text))
        except WireError:
            return
    yield from (call.id for call in tool_calls_of(moment.tool_calls) if call.id)
