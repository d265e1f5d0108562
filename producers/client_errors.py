"""Logging of brokers' connection errors, once per process instead of once per client."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from rollcall.schemas.errors import Refused
from rollcall.schemas.names import hint

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

SAY_AGAIN_S = 300.0
AWAY = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"}
"""Errors that mean the same to a reader: no broker answers."""

KEYS = (
    "acks", "api.version.request", "broker.address.family", "broker.address.ttl",
    "broker.version.fallback", "client.dns.lookup", "client.id", "client.rack",
    "compression.codec", "compression.level", "compression.type", "connections.max.idle.ms",
    "debug", "delivery.timeout.ms", "enable.metrics.push", "enable.ssl.certificate.verification",
    "fetch.max.bytes", "fetch.message.max.bytes", "fetch.wait.max.ms", "group.instance.id",
    "heartbeat.interval.ms", "linger.ms", "log_level", "max.in.flight", "max.poll.interval.ms",
    "message.max.bytes", "message.send.max.retries", "message.timeout.ms", "metadata.broker.list",
    "metadata.max.age.ms", "queue.buffering.max.kbytes", "queue.buffering.max.messages",
    "receive.message.max.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms",
    "request.timeout.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms",
    "sasl.kerberos.keytab", "sasl.kerberos.principal", "sasl.kerberos.service.name",
    "sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config", "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method", "sasl.oauthbearer.scope", "sasl.oauthbearer.token.endpoint.url",
    "sasl.password", "sasl.username", "security.protocol", "session.timeout.ms",
    "socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.max.fails",
    "socket.nagle.disable", "socket.receive.buffer.bytes", "socket.send.buffer.bytes",
    "socket.timeout.ms", "ssl.ca.certificate.stores", "ssl.ca.location", "ssl.ca.pem",
    "ssl.certificate.location", "ssl.certificate.pem", "ssl.cipher.suites", "ssl.crl.location",
    "ssl.curves.list", "ssl.endpoint.identification.algorithm", "ssl.key.location",
    "ssl.key.password", "ssl.key.pem", "ssl.keystore.location", "ssl.keystore.password",
    "ssl.providers", "ssl.sigalgs.list", "statistics.interval.ms",
)  # fmt: skip
"""Usual settings of librdkafka's clients, only used to suggest one for a misspelt name."""
C = TypeVar("C")

log = structlog.get_logger()


class ConsoleThrottle:
    """Times of the last log entries about brokers, common to all clients of this process."""

    def __init__(self, again_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._again_s = again_s
        self._clock = clock
        self._at: dict[str, float] = {}

    def first(self, what: str) -> bool:
        """Return True if this was not logged recently, and count it as logged now."""
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
    """Return client settings that log connection errors once, not for every client and try.

    Fatal errors are put into `fatal`: raised inside a callback they would change their type.
    """

    def once(error: "KafkaError") -> None:
        if error.fatal() and fatal is not None:
            fatal.append(error)
        away = error.name() in AWAY
        if throttle.first("away" if away else error.name()):
            log.warning("broker_unavailable" if away else "broker_error", error=error.str())

    return {"error_cb": once, "log.connection.close": False, "log_level": 2, **settings}


def checked_client(
    make: Callable[[dict[str, Any]], C], settings: dict[str, Any], refusal: type[Exception]
) -> C:
    """Return a librdkafka client, which raises `refusal` for an unknown setting.

    Raises Refused instead, with the nearest known name.
    """
    try:
        return make(settings)
    except refusal as error:
        said = error.args[0].str()
        key = next((name for name in settings if f'"{name}"' in said), None)
        near = f"; {hint(key, KEYS)}" if key is not None and "No such" in said else ""
        msg = f"[kafka.client] is refused by librdkafka: {said}{near}"
        raise Refused(msg) from error
