"""The client of a schema registry with Confluent's REST API.

Workers look schemas up and never register them; `rollcall topics apply` does. Only `/subjects`,
`/schemas` and `/config` are used, with a timeout: Apicurio sometimes never answers other requests.

A registry's own errors carry an error code of its API. An error without one, such as the 404 of an
ingress whose backend restarts, means that the registry is unavailable.
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
"""The registry's own codes for a missing subject, version, schema or level."""
REFUSED = range(400_00, 500_00)
TIMEOUT_S = 5
PATIENCE: Mapping[str, Any] = {"timeout": TIMEOUT_S, "max.retries": 1, "retries.wait.ms": 100}
"""The client's default of three retries takes 2.8 s if a connection is refused. Callers that can
wait repeat the request (`rollcall.schemas.codec.Codec`, `rollcall.compose.workers.readiness`)."""
NO_ANSWER = (ValueError, AttributeError, TypeError, LookupError, ArithmeticError, RecursionError)
"""Exceptions that the client raises for an answer that is not a registry's."""
MOST_ID = 2**32 - 1
"""The largest schema id: a value names its schema by four bytes."""
NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity")
"""Settings that the client expects as numbers; ours are texts."""


def subject_of(topic: str) -> str:
    """Return a topic's subject by TopicNameStrategy, which kcat, Connect and UIs expect."""
    return f"{topic}-value"


def _id(found: object) -> int:
    """Return the schema id in an answer; raise ValueError if there is none."""
    number = whole_number(str(found), MOST_ID) if isinstance(found, int | str) else None
    if number is None:
        msg = f"{found!r:.40} is no schema id"
        raise ValueError(msg)
    return number


def _text(found: object) -> str:
    """Return the text in an answer; raise ValueError if there is none."""
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
        self._client.clear_caches()  # it caches for good, also a wrong answer
        found = self._ask(lambda: _text(self._client.get_schema(schema_id).schema_str))
        if found is None:
            msg = f"the registry at {self.url} knows no schema with id {schema_id}"
            raise UnknownSchema(msg)
        return found

    def id_of(self, topic: str, schema: str) -> int | None:
        """Return the id of this schema under the topic's subject; None if it is not registered."""
        subject = subject_of(topic)
        self._client.clear_caches()
        ours = Schema(schema, "AVRO")
        return self._ask(lambda: _id(self._client.lookup_schema(subject, ours).schema_id))

    def compatibility(self, topic: str) -> str | None:
        """Return the compatibility level of the topic's subject; None if it has none of its own."""
        return self._ask(lambda: _text(self._client.get_compatibility(subject_of(topic))))

    def register(self, topic: str, schema: str, level: str) -> int:
        """Set the level, then register the schema; raise TopicsDiffer if it is not compatible."""
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
        """Close connections."""
        self._client.__exit__()

    def _ask(self, request: Callable[[], T]) -> T | None:
        """Return the answer; None if the registry does not have the thing.

        Raises TopicsDiffer if it refuses, Unfit if it denies access, and Unavailable if no registry
        answers.
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
            # Another web server, or a proxy in front of the registry, answers 200 and a page.
            msg = f"{self.url} does not answer as a schema registry does; is the URL right?"
            raise Unavailable(msg) from error

    def _said(self, error: SchemaRegistryError) -> RollcallError:
        """Translate an error answer of the registry."""
        status, said = error.http_status_code, error.error_message
        if status in NOT_ALLOWED:
            return Unfit(
                f"the schema registry at {self.url} denies access (HTTP {status}): {said}; "
                "check the settings registry.client"
            )
        if error.error_code in REFUSED or error.error_code == status == CONFLICT:
            return TopicsDiffer(str(said))
        if status == NOT_FOUND:
            return Unavailable(
                f"{self.url} answers HTTP 404 without a schema registry's error code: {said}; is "
                "the URL right, or is a proxy up while the registry behind it is not?"
            )
        return Unavailable(f"the schema registry at {self.url} fails: {said}")
