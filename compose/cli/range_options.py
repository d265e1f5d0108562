"""The options of a range of history, and of its read rate."""

import re
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcall.compose.cli.option_sets import takes
from rollcall.consumers.history.reading.ranges import OffsetRange, Range, parse_policy
from rollcall.consumers.history.reading.rate_limit import RATE
from rollcall.consumers.history.reading.times import time_ms
from rollcall.schemas.errors import Refused

if TYPE_CHECKING:
    from rollcall.compose.cluster import Cluster
    from rollcall.consumers.history.reading.selection import Selection

OFFSETS = re.compile(r"(\d+):(\d+)-(\d+)")

Since = Annotated[
    str,
    typer.Option(
        help="Records from this time on: 30m, 2h, 3d ago, or ISO 8601.", show_default=False
    ),
]
Until = Annotated[str, typer.Option(help="Records before this time.", show_default=False)]
RunId = Annotated[str, typer.Option("--run", help="Records of this run.", show_default=False)]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        help="Records of policy P, or of P@VERSION, which sampled all tokens.",
        show_default=False,
    ),
]
Ids = Annotated[
    str,
    typer.Option(
        help="A file of rollout ids, one per line; - is standard input.", show_default=False
    ),
]
Places = Annotated[
    list[str] | None,
    typer.Option(
        "--offsets",
        metavar="PARTITION:FROM-TO",
        help="Offsets of the topic that is read, without TO; repeatable.",
        show_default=False,
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        min=0,
        help=f"The most records to read per second; 0: no limit. Default: {RATE:g} while other "
        "processes work, otherwise no limit.",
        show_default=False,
    ),
]
OPTIONS: Mapping[str, tuple[Any, Any]] = {
    "since": (Since, ""),
    "until": (Until, ""),
    "run": (RunId, ""),
    "policy": (PolicyOption, ""),
    "ids": (Ids, ""),
    "offsets": (Places, None),
}


def selection_of(cluster: "Cluster", span: Range, rate: float | None) -> "Selection":
    """Return a range of a cluster's history, read at a rate; None yields to other processes."""
    from rollcall.consumers.history.reading.rate_limit import rate_limit_of
    from rollcall.consumers.history.reading.selection import Selection

    return Selection(cluster, span, rate_limit_of(cluster, rate))


def parse(
    since: str = "",
    until: str = "",
    run: str = "",
    policy: str = "",
    ids: str = "",
    offsets: Iterable[str] | None = None,
    *,
    now_s: float | None = None,
) -> Range:
    """Parse the range that the options name; raises Refused."""
    now = time.time() if now_s is None else now_s
    since_ms, until_ms = (time_ms(text, now) if text else 0 for text in (since, until))
    if since and until and until_ms <= since_ms:
        msg = f"--until {until} is not later than --since {since}"
        raise Refused(msg)
    stretches = tuple(_stretch(text) for text in offsets or ())
    if stretches and (since or until):
        msg = "--offsets names places and --since and --until times; give one or the other"
        raise Refused(msg)
    if len({stretch.partition for stretch in stretches}) < len(stretches):
        msg = "--offsets names a partition twice; one stretch of each can be read at once"
        raise Refused(msg)
    policy_id, version = parse_policy(policy) if policy else ("", None)
    names = frozenset(_ids(ids)) if ids else frozenset[str]()
    return Range(since_ms, until_ms, run, policy_id, version, names, stretches)


def _stretch(text: str) -> OffsetRange:
    match = OFFSETS.fullmatch(text)
    if match is None:
        msg = f"--offsets {text!r} is not of the form PARTITION:FROM-TO, such as 0:100-200"
        raise Refused(msg)
    stretch = OffsetRange(*map(int, match.groups()))
    if stretch.end <= stretch.first:
        msg = f"--offsets {text} is empty: TO is not included, and must be above FROM"
        raise Refused(msg)
    return stretch


def _ids(source: str) -> list[str]:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"rollout ids cannot be read from {source!r}: {error}"
        raise Refused(msg) from error
    ids = text.split()
    if not ids:
        msg = f"{source!r} holds no rollout id"
        raise Refused(msg)
    return ids


takes_range = takes("span", OPTIONS, parse)
"""A decorator that adds the options of a range, passed as parameter `span`."""
