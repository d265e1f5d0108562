"""Words on `control`: cancel, pause, resume, drain."""

from contextlib import closing
from typing import TYPE_CHECKING, Any

from compose.look import to_the_end
from compose.waiting import look, words_of
from consumers.log import Publisher
from schemas.errors import DeliveryFailed, Refused, WireError
from schemas.headers import full_headers
from schemas.messages import Control, Event, RolloutRequest, RolloutStarted
from schemas.names import hint

if TYPE_CHECKING:
    from compose.cluster import Cluster

FLUSH_S = 30.0
SIGNED_BY = "ce_source"


def cancel(cluster: "Cluster", name: str, reason: str) -> str:
    """Ask for the end of a rollout or a group; raises Refused for an id that nobody knows."""
    open_now = look(cluster)
    words = []
    if name in open_now.rollouts():
        words.append(Control("cancel", rollout_id=name, reason=reason))
    members = open_now.members(name)
    if members:
        words.append(Control("cancel", group_id=name, reason=reason))
    if words:
        for word in words:
            _say(cluster, word, name)
        count = len({name} & open_now.rollouts() | members)
        what = f"{count} open rollouts of group" if members else "rollout"
        return f"asked for the end of {what} {name}; `rollcall waiting` shows who is left"
    rollouts, groups = _known(cluster)
    if name in groups or name in rollouts:
        kind = "every rollout of group" if name in groups else "rollout"
        return f"{kind} {name} has ended already; nothing to cancel"
    near = hint(name, rollouts | groups) if rollouts else "nothing was ever asked for"
    msg = f"no rollout and no group {name!r} in the log; {near}"
    raise Refused(msg)


def _known(cluster: "Cluster") -> tuple[set[str], set[str]]:
    """Every rollout and group that the journal and the requests still tell of."""
    rollouts, groups = set(), set()
    for topic, kind in ((cluster.topics.events, Event), (cluster.topics.requests, RolloutRequest)):
        with closing(cluster.log.reader([topic])) as reader:
            for record in to_the_end(reader):
                if kind is Event and (record.key or b"").decode(errors="replace") in rollouts:
                    continue
                try:
                    found: Any = cluster.codec.decode(record.value, kind)
                except WireError:  # whoever reads it as a group buries it
                    continue
                rollouts.add(found.rollout_id)
                told = found.body if kind is Event else None
                request = told.request if isinstance(told, RolloutStarted) else found
                groups.add(getattr(request, "group_id", ""))
    return rollouts, groups - {""}


def pause(cluster: "Cluster", reason: str) -> str:
    """Have no more requests started."""
    if words_of(cluster).paused:
        return "the agents are paused already"
    _say(cluster, Control("pause", reason=reason), None)
    return "asked the agents to start no more requests; `rollcall resume` lets them go on"


def resume(cluster: "Cluster", reason: str) -> str:
    """Have requests started again."""
    if not words_of(cluster).paused:
        return "the agents are not paused"
    _say(cluster, Control("resume", reason=reason), None)
    return "asked the agents to start requests again"


def drain(cluster: "Cluster", worker: str, reason: str) -> str:
    """Ask one worker to leave; raises Refused for a name that no worker has."""
    known = _workers(cluster)
    if worker not in known:
        near = hint(worker, known) if known else "no worker is up"
        msg = (
            f"no worker {worker!r} in any group, nor a trainer that has announced a version under "
            f"that name; {near}"
        )
        raise Refused(msg)
    _say(cluster, Control("drain", worker=worker, reason=reason), worker)
    return f"asked {worker} to finish what it has in hand and to leave"


def _workers(cluster: "Cluster") -> set[str]:
    """Members of our groups now, and trainers, which are in no group but sign what they write."""
    admin, log = cluster.admin, cluster.log
    names = {member.client_id for member in admin.members(admin.groups(cluster.settings.prefix))}
    with closing(log.reader([cluster.topics.versions])) as reader:
        for record in to_the_end(reader):
            names |= {v.decode() for name, v in record.headers or [] if name == SIGNED_BY}
    return names


def _say(cluster: "Cluster", word: Control, key: str | None) -> None:
    """Write one word and wait for its ack; raises DeliveryFailed."""
    out: Publisher = cluster.log.publisher()
    topic, about = cluster.topics.control, key or word.kind
    headers = full_headers("Control", f"{word.kind}/{about}", "rollcall", about, about)
    out.send(topic, key, cluster.codec.encode(topic, word), headers=headers)
    if out.flush(FLUSH_S):
        msg = f"the {word.kind} was not acked within {FLUSH_S:g} s; it may still arrive"
        raise DeliveryFailed(msg)
