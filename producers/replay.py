"""Requests published again, under ids made of the old id and the name of the replay.

An id is `replay/NAME/DIGEST`, with the digest of the old id and the replay's name. So the same
replay done twice asks for the same rollouts, and the keys of the topic show which were asked for
before. Results of a replay are recognised by their id alone: under the same name they are not
published again, in whatever range they are; under another name they are requests like any other.

A replayed request has the same task, policy, sampling and seed. Its run and group are the replay's
own, so that no run takes it for its own and no group gets more members than it should.
"""

import dataclasses
import re

import orjson

from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import RolloutRequest

MARK = "replay/"
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def checked_name(name: str) -> str:
    """Return the name. Raises Refused if it cannot be part of an id."""
    if not NAME.fullmatch(name):
        msg = f"--name {name!r} must be 1-64 of A-Z a-z 0-9 . _ -; it becomes part of ids"
        raise Refused(msg)
    return name


def replayed_id(old: str, name: str) -> str:
    return f"{MARK}{name}/{digest('replay', old, name).hex()}"


def is_replayed(rollout_id: str, name: str) -> bool:
    """Return True if an id was made by a replay of this name."""
    return rollout_id.startswith(f"{MARK}{name}/")


def replayed(request: RolloutRequest, name: str) -> RolloutRequest:
    """Return the request that asks for the same again."""
    return dataclasses.replace(
        request,
        rollout_id=replayed_id(request.rollout_id, name),
        run_id=f"{MARK}{name}",
        group_id=replayed_id(request.group_id, name) if request.group_id else "",
        sampling_seed=request.seed_key,
        scorings=(),
    )


def line_of(request: RolloutRequest) -> bytes:
    """Return a line of JSON that `rollcall submit` reads as the same request."""
    values = dataclasses.asdict(request)
    del values["claim"]
    return orjson.dumps(values)
