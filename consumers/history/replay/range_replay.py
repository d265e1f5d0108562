"""Publishes a range again, as requests or as trajectories; without `yes` nothing is written.

A request's new id is `replay/NAME/DIGEST`, with the digest of the old id and the replay's name. So
the same replay done twice asks for the same rollouts, and the keys of the topic show which were
asked for before. Results of a replay are recognised by their id alone: under the same name they are
not published again, in whatever range they are; under another name they are requests like any
other. A replayed request has the same task, policy, sampling and seed. Its run and group are the
replay's own, so that no run takes it for its own and no group gets more members than it should.

Trajectories are written unchanged to their original partition, where the first of each rollout
counts.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.reading.ranges import Range
from rollcall.consumers.history.reading.record_lines import topic_named
from rollcall.consumers.history.reading.selection import Selection, keys
from rollcall.producers.publisher import Publisher, flush_all
from rollcall.producers.submit import Submitter
from rollcall.schemas.atomic_files import atomic_path
from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import RolloutRequest
from rollcall.schemas.names import unknown_name

MARK = "replay/"
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


REPLAY_FLUSH_S = 60.0
FIRST_IDS = 5
"""The number of example ids that are kept."""
FILE = ".jsonl"

RequestSink = Callable[[RolloutRequest], None]
"""Takes requests to publish again."""


@dataclass(slots=True)
class RangeReplay:
    """The records that were, or would be, written."""

    what: str
    to: str
    written: int = 0
    before: int = 0
    """Requests that a replay of this name published before."""
    own: int = 0
    """Requests in the range that a replay of this name made."""
    kinds: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Counts by original run, policy and purpose."""
    first: list[tuple[str, str]] = field(default_factory=list)
    """Old and new ids of the first ones."""

    def note(self, request: RolloutRequest | None, old: str, new: str) -> None:
        self.written += 1
        if request:
            self.kinds[request.run_id, request.policy_id, request.purpose] += 1
        if len(self.first) < FIRST_IDS:
            self.first.append((old, new))


def replay(
    selection: Selection,
    to: str,
    check: RequestSink,
    *,
    name: str = "",
    of: str = "",
    yes: bool = False,
) -> RangeReplay:
    """Write a range again; raises Refused before anything is written.

    `to` is a topic or a new file, `of` the kind of records that the range selects: requests, or
    trajectories whose requests are published again. `check` refuses a request that would fail; a
    file is checked when it is submitted.
    """
    history = selection.history
    topic, file = _destination(history, to)
    if of not in ("", "requests", "trajectories"):
        raise unknown_name("kind of record", of, ["requests", "trajectories"])
    if topic == history.topics.trajectories:
        if name or of == "requests":
            msg = "trajectories are written as they are: --to trajectories goes without --name"
            raise Refused(msg)
        return _trajectories(selection, topic, yes=yes)
    if not name:
        msg = "requests get new ids, digests of the old one and the replay's name; give --name"
        raise Refused(msg)
    name, kind = checked_name(name), of or "requests"
    handle = check if file is None else lambda request: None
    result = _requests(selection, kind, name, file, handle)
    if yes:  # all requests passed the check
        with _sink(history, file) as write:
            result = _requests(selection, kind, name, file, write)
    return result


def _destination(history: History, to: str) -> tuple[str, Path | None]:
    """Return a topic, or a file that does not exist yet."""
    if to.endswith(FILE):
        path = Path(to)
        if path.exists() or not path.parent.is_dir():
            reason = "is there already" if path.exists() else f"has no directory {path.parent}"
            msg = f"--to {to} {reason}; name a new file"
            raise Refused(msg)
        return "", path
    topic, topics = topic_named(history, to), history.topics
    if topic not in (topics.requests, topics.trajectories):
        msg = (
            f"--to {to}: requests go to {topics.requests} or a file named *{FILE}, trajectories to "
            f"{topics.trajectories}"
        )
        raise Refused(msg)
    return topic, None


def _requests_in(selection: Selection, of: str) -> Iterator[RolloutRequest]:
    """Return the requests of a range, or those of the trajectories in it."""
    if of == "requests":
        return (request for _, request in selection.requests())
    trajectories = selection.trajectories()
    return (trajectory.request for _, trajectory in trajectories if trajectory.request)


def _requests(
    selection: Selection, of: str, name: str, file: Path | None, handle: RequestSink
) -> RangeReplay:
    """Pass the requests to publish to `handle`, which checks or writes them."""
    history = selection.history
    result = RangeReplay("requests", str(file) if file else history.topics.requests)
    known = set[str]()
    if not file:
        names = keys(history.log, history.topics.requests, Range())
        known = {key for key in names if is_replayed(key, name)}
    for request in _requests_in(selection, of):
        again = replayed(request, name)
        if is_replayed(request.rollout_id, name):
            result.own += 1
        elif again.rollout_id in known:
            result.before += 1
        else:
            handle(again)
            result.note(request, request.rollout_id, again.rollout_id)
    return result


@contextmanager
def _sink(history: History, file: Path | None) -> Iterator[RequestSink]:
    """Provide the destination of requests: a file that appears only when complete, or the topic."""
    if file:
        with atomic_path(file) as hidden, hidden.open("wb") as out:
            yield lambda request: out.writelines((line_of(request), b"\n"))
        return
    publisher = history.log.publisher()
    submitter = Submitter(publisher, history.codec, history.topics, source="replay")

    def publish(request: RolloutRequest) -> None:
        submitter.publish(request)
        publisher.poll()

    yield publish
    _flush(publisher)


def _trajectories(selection: Selection, topic: str, *, yes: bool) -> RangeReplay:
    result = RangeReplay("trajectories", topic)
    publisher = selection.history.log.publisher(bulk=True)
    for record, trajectory in selection.trajectories():
        if yes:
            publisher.send(
                topic, record.key, record.value, partition=record.partition, headers=record.headers
            )
            publisher.poll()
        result.note(trajectory.request, trajectory.rollout_id, trajectory.rollout_id)
    _flush(publisher)
    return result


def _flush(publisher: Publisher) -> None:
    flush_all(publisher, REPLAY_FLUSH_S, "records", "it is safe to do it again")


def checked_name(name: str) -> str:
    """Return the name. Raises Refused if it cannot be part of an id."""
    if not NAME.fullmatch(name):
        msg = f"--name {name!r} must be 1-64 of A-Z a-z 0-9 . _ -; it becomes part of ids"
        raise Refused(msg)
    return name


def replayed_id(old: str, name: str) -> str:
    return f"{MARK}{name}/{digest('replay', old, name).hex()}"


def is_replayed(rollout_id: str, name: str) -> bool:
    """Return True if an id was made by a replay of this name."""
    return rollout_id.startswith(f"{MARK}{name}/")


def replayed(request: RolloutRequest, name: str) -> RolloutRequest:
    """Return the request that asks for the same again."""
    return dataclasses.replace(
        request,
        rollout_id=replayed_id(request.rollout_id, name),
        run_id=f"{MARK}{name}",
        group_id=replayed_id(request.group_id, name) if request.group_id else "",
        sampling_seed=request.seed_key,
        scorings=(),
    )


def line_of(request: RolloutRequest) -> bytes:
    """Return a line of JSON that `rollcall submit` reads as the same request."""
    values = dataclasses.asdict(request)
    del values["claim"]
    return orjson.dumps(values)
