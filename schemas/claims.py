"""Claim checks: a record that is too large for the log lies in the object store, a light one in
the log.

The light record has the same identity and the same small fields. Its heavy fields are null or
empty, and its claim names the object by digest. Only the codec knows of this: encoding returns the
light record's bytes, decoding the whole message.
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from rollcall.schemas.errors import FailureCode, ObjectLost
from rollcall.schemas.messages import (
    Claim,
    EnvironmentStep,
    EnvironmentStepped,
    Event,
    ModelAnswered,
    ModelCall,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)

ABOVE_BYTES = 262_144
"""Values above this go into the store."""


NO_STORE = "no store of objects is set here; set ROLLCALL_OBJECTS__URL"


class Objects(Protocol):
    """A content-addressed store."""

    above_bytes: int
    """Values up to this stay in the log."""

    def put(self, value: bytes) -> Claim:
        """Keep a value for good before this returns; raises Unavailable."""
        ...

    def get(self, claim: Claim) -> bytes:
        """Raises ObjectLost where it is gone or not what was claimed, and Unavailable."""
        ...


class ReadOnlyObjects:
    """A store that is only read; with it, every value is encoded whole, for comparisons."""

    above_bytes = sys.maxsize

    def __init__(self, objects: Objects) -> None:
        self.get = objects.get

    def put(self, value: bytes) -> Claim:
        return claim_of(value)


def claim_of(value: bytes) -> Claim:
    """Return the claim of a value. It is independent of the store, so all writers agree on it."""
    sha256 = hashlib.sha256(value).hexdigest()
    return Claim(sha256, sha256, len(value))


def checked(value: bytes, claim: Claim) -> bytes:
    """Return the value; raise ObjectLost if it is not the claimed one."""
    found = claim_of(value)
    if (found.sha256, found.size_bytes) != (claim.sha256, claim.size_bytes):
        msg = (
            f"object {claim.uri} holds {found.size_bytes:,} bytes of sha256 {found.sha256[:16]}, "
            f"but {claim.size_bytes:,} of {claim.sha256[:16]} were claimed; was it written over?"
        )
        raise ObjectLost(msg)
    return value


Lighten = Callable[[Any, Claim | None], Any]
LIGHT: dict[type, Lighten] = {
    ModelCall: lambda call, claim: replace(
        call, prefix_ids=None, messages=(), tools="", claim=claim
    ),
    EnvironmentStep: lambda step, claim: replace(
        step, environment_config="", action="", history=None, claim=claim
    ),
    ModelAnswered: lambda answer, claim: replace(
        answer,
        text="",
        added_ids=b"",
        token_ids=b"",
        logprobs=b"",
        versions=b"",
        tool_calls="",
        stopped_by="",
        untrainable="",
        claim=claim,
    ),
    EnvironmentStepped: lambda stepped, claim: replace(stepped, text="", info="", claim=claim),
    RolloutRequest: lambda request, claim: replace(
        request,
        agent_config="",
        task=replace(request.task, environment_config="", prompt="", system=""),
        claim=claim,
    ),
    Trajectory: lambda trajectory, claim: replace(
        trajectory,
        sequences=None,
        steps=None,
        result="",
        request=trajectory.request and LIGHT[RolloutRequest](trajectory.request, None),
        claim=claim,
    ),
}
"""For each record with a claim, a function that makes it without its heavy fields."""
HOLDERS = {Event: "body", RolloutStarted: "request", RolloutRefused: "request"}
HOLDERS |= {ScoredTrajectory: "trajectory"}
"""Records without a claim, and the field that holds a record with one."""
BESIDE: dict[type, dict[str, Any]] = {ScoredTrajectory: {"token_scores": ()}}
"""Further heavy fields, which the light record leaves out."""


def replace_by_claim(message: Any, claim: Claim) -> Any:
    """Return the light message; None if no part of it can hold a claim."""
    kind = type(message)
    if kind in LIGHT:
        return LIGHT[kind](message, claim)
    field = HOLDERS.get(kind)
    held = field and getattr(message, field)
    inner = replace_by_claim(held, claim) if held else None
    return inner and field and replace(message, **{field: inner}, **BESIDE.get(kind, {}))


def without_object(light: Any) -> Any:
    """Return the replacement of a light record whose object is lost; None if there is none.

    A start whose request is lost becomes a refusal. Every reader of the journal draws the same
    conclusion, and counting goes on with the requests behind it.
    """
    started = light.body if isinstance(light, Event) else None
    if not isinstance(started, RolloutStarted):
        return None
    claim = started.request.claim
    reason = f"its request lies in object {claim.sha256 if claim else '?'}, which is lost"
    body = RolloutRefused(
        FailureCode.OBJECT_LOST, reason, started.from_offset, started.request_offset
    )
    return replace(light, body=replace(body, request=replace(started.request, claim=None)))


def claim_in(message: Any) -> Claim | None:
    """Return the claim of a light message; None if the message is whole."""
    bearer = message
    while (field := HOLDERS.get(type(bearer))) is not None:
        bearer = getattr(bearer, field)
    claim: Claim | None = bearer.claim if type(bearer) in LIGHT else None
    return None if claim is None or replace_by_claim(message, claim) != message else claim
