"""Bounds of a request: one check, for requests of our producers and of other producers.

A refusal names the field, the value found and the values allowed. The fold does not check these
bounds: a rollout that was started goes on under the rules it was started with.
"""

import math
import re
from functools import cache
from operator import attrgetter

from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import Quota, RolloutRequest, Sampling
from rollcall.schemas.topics import DAY_MS, checked, manifest
from rollcall.schemas.untrusted_text import describe_value

INT32, INT64 = 2**31 - 1, 2**63 - 1
"""Avro's int has 32 bits and its long 64."""
VERSIONS_END = 2**31 - 2**20
"""Policy versions from here on are refused: such a record would leave no room for later ones."""
SHORTEST_S = 0.001
COLDEST = 1e-6
"""The lowest temperature. Below it, logits overflow float32 and log-probabilities become NaN."""
NAME_BYTES = 512
"""The limit of a name, which is a record's key, a header, and part of every later record."""
COUNTS = {
    "group_size": (1, INT32),
    "min_policy_version": (0, INT32),
    "policy_version": (-1, INT32),
    "parent_position": (-1, INT32),
    "task.seed": (-INT64, INT64),
    "limits.max_turns": (1, INT32),
    "limits.max_tokens": (0, INT32),
    "limits.max_tries": (1, INT32),
    "limits.max_attempts": (1, INT32),
    "limits.max_wishes": (0, INT32),
}
"""Fields and their smallest and largest values."""
TIMES_S = ("limits.call_timeout_s", "limits.step_timeout_s", "limits.rollout_timeout_s")
OPTIONAL_S = ("limits.open_timeout_s",)
"""Limits whose value 0 means that another limit holds."""
NAMES = (
    "rollout_id",
    "agent",
    "policy_id",
    "run_id",
    "purpose",
    "group_id",
    "user",
    "sampling_seed",
    "parent_rollout_id",
    "task.environment",
    "task.task_id",
)
TEXTS = ("agent_config", "task.environment_config", "task.prompt", "task.system")
FIELDS = {name: attrgetter(name) for name in (*COUNTS, *TIMES_S, *OPTIONAL_S, *NAMES, *TEXTS)}
SCORING_ID = re.compile(r"[A-Za-z0-9_.+-]{1,200}", re.ASCII)
"""A scoring's id is a part of its consumer group's name."""
MOST_SCORINGS = 16
"""Scorings that one request may ask for."""
SLOWEST_CALLS_PER_S = 0.001
"""One call in a quarter of an hour. A quota does not serve to forbid calls."""
SAMPLED = {"temperature": (0, INT32), "top_k": (0, INT32), "max_tokens": (0, INT32)}


@cache
def longest_s() -> int:
    """Return the longest wait of a rollout: the retention of its journal, less one day."""
    events = next(spec for spec in manifest() if spec.name == "rollout.events")
    return (int(events.config["retention.ms"]) - DAY_MS) // 1000


def check_request(request: RolloutRequest) -> None:
    """Raise Refused for the first field that is out of bounds."""
    if not request.rollout_id:
        msg = "rollout_id is empty; every rollout needs one of its own"
        raise Refused(msg)
    check_names(request)
    checked(request.policy_id)
    for name in TEXTS:
        _check_text(name, FIELDS[name](request))
    for name, (least, most) in COUNTS.items():
        _check_number(name, FIELDS[name](request), least, most)
    for name in TIMES_S:
        _check_number(name, FIELDS[name](request), SHORTEST_S, longest_s())
    for name in OPTIONAL_S:
        if (found := FIELDS[name](request)) != 0:
            _check_number(f"{name}, where it is not 0,", found, SHORTEST_S, longest_s())
    for policy_id in (*request.min_policy_versions, *request.policy_versions):
        _check_name("a policy of min_policy_versions or policy_versions", policy_id)
        checked(policy_id)
    for policy_id in {request.policy_id, *request.min_policy_versions, *request.policy_versions}:
        _check_versions(*request.versions_for(policy_id))
    _check_number("sampling.max_tokens", request.sampling.max_tokens, 1, INT32)
    check_sampling(request.sampling)
    _check_number("the number of scorings", len(request.scorings), 0, MOST_SCORINGS)
    for scoring_id in request.scorings:
        checked_scoring(scoring_id)


