"""`rollcall replay`: publish a range again, as requests or as trajectories.

Requests get ids of their own (`producers.replay`), so doing it twice asks once; trajectories go to
the partition they came from as they are, where the first of each rollout counts. Without `yes`
nothing is written.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.history.ranges import Range
from consumers.history.record_lines import topic_named
from consumers.history.selection import Selection, keys
from consumers.log.protocols import Record
from consumers.request_checks import RequestChecks
from producers.publisher import Publisher, flush_all
from producers.replay import checked_name, is_replayed, line_of, replayed
from producers.submit import Submitter
from schemas.errors import Refused
from schemas.messages import RolloutRequest
from schemas.names import unknown
from schemas.whole_files import appearing

if TYPE_CHECKING:
    from compose.cluster import Cluster

FLUSH_S = 60.0
SHOWN = 5
FILE = ".jsonl"

Sink = Callable[[RolloutRequest], None]


@dataclass(slots=True)
class Replayed:
    """What was, or would be, written."""

    what: str
    to: str
    written: int = 0
    before: int = 0
    """Requests that a replay of this name asked for before."""
    own: int = 0
    """Requests in the range that a replay of this name made."""
    kinds: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By run, policy and purpose as they were."""
    first: list[tuple[str, str]] = field(default_factory=list)
    """Old and new ids."""

    def note(self, request: RolloutRequest | None, old: str, new: str) -> None:
        self.written += 1
        if request:
            self.kinds[request.run_id, request.policy_id, request.purpose] += 1
        if len(self.first) < SHOWN:
            self.first.append((old, new))


def replay(
    cluster: "Cluster",
    selection: Selection,
    to: str,
    *,
    name: str = "",
    of: str = "",
    yes: bool = False,
) -> Replayed:
    """Write a range again; raises Refused before anything is written.

    `of` says what the range names: requests, or trajectories whose requests are asked again.
    """
    topic, file = _destination(cluster, to)
    if of not in ("", "requests", "trajectories"):
        raise unknown("kind of record", of, ["requests", "trajectories"])
    if topic == cluster.topics.trajectories:
        if name or of == "requests":
            msg = "trajectories are written as they are: --to trajectories goes without --name"
            raise Refused(msg)
        return _trajectories(selection, topic, yes=yes)
    if not name:
        msg = "requests get new ids, digests of the old one and the replay's name; give --name"
        raise Refused(msg)
    name, kind = checked_name(name), of or "requests"
    found = _requests(cluster, _asked(selection, kind), name, file)
    if yes:  # all of them were found good
        with _sink(cluster, file) as write:
            asked = _asked(selection, kind)
            found = _requests(cluster, asked, name, file, write)
    return found


def _destination(cluster: "Cluster", to: str) -> tuple[str, Path | None]:
    """A topic, or a file that is not there yet."""
    if to.endswith(FILE):
        path = Path(to)
        if path.exists() or not path.parent.is_dir():
            found = "is there already" if path.exists() else f"has no directory {path.parent}"
            msg = f"--to {to} {found}; name a new file"
            raise Refused(msg)
        return "", path
    topic, topics = topic_named(cluster, to), cluster.topics
    if topic not in (topics.requests, topics.trajectories):
        msg = (
            f"--to {to}: requests go to {topics.requests} or a file named *{FILE}, trajectories to "
            f"{topics.trajectories}"
        )
        raise Refused(msg)
    return topic, None


def _asked(selection: Selection, of: str) -> Iterator[RolloutRequest]:
    """The requests of a range, or those of the trajectories in it."""
    if of == "requests":
        return (request for _, request in selection.requests())
    trajectories = selection.trajectories()
    return (trajectory.request for _, trajectory in trajectories if trajectory.request)


def _requests(
    cluster: "Cluster",
    asked: Iterator[RolloutRequest],
    name: str,
    file: Path | None,
    write: Sink | None = None,
) -> Replayed:
    """Check what would be asked for again, or write it where there is a sink."""
    found = Replayed("requests", str(file) if file else cluster.topics.requests)
    there = set[str]()
    if not file:
        known = keys(cluster.log, cluster.topics.requests, Range())
        there = {key for key in known if is_replayed(key, name)}
    take = write or (_unchecked if file else RequestChecks(cluster).check)
    for request in asked:
        again = replayed(request, name)
        if is_replayed(request.rollout_id, name):
            found.own += 1
        elif again.rollout_id in there:
            found.before += 1
        else:
            take(again)
            found.note(request, request.rollout_id, again.rollout_id)
    return found


def _unchecked(request: RolloutRequest) -> None:
    """A file is checked when it is submitted."""


@contextmanager
def _sink(cluster: "Cluster", file: Path | None) -> Iterator[Sink]:
    """Where requests go: into a file that is there whole or not at all, or to the topic."""
    if file:
        with appearing(file) as hidden, hidden.open("wb") as out:
            yield lambda request: _write_line(out.write, request)
        return
    publisher = cluster.log.publisher()
    submitter = Submitter(publisher, cluster.codec, cluster.topics, source="replay")

    def publish(request: RolloutRequest) -> None:
        submitter.publish(request)
        publisher.poll()

    yield publish
    _flush(publisher)


def _write_line(write: Callable[[bytes], int], request: RolloutRequest) -> None:
    write(line_of(request) + b"\n")


def _trajectories(selection: Selection, topic: str, *, yes: bool) -> Replayed:
    found = Replayed("trajectories", topic)
    publisher = selection.history.log.publisher(bulk=True)
    for record, trajectory in selection.trajectories():
        if yes:
            _again(publisher, record)
        found.note(trajectory.request, trajectory.rollout_id, trajectory.rollout_id)
    _flush(publisher)
    return found


def _again(publisher: Publisher, record: Record) -> None:
    publisher.send(
        record.topic,
        record.key,
        record.value,
        partition=record.partition,
        headers=record.headers,
    )
    publisher.poll()


def _flush(publisher: Publisher) -> None:
    flush_all(publisher, FLUSH_S, "records", "it is safe to do it again")


def lines(found: Replayed, *, yes: bool) -> Iterator[str]:
    """What was done, or would be, for people."""
    done = "written" if yes else "would be written"
    yield f"{found.written:,} {found.what} {done} to {found.to}"
    for (run_id, policy_id, purpose), count in sorted(found.kinds.items()):
        yield f"  {count:,} of run {run_id or '(none)'}, policy {policy_id}, purpose {purpose}"
    for old, new in found.first:
        yield f"  {old} -> {new}" if old != new else f"  {old}"
    if found.written > len(found.first):
        yield f"  and {found.written - len(found.first):,} more"
    if found.before:
        yield f"{found.before:,} passed over: this replay asked for them before"
    if found.own:
        yield f"{found.own:,} passed over: this replay made them itself"
    if not yes:
        yield "nothing was written; --yes does it"
