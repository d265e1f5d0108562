"""Every id that the journal and the requests still tell of."""

from dataclasses import dataclass
from typing import Any

from consumers.history.history import History
from consumers.log.reading import read_all
from schemas.as_json import text_of
from schemas.errors import Refused, WireError
from schemas.messages import Event, RolloutRequest, RolloutStarted
from schemas.names import nearest


@dataclass(frozen=True, slots=True)
class KnownIds:
    """Of rollouts and of groups."""

    rollouts: set[str]
    groups: set[str]


def known_ids(history: History, name: str) -> KnownIds:
    """Who there ever was; raises Refused where `name` is neither a rollout nor a group."""
    rollouts: set[str] = set()
    groups: set[str] = set()
    topics = history.topics
    for topic, kind in ((topics.events, Event), (topics.requests, RolloutRequest)):
        for record in read_all(history.log, [topic]):
            if text_of(record.key) in rollouts:
                continue
            try:
                message: Any = history.codec.decode(record.value, kind)
            except WireError:  # whoever reads it as a group buries it
                continue
            rollouts.add(message.rollout_id)
            body = message.body if kind is Event else None
            request = body.request if isinstance(body, RolloutStarted) else message
            groups.add(getattr(request, "group_id", ""))
    if name not in rollouts | groups - {""}:
        near = nearest(name, rollouts | groups)
        mean = f"did you mean {near!r}?" if near else f"it holds {len(rollouts):,} rollouts"
        msg = f"no rollout and no group {name!r} in the log; {mean}"
        raise Refused(msg)
    return KnownIds(rollouts, groups)