def checked_scoring(scoring_id: str) -> str:
    """Return the scoring id; raise Refused if it cannot be part of a group's name."""
    if not isinstance(scoring_id, str) or not SCORING_ID.fullmatch(scoring_id):
        msg = (
            f"scoring id {describe_value(scoring_id, most=80)} must be 1-200 of A-Z a-z 0-9 _ . + -"
        )
        raise Refused(msg)
    return scoring_id


def _check_versions(least: int, pinned: int) -> None:
    _check_number("min_policy_version", least, *COUNTS["min_policy_version"])
    _check_number("policy_version", pinned, *COUNTS["policy_version"])
    if 0 <= pinned < least:
        msg = (
            f"policy_version is {pinned}, below the min_policy_version "
            f"{least}; no answer could be of both"
        )
        raise Refused(msg)


def check_names(request: RolloutRequest) -> None:
    """Raise Refused for a name that is too long for every record of the rollout."""
    for name in NAMES:
        _check_name(name, FIELDS[name](request))


def _check_name(name: str, found: str) -> None:
    _check_text(name, found)
    if len(found) * 4 > NAME_BYTES and len(found.encode()) > NAME_BYTES:
        size = len(found.encode())
        shown = describe_value(found, most=60)
        msg = f"{name} may have {NAME_BYTES} bytes, found {size:,}: {shown}..."
        raise Refused(msg)


def fitting(rollout_id: str) -> str:
    """Return an id that fits every record of its rollout: itself, or its digest if too long."""
    if len(rollout_id) * 4 <= NAME_BYTES or len(rollout_id.encode()) <= NAME_BYTES:
        return rollout_id
    return f"long-{digest(rollout_id).hex()}"


def check_sampling(sampling: Sampling) -> None:
    """Raise Refused for sampling out of bounds.

    `max_tokens` may be 0 here: a program may ask for no tokens, to have the prompt counted.
    """
    for name, (least, most) in SAMPLED.items():
        _check_number(f"sampling.{name}", getattr(sampling, name), least, most)
    if 0 < sampling.temperature < COLDEST:
        msg = (
            f"sampling.temperature must be 0 (the likeliest token) or at least {COLDEST:g}, found "
            f"{describe_value(sampling.temperature, most=80)}"
        )
        raise Refused(msg)
    _check_number("sampling.top_p", sampling.top_p, math.nextafter(0, 1), 1)
    for stop in sampling.stop:
        _check_text("sampling.stop", stop)


def check_quota(quota: Quota) -> None:
    """Raise Refused for an invalid quota; 0 is no limit."""
    if not quota.user:
        msg = "user is empty; a quota is that of one user"
        raise Refused(msg)
    _check_name("user", quota.user)
    _check_number("running", quota.running, 0, INT32)
    if quota.calls_per_s != 0:
        _check_number("calls_per_s", quota.calls_per_s, SLOWEST_CALLS_PER_S, INT32)


def _check_number(name: str, found: object, least: float, most: float) -> None:
    # NaN fails every comparison, so this form refuses it too.
    if not isinstance(found, int | float) or not least <= found <= most:
        above = "above 0" if 0 < least < SHORTEST_S else str(least)
        msg = f"{name} must be from {above} to {most}, found {describe_value(found, most=80)}"
        raise Refused(msg)


def _check_text(name: str, found: object) -> None:
    if isinstance(found, str) and _is_written(found):
        return
    msg = f"{name} must be a text that UTF-8 can write, found {describe_value(found, most=80)}"
    raise Refused(msg)


def _is_written(text: str) -> bool:
    if text.isascii():  # a flag of the string, so it costs nothing
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
