"""Two rollouts side by side, and where they part.

Compared is what each lived through in its last attempt: model answers by their tokens, environments
by what they showed. A fork's recorded turns count as its own: they stand in its request.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from consumers.agents.fork import Missed, Past, Said
from consumers.history.rollout_story import Story
from schemas.messages import CallFailed, EnvironmentStepped, ModelAnswered, RolloutFinished
from schemas.packed import ids_of


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened to a rollout; equal moments are the same to it."""

    kind: str
    text: str
    token_ids: tuple[int, ...] = ()
    reward: float = 0.0
    ends: bool = False
    session: str = ""
    recorded: bool = field(default=False, compare=False)
    """Whether it stands in a fork's request, not in its journal."""


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
            name: [asdict(moment) for moment in moments]
            for name, moments in (("same", self.same), ("a", self.left), ("b", self.right))
        }


def parting_of(left: Story, right: Story) -> Parting:
    """Where two rollouts part; with nothing left over where they do not."""
    ours, theirs = tuple(moments_of(left)), tuple(moments_of(right))
    common = next(
        (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    return Parting(ours[:common], ours[common:], theirs[common:])


def moments_of(story: Story) -> Iterator[Moment]:
    """What a rollout lived through, in order; what a fork lived again stands in its place."""
    lived = deque(_lived(story))
    for recorded in past_of(story):
        missed = isinstance(recorded, Missed) and Moment("failed", recorded.code, recorded=True)
        if isinstance(recorded, Said):
            yield _answer(recorded.text, recorded.token_ids, recorded=True)
        elif missed and missed not in list(lived)[:1]:
            yield missed
        elif lived:
            yield lived.popleft()
    yield from lived


def past_of(story: Story) -> Sequence[object]:
    """What a fork was given of its parent; nothing for what is no fork."""
    request = story.request
    if request is None or request.agent != "fork" or not request.parent_rollout_id:
        return ()
    return Past.of(json.loads(request.agent_config)).recorded


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
            yield _answer(body.text, body.token_ids)
        elif isinstance(body, EnvironmentStepped):
            ends = body.terminated or body.truncated
            yield Moment("environment", body.text, (), body.reward, ends, body.session)
        elif isinstance(body, CallFailed):
            yield Moment("failed", body.code)
        elif isinstance(body, RolloutFinished):
            yield Moment(body.status, body.code or body.result)


def _answer(text: str, token_ids: bytes, *, recorded: bool = False) -> Moment:
    return Moment("model", text, tuple(ids_of(token_ids).tolist()), recorded=recorded)
