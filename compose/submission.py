"""Requests from the command line: checked to the last line, published, watched until scored."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from rich.console import Console
from rich.live import Live

from compose.progress import Progress, Row
from consumers.agents.programs import program_of
from consumers.log.reading import uninterrupted
from producers import provision
from producers.publisher import VALUE_LIMIT_BYTES, Publisher
from producers.submit import Submitter, asked_again, grouped, new_rollout_id, requests_of
from sandbox.environment import check_environment, make_environment
from schemas.bounds import check_request
from schemas.errors import DeliveryFailed, Refused, RollcallError, WireError, WorkFailed
from schemas.messages import RolloutRequest, Task
from schemas.topics import checked, wanted

if TYPE_CHECKING:
    from compose.cluster import Cluster

FLUSH_S = 30.0
POLL_S = 0.2
NAMED = 20
"""So many missing rollouts are named; of more, the number is given."""


class NotScored(RollcallError):
    """Rollouts that nobody has scored in time; they may be later."""


def submit(
    cluster: "Cluster",
    source: str,
    *,
    dataset: str,
    count: int,
    group_size: int,
    policy_id: str,
    agent: str,
    wait: bool,
    timeout_s: float,
    again: bool = False,
) -> None:
    """Publish requests once all of them are found good; raises Refused before the first is sent.

    With `again` they get new ids: what was asked for before under theirs would be refused. With
    `wait`, raises NotScored after `timeout_s`.
    """
    if bool(source) == bool(dataset):
        found = "both" if source else "neither"
        msg = f"give a JSON Lines file (- is standard input) or --dataset; found {found}"
        raise Refused(msg)
    if again and dataset:
        msg = "--again is for the ids in a file; rollouts of a data set have new ids every time"
        raise Refused(msg)
    lines = lines_of(source) if source else []
    provision.require(cluster.admin, cluster.registry, wanted(cluster.settings.prefix, []))
    door = Door(cluster)
    if source:
        defaults = RolloutRequest("", Task(), agent or "react", policy_id=policy_id)
        requests = list(requests_of(lines, door.check, defaults=defaults, group_size=group_size))
    else:
        defaults = RolloutRequest("", Task(), agent or "single_turn", policy_id=policy_id)
        requests = list(_entries(dataset, count, group_size, defaults, door))
    if again:
        requests = list(asked_again(requests))
    if not requests:
        msg = f"no requests in {_named(source)}: it holds no line that is not empty"
        raise Refused(msg)
    if not wait:
        publish(cluster, requests)
        return
    # Made before anything is published: what is scored in between must not be missed.
    with closing(Progress(cluster, requests)) as progress:
        publish(cluster, requests)
        watch(progress, timeout_s)


# What comes in


def _named(source: str) -> str:
    return "standard input" if source == "-" else repr(source)


def lines_of(source: str) -> list[bytes]:
    """The lines of a file, or of standard input; raises Refused."""
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        msg = f"requests cannot be read from {_named(source)}: {error.strerror}"
        raise Refused(msg) from error
    return data.removeprefix(b"\xef\xbb\xbf").splitlines()


def _entries(
    dataset: str, count: int, group_size: int, defaults: RolloutRequest, door: "Door"
) -> Iterator[RolloutRequest]:
    """The entries 0 to count - 1 of a reasoning-gym data set; a seed names an entry for ever."""
    config = orjson.dumps({"dataset": dataset}).decode()
    try:
        make_environment("reasoning_gym", config).close()
    except WorkFailed as error:
        raise Refused(str(error)) from error
    for seed in range(count):
        task = Task("reasoning_gym", config, seed, task_id=f"{dataset}-{seed}")
        request = RolloutRequest(
            new_rollout_id(), task, defaults.agent, policy_id=defaults.policy_id
        )
        door.check(request)
        yield from grouped(request, group_size)


class Door:
    """Turns away what would fail for sure; one for each submission."""

    def __init__(self, cluster: "Cluster") -> None:
        self.topics = cluster.topics
        self.codec = cluster.codec
        self.there = cluster.admin.partitions()
        self.seen: set[str] = set()

    def check(self, request: RolloutRequest) -> None:
        """Raises Refused."""
        if request.rollout_id in self.seen:
            msg = f"rollout_id {request.rollout_id!r} came before; every rollout needs its own"
            raise Refused(msg)
        self.seen.add(request.rollout_id)
        program_of(request.agent)
        self._check_policy(request.policy_id)
        _check_task(request)
        check_request(request)
        self._check_size(request)

    def _check_policy(self, policy_id: str) -> None:
        if self.topics.calls(checked(policy_id)) in self.there:
            return
        calls = self.topics.calls("")
        known = sorted(name.removeprefix(calls) for name in self.there if name.startswith(calls))
        msg = (
            f"policy {policy_id!r} has no topic {self.topics.calls(policy_id)!r}; run `rollcall "
            f"topics apply --policy {policy_id}`, or name one that is there with --policy "
            f"({', '.join(known) or 'there is none'})"
        )
        raise Refused(msg)

    def _check_size(self, request: RolloutRequest) -> None:
        try:
            size = len(self.codec.encode(self.topics.requests, request))
        except WireError as error:
            raise Refused(str(error)) from error
        if size > VALUE_LIMIT_BYTES:
            msg = f"a request of {size:,} bytes; at most {VALUE_LIMIT_BYTES:,} fit into a record"
            raise Refused(msg)


def _check_task(request: RolloutRequest) -> None:
    task = request.task
    if task.environment:
        check_environment(task.environment)
    elif request.agent == "react":
        msg = "program 'react' acts in task.environment, which is empty; or name another as agent"
        raise Refused(msg)
    elif not task.prompt:
        msg = "the task has neither an environment nor a prompt"
        raise Refused(msg)
    _check_object("task.environment_config", task.environment_config)
    _check_object("agent_config", request.agent_config)


def _check_object(name: str, text: str) -> None:
    try:
        found = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        msg = f"{name} is not JSON: {error}"
        raise Refused(msg) from error
    if not isinstance(found, dict):
        msg = f"{name} must be a JSON object, found {text!r:.80}"
        raise Refused(msg)


# What goes out


def publish(cluster: "Cluster", requests: Sequence[RolloutRequest]) -> None:
    """Hand all over and wait for the acks; raises DeliveryFailed."""
    out: Publisher = cluster.log.publisher()
    submitter = Submitter(out, cluster.codec, cluster.topics)
    for request in requests:
        submitter.publish(request)
    missing = out.flush(FLUSH_S)
    acked = f"{len(requests) - missing:,} of {len(requests):,} requests acked"
    if missing:
        msg = f"{acked} within {FLUSH_S:g} s; the others may still arrive, so look before you retry"
        raise DeliveryFailed(msg)
    print(f"{acked}; the first is {requests[0].rollout_id}", flush=True)


# Watching


def watch(progress: Progress, timeout_s: float, *, begin_within_s: float = math.inf) -> None:
    """Show what becomes of the rollouts until all are scored.

    Raises NotScored after the timeout, or sooner where nobody has begun with any of them.
    """
    began = time.monotonic()
    until = began + timeout_s
    with _screen(progress) as refresh:
        while progress.missing() and time.monotonic() < until:
            if time.monotonic() > began + begin_within_s and not progress.begun():
                msg = (
                    f"none of {len(progress.rows):,} rollouts was begun within {begin_within_s:g} "
                    "s: is an agents worker running? they stay in the log until one comes"
                )
                raise NotScored(msg)
            with uninterrupted():
                scored = progress.poll(min(POLL_S, max(0.0, until - time.monotonic())))
            refresh(scored)
    print(progress.totals(), flush=True)
    missing = progress.missing()
    if missing:
        more = f" and {len(missing) - NAMED:,} more" if len(missing) > NAMED else ""
        msg = (
            f"{len(missing):,} of {len(progress.rows):,} rollouts were not scored within "
            f"{timeout_s:g} s: {', '.join(missing[:NAMED])}{more}; look at one with "
            "`rollcall trajectory`, and whether a worker of every group is running"
        )
        raise NotScored(msg)


@contextmanager
def _screen(progress: Progress) -> Iterator[Callable[[list[Row]], None]]:
    """Something to call with what was scored: a live table, or a line each."""
    terminal = Console(highlight=False)
    if not terminal.is_terminal:
        yield _say
        return
    most = max(4, terminal.height - 8)
    with Live(progress.table(most), console=terminal, refresh_per_second=4) as live:
        yield lambda scored: live.update(progress.table(most))


def _say(scored: list[Row]) -> None:
    for row in scored:
        print(row.line(), flush=True)
