"""Requests published again: under ids that name the old one and the replay.

An id is `replay/NAME/DIGEST`, the digest that of the old id and the replay's name. So the same
replay done twice asks for the same rollouts, and which were asked for before is seen from the keys
of the topic. What a replay made is recognised by its id alone: under the same name it is not
published again, whatever range it lies in; under another name it is a request like any other.

A replayed rollout is asked as it was: same task, policy, sampling and seed. Its run and group are
the replay's own, so that no run takes it for its own and no group has more members than it should.
"""

import dataclasses
import re

import orjson

from schemas.errors import Refused
from schemas.ids import digest
from schemas.messages import RolloutRequest

MARK = "replay/"
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def checked_name(name: str) -> str:
    """The name itself; raises Refused where it cannot be part of an id."""
    if not NAME.fullmatch(name):
        msg = f"--name {name!r} must be 1-64 of A-Z a-z 0-9 . _ -; it becomes part of ids"
        raise Refused(msg)
    return name


def replayed_id(old: str, name: str) -> str:
    return f"{MARK}{name}/{digest('replay', old, name).hex()}"


def is_replayed(rollout_id: str, name: str) -> bool:
    """Whether an id is one that a replay of this name gave."""
    return rollout_id.startswith(f"{MARK}{name}/")


def replayed(request: RolloutRequest, name: str) -> RolloutRequest:
    """What asks for the same again."""
    return dataclasses.replace(
        request,
        rollout_id=replayed_id(request.rollout_id, name),
        run_id=f"{MARK}{name}",
        group_id=replayed_id(request.group_id, name) if request.group_id else "",
        sampling_seed=request.seed_key,
        scorings=(),
    )


def line_of(request: RolloutRequest) -> bytes:
    """One line of JSON that `rollcall submit` reads back as the same request."""
    values = dataclasses.asdict(request)
    del values["claim"]
    return orjson.dumps(values)
