"""Requests of users and programs: checked, published, counted."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import orjson

from rollcall.producers.publisher import Publisher
from rollcall.schemas import names
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused
from rollcall.schemas.headers import full_headers
from rollcall.schemas.messages import Limits, RolloutRequest, Sampling, Task
from rollcall.schemas.topics import Topics

NESTED: Mapping[str, type] = {"task": Task, "sampling": Sampling, "limits": Limits}
ROLLOUT_ID = re.compile(r"[A-Za-z0-9._:/-]{1,200}")
MARK_CHARS = 8
"""Hexadecimal digits that distinguish the ids of one submission from those of another."""
PYTHON: Mapping[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool}

BY_POLICY = frozenset({"min_policy_versions", "policy_versions"})


class Submitter:
    """Publishes requests; any other Kafka client may do the same."""

    def __init__(
        self, out: Publisher, codec: Codec, topics: Topics, source: str = "submit"
    ) -> None:
        self.out = out
        self.codec = codec
        self.topic = topics.requests
        self.source = source

    def publish(self, *requests: RolloutRequest) -> None:
        """Hand requests over; they are accepted when the producer's flush returns.

        All or none: if one cannot be encoded now, Unavailable is raised before any is sent, so that
        a retry repeats none.
        """
        values = [self.codec.encode(self.topic, request) for request in requests]
        for request, value in zip(requests, values, strict=True):
            name = request.rollout_id
            headers = full_headers("RolloutRequest", name, self.source, name, name)
            self.out.send(self.topic, name, value, headers=headers)


def new_rollout_id() -> str:
    """Return a new rollout id; all new ones are made here."""
    return uuid4().hex


def requests_of(
    lines: Iterable[str | bytes],
    check: Callable[[RolloutRequest], None],
    *,
    defaults: RolloutRequest,
    group_size: int = 1,
) -> Iterator[RolloutRequest]:
    """Read JSON Lines; each line becomes `group_size` rollouts.

    Raises Refused, with the number of a bad line.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rollouts = rollouts_of(_object(line), check, defaults, group_size)
        except Refused as error:
            msg = f"line {number}: {error}"
            raise Refused(msg) from error
        yield from rollouts


def rollouts_of(
    values: Mapping[str, Any],
    check: Callable[[RolloutRequest], None],
    defaults: RolloutRequest,
    group_size: int,
) -> Iterator[RolloutRequest]:
    """Return the rollouts of one JSON object. Raises Refused before the first."""
    request = request_of(values, defaults)
    check(request)
    return grouped(request, group_size)


def grouped(request: RolloutRequest, group_size: int) -> Iterator[RolloutRequest]:
    """Yield one task as `group_size` rollouts of one group; a single one is left as it is."""
    if group_size <= 1:
        yield request
        return
    group = request.group_id or request.rollout_id
    for member in range(group_size):
        rollout_id = f"{request.rollout_id}-{member}"
        yield dataclasses.replace(
            request, rollout_id=rollout_id, group_id=group, group_size=group_size
        )


def asked_again(requests: Iterable[RolloutRequest]) -> Iterator[RolloutRequest]:
    """Yield the same requests under new rollout and group ids, made from the old ones."""
    mark = f"-{uuid4().hex[:MARK_CHARS]}"
    for request in requests:
        group_id = request.group_id and request.group_id + mark
        yield dataclasses.replace(
            request, rollout_id=_fitting(request.rollout_id + mark), group_id=group_id
        )


def _fitting(rollout_id: str) -> str:
    """Return the id. Raises Refused if it is not valid."""
    if not ROLLOUT_ID.fullmatch(rollout_id):
        msg = f"rollout_id {rollout_id!r} must be 1-200 of A-Z a-z 0-9 . _ : / -"
        raise Refused(msg)
    return rollout_id


def request_of(values: Mapping[str, Any], defaults: RolloutRequest) -> RolloutRequest:
    """Make a request from a JSON object over defaults. Raises Refused for bad keys and types."""
    fields: dict[str, Any] = {"rollout_id": new_rollout_id()}
    for key, value in values.items():
        if key in NESTED:
            fields[key] = _nested(key, value, getattr(defaults, key))
        elif key in ("agent_config",) and isinstance(value, dict):
            fields[key] = orjson.dumps(value).decode()
        elif key in BY_POLICY:
            fields[key] = _by_policy(key, value)
        elif key == "scorings":
            fields[key] = _texts(key, value)
        else:
            fields[key] = _checked("", RolloutRequest, key, value)
    request = dataclasses.replace(defaults, **fields)
    _fitting(request.rollout_id)
    return request


def _object(line: str | bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        msg = f"not JSON: {error}"
        raise Refused(msg) from error
    if not isinstance(value, dict):
        msg = f"a JSON object is needed, found {type(value).__name__}"
        raise Refused(msg)
    return value


def _nested(key: str, value: Any, default: Any) -> Any:
    if not isinstance(value, dict):
        msg = f"{key} must be an object, found {value!r:.80}"
        raise Refused(msg)
    fields: dict[str, Any] = {}
    for name, item in value.items():
        if name == "environment_config" and isinstance(item, dict):
            fields[name] = orjson.dumps(item).decode()
        elif name == "stop" and isinstance(item, list):
            fields[name] = tuple(str(stop) for stop in item)
        else:
            fields[name] = _checked(f"{key}.", type(default), name, item)
    return dataclasses.replace(default, **fields)


def _by_policy(key: str, value: Any) -> dict[str, int]:
    """Check versions by policy. Raises Refused."""
    if not isinstance(value, dict) or not all(type(each) is int for each in value.values()):
        msg = f"{key} must be an object of versions by policy, found {value!r:.80}"
        raise Refused(msg)
    return value


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        msg = f"{key} must be a list of texts, found {value!r:.80}"
        raise Refused(msg)
    return tuple(value)


def _checked(place: str, kind: type, name: str, value: Any) -> Any:
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    fields.pop("claim", None)
    if name not in fields:
        raise names.unknown_name("key", f"{place}{name}", [f"{place}{known}" for known in fields])
    wanted = PYTHON.get(getattr(fields[name], "__name__", _plain(fields[name])))
    if wanted is None or not isinstance(value, wanted) or (wanted is int and value is True):
        msg = f"{place}{name} must be {_plain(fields[name])}, found {value!r:.80}"
        raise Refused(msg)
    return float(value) if wanted == (int, float) else value


def _plain(annotation: str) -> str:
    return annotation.removeprefix("<class '").removesuffix("'>")
