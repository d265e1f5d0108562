"""The schema registry of a cluster: any that speaks Confluent's REST API.

Workers look schemas up and never register; `rollcall topics apply` does. Only `/subjects`,
`/schemas` and `/config` are used, with a timeout: Apicurio now and then never answers others.
"""

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from schemas.errors import TopicsDiffer, Unavailable, UnknownSchema

T = TypeVar("T")
NOT_FOUND = 404
TIMEOUT_S = 5


def subject_of(topic: str) -> str:
    """TopicNameStrategy, which kcat, Connect and UIs expect."""
    return f"{topic}-value"


class HttpRegistry:
    """A `schemas.codec.Registry` on a Confluent-compatible server."""

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        self.url = url
        self._client = SchemaRegistryClient({"url": url, "timeout": TIMEOUT_S, **(settings or {})})

    def writer_id(self, topic: str, schema: str) -> int:
        subject = subject_of(topic)
        found = self._ask(lambda: self._client.lookup_schema(subject, Schema(schema, "AVRO")))
        if found is None or found.schema_id is None:
            msg = f"subject {subject!r} does not hold our schema; run `rollcall topics apply`"
            raise TopicsDiffer(msg)
        return int(found.schema_id)

    def schema_of(self, schema_id: int) -> str:
        found = self._ask(lambda: self._client.get_schema(schema_id))
        if found is None or found.schema_str is None:
            msg = f"the registry at {self.url} knows no schema with id {schema_id}"
            raise UnknownSchema(msg)
        return str(found.schema_str)

    def registered(self, topic: str) -> str | None:
        """The newest schema of the topic's values, None when there is none."""
        found = self._ask(lambda: self._client.get_latest_version(subject_of(topic)))
        return None if found is None or found.schema is None else found.schema.schema_str

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
            if error.http_status_code >= 500:
                msg = f"the schema registry at {self.url} fails: {error.error_message}"
                raise Unavailable(msg) from error
            raise


def same_schema(one: str, other: str) -> bool:
    """Whether two texts spell the same JSON."""
    return bool(json.loads(one) == json.loads(other))
