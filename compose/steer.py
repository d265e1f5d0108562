"""Words on `control`: cancel, pause, resume, drain."""

from contextlib import closing
from typing import TYPE_CHECKING

from compose.waiting import known, look, words_of
from consumers.log.reading import to_the_end
from producers.publisher import Publisher
from schemas.errors import DeliveryFailed, Refused
from schemas.headers import full_headers
from schemas.messages import Control
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
    if name in known(cluster, name).groups:
        return f"every rollout of group {name} has ended already; nothing to cancel"
    return f"rollout {name} has ended already; nothing to cancel"


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
    workers = _workers(cluster)
    if worker not in workers:
        near = hint(worker, workers) if workers else "no worker is up"
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
    groups = [name for name in log.group_names() if name.startswith(cluster.settings.prefix)]
    names = {member.client_id for member in admin.members(groups)}
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
