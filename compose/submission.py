"""Requests from the command line: read them, publish them, watch them until scored."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table

from rollcall.compose.console import PlainConsole, safe
from rollcall.consumers.history.rollouts.progress import FollowedRollout, RolloutProgress
from rollcall.consumers.log.reading import uninterrupted
from rollcall.producers.publisher import Publisher
from rollcall.producers.submit import Submitter
from rollcall.schemas.errors import DeliveryFailed, Refused, RollcallError
from rollcall.schemas.messages import RolloutRequest

if TYPE_CHECKING:
    from rollcall.compose.cluster import Cluster

FLUSH_S = 30.0
POLL_S = 0.2
MISSING_NAMED = 20
"""The most missing rollouts that are named; beyond that only their number is given."""


class NotScored(RollcallError):
    """Rollouts were not scored in time; they may be later."""


def source_name(source: str) -> str:
    """Return the name of a source of lines in messages."""
    return "standard input" if source == "-" else repr(source)


def lines_of(source: str) -> list[bytes]:
    """Read the lines of a file, or of standard input; raises Refused."""
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        msg = f"requests cannot be read from {source_name(source)}: {error.strerror}"
        raise Refused(msg) from error
    return data.removeprefix(b"\xef\xbb\xbf").splitlines()


def submit_all(
    cluster: "Cluster", requests: Sequence[RolloutRequest], *, wait: bool, timeout_s: float
) -> None:
    """Publish requests; with `wait`, show their progress until all are scored.

    Raises DeliveryFailed, and NotScored after the timeout.
    """
    if not wait:
        publish(cluster, requests)
        return
    # Made before anything is published, so that no scored rollout is missed.
    with closing(RolloutProgress(cluster, requests)) as progress:
        publish(cluster, requests)
        watch(progress, timeout_s)


def publish(cluster: "Cluster", requests: Sequence[RolloutRequest]) -> None:
    """Publish all and wait for the acks; raises DeliveryFailed."""
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


def watch(progress: RolloutProgress, timeout_s: float, *, begin_within_s: float = math.inf) -> None:
    """Show the progress of the rollouts until all are scored.

    Raises NotScored after the timeout, or after `begin_within_s` if none of them has begun.
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
        more = f" and {len(missing) - MISSING_NAMED:,} more" if len(missing) > MISSING_NAMED else ""
        msg = (
            f"{len(missing):,} of {len(progress.rows):,} rollouts were not scored within "
            f"{timeout_s:g} s: {', '.join(missing[:MISSING_NAMED])}{more}; look at one with "
            "`rollcall trajectory`, and whether a worker of every group is running"
        )
        raise NotScored(msg)


@contextmanager
def _screen(progress: RolloutProgress) -> Iterator[Callable[[list[FollowedRollout]], None]]:
    """Yield a function to call with scored rollouts: it draws a live table, or a line each."""
    terminal = PlainConsole()
    if not terminal.is_terminal:
        yield _say
        return
    most = max(4, terminal.height - 8)
    with Live(progress_table(progress, most), console=terminal, refresh_per_second=4) as live:
        yield lambda scored: live.update(progress_table(progress, most))


def _say(scored: list[FollowedRollout]) -> None:
    for row in scored:
        print(rollout_line(row), flush=True)


def rollout_line(rollout: FollowedRollout) -> str:
    """Return the line of a scored rollout."""
    return (
        f"{rollout.rollout_id}  {rollout.status}  {rollout.turns} turns  "
        f"reward {rollout.reward}  {rollout.seconds(0):.1f} s"
    )


def progress_table(progress: RolloutProgress, most: int) -> Table:
    """Return a table of rollouts: unfinished first, then the latest, at most `most` rows."""
    rows = list(progress.rows.values())
    rows = [r for r in rows if not r.scored] + [r for r in reversed(rows) if r.scored]
    hidden = f"; {len(rows) - most:,} rows not shown" if len(rows) > most else ""
    table = Table(caption=f"{progress.totals()}{hidden}", caption_justify="left")
    for name in ("rollout", "status", "turns", "reward", "seconds"):
        right = name in ("turns", "seconds")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    now_ms = progress.wall() * 1000
    for row in rows[:most]:
        seconds = f"{row.seconds(now_ms):.1f}"
        table.add_row(row.rollout_id, row.status, str(row.turns), safe(row.reward), seconds)
    return table
