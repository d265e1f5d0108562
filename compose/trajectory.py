"""`rollcall trajectory`: one rollout as its journal tells it, or two of them side by side."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from compose.look import iso, journal_of, scored_of
from compose.telling import parted, told
from compose.terminal import page, quiet_pipes
from consumers.history.divergence import parting_of, relation
from consumers.history.rollout_story import Story, latest, stories
from consumers.history.timing import timers_of
from schemas.as_json import plain
from schemas.errors import Refused
from schemas.messages import ScoredTrajectory

if TYPE_CHECKING:
    from compose.cluster import Cluster


def show_trajectory(
    cluster: "Cluster", rollout_id: str, *, tokens: bool = False, as_json: bool = False
) -> None:
    """Print what happened in a rollout, whatever its state; raises Refused for an unknown one.

    An id may have been used again once its rollout had ended; then both are shown.
    """
    found = stories(rollout_id, journal_of(cluster, rollout_id), cluster.codec)
    scored = [scored_of(cluster, story) if story.end else [] for story in found]
    both = list(zip(found, scored, strict=True))
    if as_json:
        _say(orjson.dumps({"rollouts": [_plain(*each) for each in both]}).decode())
    else:
        with page() as terminal:
            for story, rewards in both:
                terminal.print(told(story, rewards, tokens=tokens))


def show_difference(cluster: "Cluster", first: str, second: str, *, as_json: bool = False) -> None:
    """Print where two rollouts part, the last of each id; raises Refused for an unknown one."""
    if first == second:
        msg = f"--diff compares two rollouts, found {first!r} twice"
        raise Refused(msg)
    left, right = (
        latest(stories(name, journal_of(cluster, name), cluster.codec)) for name in (first, second)
    )
    parting, how = parting_of(left, right), relation(left, right)
    if as_json:
        _say(orjson.dumps({"relation": how} | parting.plain()).decode())
    else:
        with page() as terminal:
            terminal.print(parted(left, right, parting, how))


def _plain(story: Story, scored: Iterable[ScoredTrajectory]) -> dict[str, Any]:
    """All of a story, as JSON knows it."""
    return {
        "rollout_id": story.rollout_id,
        "partition": story.partition,
        "request": plain(story.request) if story.request else None,
        "events": [
            {
                "offset": entry.offset,
                "time": iso(entry.at_ms),
                "ignored": entry.ignored,
                "event": plain(entry.event) if entry.event else None,
            }
            for entry in story.entries
        ],
        "ended": story.end is not None,
        "seconds": asdict(timers_of(story)),
        "scored": [
            {
                "scoring_id": each.scoring_id,
                "total": each.total,
                "reason": each.reason,
                "rewards": [plain(reward) for reward in each.rewards],
            }
            for each in scored
        ],
    }


def _say(text: str) -> None:
    with quiet_pipes():
        print(text)
