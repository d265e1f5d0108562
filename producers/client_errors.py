"""What a process says of its brokers: a client's connection errors, once and for all clients."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from schemas.errors import Refused
from schemas.names import hint

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

SAY_AGAIN_S = 300.0
AWAY = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"}
"""One and the same thing to people: nobody answers."""

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
"""What librdkafka's clients are set by as a rule; only to name the nearest of a misspelt one."""
C = TypeVar("C")

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


def checked_client(
    make: Callable[[dict[str, Any]], C], settings: dict[str, Any], refusal: type[Exception]
) -> C:
    """A client of librdkafka's, which raises `refusal` for a setting that it does not have.

    Raises Refused in its place, naming the nearest that there is.
    """
    try:
        return make(settings)
    except refusal as error:
        said = error.args[0].str()
        key = next((name for name in settings if f'"{name}"' in said), None)
        near = f"; {hint(key, KEYS)}" if key is not None and "No such" in said else ""
        msg = f"[kafka.client] is refused by librdkafka: {said}{near}"
        raise Refused(msg) from error
