"""The schema registry of a cluster: any that speaks Confluent's REST API.

Workers look schemas up and never register; `rollcall topics apply` does. Only `/subjects`,
`/schemas` and `/config` are used, with a timeout: Apicurio now and then never answers others.

What a registry says it says under an error code of its own. Anything else, such as the 404 of an
ingress whose backend restarts, is nobody's word about a schema: the registry is away.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from rollcall.schemas.bounded import whole_number
from rollcall.schemas.errors import (
    Refused,
    RollcallError,
    TopicsDiffer,
    Unavailable,
    Unfit,
    UnknownSchema,
)
from rollcall.schemas.redaction import add_secrets_of_settings, add_secrets_of_url

T = TypeVar("T")
NOT_FOUND = 404
NOT_ALLOWED = (401, 403)
CONFLICT = 409
NOT_THERE = range(404_00, 405_00)
"""Codes of the registry's own for what it does not hold: no subject, version, schema, level."""
REFUSED = range(400_00, 500_00)
TIMEOUT_S = 5
PATIENCE: Mapping[str, Any] = {"timeout": TIMEOUT_S, "max.retries": 1, "retries.wait.ms": 100}
"""The client's own three retries take 2.8 s where a connection is refused. Whoever can wait asks
again by himself (`rollcall.schemas.codec.Codec`, `rollcall.compose.workers.readiness`)."""
NO_ANSWER = (ValueError, AttributeError, TypeError, LookupError, ArithmeticError, RecursionError)
"""Exceptions of the client for an answer that does not have the form of a registry's."""
MOST_ID = 2**32 - 1
"""Four bytes of a value name its schema."""
NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity")
"""Settings that the client wants as numbers; ours arrive as text."""


def subject_of(topic: str) -> str:
    """TopicNameStrategy, which kcat, Connect and UIs expect."""
    return f"{topic}-value"


def _id(found: object) -> int:
    """A schema id out of an answer; raises ValueError for what is none."""
    number = whole_number(str(found), MOST_ID) if isinstance(found, int | str) else None
    if number is None:
        msg = f"{found!r:.40} is no schema id"
        raise ValueError(msg)
    return number


def _text(found: object) -> str:
    """A text out of an answer; raises ValueError for what is none."""
    if not isinstance(found, str):
        msg = f"{found!r:.40} is no schema or level"
        raise ValueError(msg)
    return found


class HttpRegistry:
    """A `rollcall.schemas.codec.Registry` on a Confluent-compatible server."""

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        self.url = url
        add_secrets_of_url(url)
        add_secrets_of_settings(settings or {})
        try:
            given = {k: float(v) if k in NUMBERS else v for k, v in (settings or {}).items()}
            self._client = SchemaRegistryClient({"url": url, **PATIENCE, **given})
        except (ValueError, TypeError) as error:
            msg = f"no client for a schema registry at {url!r} can be made: {error}"
            raise Refused(msg) from error

    def writer_id(self, topic: str, schema: str) -> int:
        found = self.id_of(topic, schema)
        if found is None:
            msg = f"{subject_of(topic)!r} does not hold our schema; run `rollcall topics apply`"
            raise TopicsDiffer(msg)
        return found

    def schema_of(self, schema_id: int) -> str:
        self._client.clear_caches()  # what it keeps, it keeps for good, a wrong answer too
        found = self._ask(lambda: _text(self._client.get_schema(schema_id).schema_str))
        if found is None:
            msg = f"the registry at {self.url} knows no schema with id {schema_id}"
            raise UnknownSchema(msg)
        return found

    def id_of(self, topic: str, schema: str) -> int | None:
        """The id of this schema under the topic's subject, None when it is not there."""
        subject = subject_of(topic)
        self._client.clear_caches()
        ours = Schema(schema, "AVRO")
        return self._ask(lambda: _id(self._client.lookup_schema(subject, ours).schema_id))

    def compatibility(self, topic: str) -> str | None:
        """The level set on the topic's subject itself, None when there is none."""
        return self._ask(lambda: _text(self._client.get_compatibility(subject_of(topic))))

    def register(self, topic: str, schema: str, level: str) -> int:
        """Set the level, then register; raises TopicsDiffer when it is not compatible."""
        subject = subject_of(topic)
        try:
            self._ask(lambda: self._client.set_compatibility(subject, level))
            schema_id = self._ask(
                lambda: _id(self._client.register_schema(subject, Schema(schema, "AVRO")))
            )
        except TopicsDiffer as error:
            msg = f"subject {subject!r} refuses our schema: {error}"
            raise TopicsDiffer(msg) from error
        if schema_id is None:
            msg = f"the registry at {self.url} has no API for subjects; is the URL right?"
            raise Unavailable(msg)
        return schema_id

    def close(self) -> None:
        """Give connections back."""
        self._client.__exit__()

    def _ask(self, request: Callable[[], T]) -> T | None:
        """None where the registry says that there is none.

        Raises TopicsDiffer where it refuses, Unfit where it lets us not in, and Unavailable where
        no registry answers.
        """
        try:
            return request()
        except httpx2.HTTPError as error:
            msg = f"the schema registry at {self.url} does not answer: {error}"
            raise Unavailable(msg) from error
        except SchemaRegistryError as error:
            if error.error_code in NOT_THERE:
                return None
            raise self._said(error) from error
        except NO_ANSWER as error:
            # A web server that is no registry, or a proxy before one, answers 200 and a page.
            msg = f"{self.url} does not answer as a schema registry does; is the URL right?"
            raise Unavailable(msg) from error

    def _said(self, error: SchemaRegistryError) -> RollcallError:
        """Translate an error answer of the registry."""
        status, said = error.http_status_code, error.error_message
        if status in NOT_ALLOWED:
            return Unfit(
                f"the schema registry at {self.url} lets us not in (HTTP {status}): {said}; "
                "look at registry.client"
            )
        if error.error_code in REFUSED or error.error_code == status == CONFLICT:
            return TopicsDiffer(str(said))
        if status == NOT_FOUND:
            return Unavailable(
                f"{self.url} answers HTTP 404 without a word of a schema registry's: {said}; is "
                "the URL right, or is a proxy up while the registry behind it is not?"
            )
        return Unavailable(f"the schema registry at {self.url} fails: {said}")
