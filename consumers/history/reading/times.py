"""Times in the form in which users write and read them: durations before now, or ISO 8601."""

import re
from datetime import UTC, datetime

from rollcall.schemas.errors import Refused

AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds_of(text: str) -> float:
    """Parse a duration such as 90s, 30m, 2h, 3d or 1w; raises Refused."""
    match = AGO.fullmatch(text.strip())
    if match is None:
        msg = f"{text!r} is no duration; write 90s, 30m, 2h, 3d or 1w"
        raise Refused(msg)
    return float(match[1]) * SECONDS[match[2]]


def time_ms(text: str, now_s: float) -> int:
    """Parse a duration before now, or an ISO 8601 time, to milliseconds since the epoch.

    A time without a zone is UTC, like the displayed times. Raises Refused.
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
    """Return the time of a record in UTC; None if it has none."""
    if timestamp_ms < 0:
        return None
    at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds")
