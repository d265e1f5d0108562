"""Known names: ids that the journal and the requests still contain, and workers."""

from typing import Any

from rollcall.consumers.history.reading.history import History, LiveHistory
from rollcall.consumers.log.reading import read_all
from rollcall.schemas.as_json import text_of
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.messages import Event, RolloutRequest, RolloutStarted
from rollcall.schemas.names import nearest

SIGNED_BY = "ce_source"


def require_known(history: History, name: str) -> bool:
    """Return True for the name of a group, False for that of a rollout;
    raises Refused for any other."""
    rollouts: set[str] = set()
    groups: set[str] = set()
    topics = history.topics
    for topic, kind in ((topics.events, Event), (topics.requests, RolloutRequest)):
        for record in read_all(history.log, [topic]):
            if text_of(record.key) in rollouts:
                continue
            try:
                message: Any = history.codec.decode(record.value, kind)
            except WireError:  # a reader in a group buries it
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
    return name in groups


def worker_names(history: LiveHistory) -> set[str]:
    """Return members of our groups, and trainers, which are in no group but sign their records.

    Raises Unavailable.
    """
    log, topics = history.log, history.topics
    groups = [name for name in log.group_names() if name.startswith(topics.prefix)]
    names = {member.client_id for member in history.admin.members(groups)}
    for record in read_all(log, [topics.versions]):
        names |= {v.decode() for name, v in record.headers or [] if name == SIGNED_BY and v}
    return names
