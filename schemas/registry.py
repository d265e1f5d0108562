"""The schema registry of a cluster: any that speaks Confluent's REST API.

Workers look schemas up and never register; `rollcall topics apply` does. Only `/subjects`,
`/schemas` and `/config` are used, with a timeout: Apicurio now and then never answers others.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from schemas.errors import Refused, TopicsDiffer, Unavailable, Unfit, UnknownSchema

T = TypeVar("T")
NOT_FOUND = 404
NOT_ALLOWED = (401, 403)
NOT_NOW = (408, 429)
TIMEOUT_S = 5
NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity")
"""Settings that the client wants as numbers; ours arrive as text."""


def subject_of(topic: str) -> str:
    """TopicNameStrategy, which kcat, Connect and UIs expect."""
    return f"{topic}-value"


class HttpRegistry:
    """A `schemas.codec.Registry` on a Confluent-compatible server."""

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        self.url = url
        try:
            given = {k: float(v) if k in NUMBERS else v for k, v in (settings or {}).items()}
            self._client = SchemaRegistryClient({"url": url, "timeout": TIMEOUT_S, **given})
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
        found = self._ask(lambda: self._client.get_schema(schema_id))
        if found is None or found.schema_str is None:
            msg = f"the registry at {self.url} knows no schema with id {schema_id}"
            raise UnknownSchema(msg)
        return str(found.schema_str)

    def id_of(self, topic: str, schema: str) -> int | None:
        """The id of this schema under the topic's subject, None when it is not there."""
        subject = subject_of(topic)
        found = self._ask(lambda: self._client.lookup_schema(subject, Schema(schema, "AVRO")))
        return None if found is None or found.schema_id is None else int(found.schema_id)

    def compatibility(self, topic: str) -> str | None:
        """The level set on the topic's subject itself, None when there is none."""
        return self._ask(lambda: self._client.get_compatibility(subject_of(topic)))

    def register(self, topic: str, schema: str, level: str) -> int:
        """Set the level, then register; raises TopicsDiffer when it is not compatible."""
        subject = subject_of(topic)
        try:
            self._ask(lambda: self._client.set_compatibility(subject, level))
            schema_id = self._ask(
                lambda: self._client.register_schema(subject, Schema(schema, "AVRO"))
            )
        except SchemaRegistryError as error:
            msg = f"subject {subject!r} refuses our schema: {error.error_message}"
            raise TopicsDiffer(msg) from error
        if schema_id is None:
            msg = f"the registry at {self.url} has no API for subjects; is the URL right?"
            raise Unavailable(msg)
        return int(schema_id)

    def close(self) -> None:
        """Give connections back."""
        self._client.__exit__()

    def _ask(self, request: Callable[[], T]) -> T | None:
        """None where the registry answers 404; Unavailable where it does not answer."""
        try:
            return request()
        except httpx2.HTTPError as error:
            msg = f"the schema registry at {self.url} does not answer: {error}"
            raise Unavailable(msg) from error
        except SchemaRegistryError as error:
            if error.http_status_code == NOT_FOUND:
                return None
            if error.http_status_code in NOT_ALLOWED:
                msg = (
                    f"the schema registry at {self.url} lets us not in (HTTP "
                    f"{error.http_status_code}): {error.error_message}; look at registry.client"
                )
                raise Unfit(msg) from error
            if error.http_status_code >= 500 or error.http_status_code in NOT_NOW:
                msg = f"the schema registry at {self.url} fails: {error.error_message}"
                raise Unavailable(msg) from error
            raise
        except (ValueError, AttributeError, TypeError) as error:
            # A web server that is no registry, or a proxy before one, answers 200 and a page.
            msg = f"{self.url} does not answer as a schema registry does; is the URL right?"
            raise Unavailable(msg) from error
