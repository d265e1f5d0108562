"""Times as people write and read them: how long ago, or when."""

import re
from datetime import UTC, datetime

from schemas.errors import Refused

AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds_of(text: str) -> float:
    """A duration such as 90s, 30m, 2h, 3d or 1w; raises Refused."""
    match = AGO.fullmatch(text.strip())
    if match is None:
        msg = f"{text!r} is no duration; write 90s, 30m, 2h, 3d or 1w"
        raise Refused(msg)
    return float(match[1]) * SECONDS[match[2]]


def time_ms(text: str, now_s: float) -> int:
    """Milliseconds since the epoch of a duration before now, or of an ISO 8601 time.

    A time without a zone is UTC, as the log's own are shown. Raises Refused.
    """
    if AGO.fullmatch(text.strip()):
        return int((now_s - seconds_of(text)) * 1000)
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError as error:
        msg = (
            f"{text!r} is no time; write how long ago (30m, 2h, 3d) or ISO 8601 (2026-11-21T14:00)"
        )
        raise Refused(msg) from error
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def iso(timestamp_ms: int) -> str | None:
    """The time of a record in UTC; None for one that has none."""
    if timestamp_ms < 0:
        return None
    at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds")
