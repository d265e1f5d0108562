"""What a process says of its brokers: a client's connection errors, once and for all clients."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

SAY_AGAIN_S = 300.0
AWAY = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"}
"""One and the same thing to people: nobody answers."""

log = structlog.get_logger()


class ConsoleThrottle:
    """What this process has said of its brokers lately; all its clients see the same ones."""

    def __init__(self, again_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._again_s = again_s
        self._clock = clock
        self._at: dict[str, float] = {}

    def first(self, what: str) -> bool:
        """Whether nobody has said so for a while; it counts as said then."""
        now = self._clock()
        if now - self._at.get(what, -self._again_s) < self._again_s:
            return False
        self._at[what] = now
        return True


THROTTLE = ConsoleThrottle(SAY_AGAIN_S)


def quiet(
    settings: Mapping[str, Any],
    fatal: "list[KafkaError] | None" = None,
    *,
    throttle: ConsoleThrottle = THROTTLE,
) -> dict[str, Any]:
    """Client settings whose connection errors are said once, not by every client and every try.

    Fatal ones are put into `fatal`: raising inside a callback would come out as something else.
    """

    def once(error: "KafkaError") -> None:
        if error.fatal() and fatal is not None:
            fatal.append(error)
        away = error.name() in AWAY
        if throttle.first("away" if away else error.name()):
            log.warning("broker_away" if away else "broker_error", error=error.str())

    return {"error_cb": once, "log.connection.close": False, "log_level": 2, **settings}
