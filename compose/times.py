"""Times as people type them: how long (`90s`, `5m`), and when (`2h` ago, or ISO 8601)."""

import re
from datetime import UTC, datetime

from schemas.errors import Refused

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)


def duration_s(text: str) -> float:
    """Seconds of a duration such as 90s, 5m, 2h or 3d; raises Refused."""
    found = DURATION.fullmatch(text.strip())
    if found is None:
        msg = f"{text!r} is no duration; give a number and a unit, such as 90s, 5m, 2h or 3d"
        raise Refused(msg)
    return float(found[1]) * UNITS_S[found[2]]


def moment_ms(text: str, now_ms: int) -> int:
    """A duration back from now, or ISO 8601 (UTC where it names no zone); raises Refused."""
    if DURATION.fullmatch(text.strip()):
        return now_ms - int(duration_s(text) * 1000)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        msg = f"{text!r} is no moment; give a duration back from now (2h) or ISO 8601 (2026-01-31)"
        raise Refused(msg) from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
