"""The bounds of a request, checked in one place."""

from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.bounds import (
    NAME_BYTES,
    check_names,
    check_request,
    check_sampling,
    longest_s,
)
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Limits, RolloutRequest, Sampling, Task

GOOD = RolloutRequest("r", Task("maze", prompt="Go!"))
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ("limits.call_timeout_s", INF),
        ("limits.step_timeout_s", 0.0),
        ("limits.rollout_timeout_s", NAN),
        ("limits.rollout_timeout_s", 1e17),
        ("limits.rollout_timeout_s", 90 * 86_400.0),
        ("limits.max_turns", 0),
        ("limits.max_tries", 2**31),
        ("sampling.temperature", 10**400),
        ("sampling.temperature", -0.5),
        ("sampling.temperature", 1e-40),
        ("sampling.temperature", NAN),
        ("sampling.top_p", 0.0),
        ("sampling.top_k", -1),
        ("sampling.max_tokens", 0),
        ("sampling.stop", ("\udce9",)),
        ("group_size", 0),
        ("task.seed", 2**63),
        ("task.prompt", "\udce9"),
        ("limits.max_wishes", -1),
        ("limits.max_wishes", 2**31),
        ("limits.open_timeout_s", 0.0001),
        ("limits.open_timeout_s", -1.0),
        ("limits.open_timeout_s", NAN),
        ("rollout_id", ""),
        ("rollout_id", "r" * (NAME_BYTES + 1)),
        ("group_id", "\u4e2d" * NAME_BYTES),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(field: str, found: Any) -> None:
    inner, _, name = field.rpartition(".")
    changed: Any = replace(attrgetter(inner)(GOOD), **{name: found}) if inner else found
    request = replace(GOOD, **{inner or name: changed})

    with pytest.raises(Refused, match=field):
        check_request(request)


def test_defaults_and_extreme_allowed_values_are_accepted() -> None:
    limits = Limits(1, 0, 1, 1, 0.001, longest_s(), longest_s(), longest_s(), 2**31 - 1)
    sampling = Sampling(0.0, 1.0, 0, 1, ("stop",))
    check_request(GOOD)

    check_request(replace(GOOD, rollout_id="r" * NAME_BYTES, limits=limits, sampling=sampling))
    check_names(replace(GOOD, user="\u4e2d" * (NAME_BYTES // 3)))


@pytest.mark.parametrize(
    ("least", "only", "said"),
    [
        ({"judge": -1}, {}, "min_policy_version"),
        ({}, {"judge": 2**31}, "policy_version"),
        ({"judge": 3}, {"judge": 2}, "policy_version is 2, below the min_policy_version 3"),
        ({"no such": 0}, {}, "no such"),
        ({"": 0}, {}, "policy"),
        ({"p" * (NAME_BYTES + 1): 0}, {}, "512 bytes"),
    ],
)
def test_version_bounds_apply_to_other_policies_too(
    least: dict[str, int], only: dict[str, int], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        check_request(replace(GOOD, min_policy_versions=least, policy_versions=only))

    check_request(replace(GOOD, min_policy_versions={"judge": 2}, policy_versions={"judge": 2}))


def test_a_rollout_cannot_outlive_its_journal() -> None:
    thirty_days = 30 * 86_400

    assert longest_s() == thirty_days - 86_400


numbers = st.one_of(st.integers(), st.floats(), st.just(10**400))


@given(
    limits=st.builds(Limits, *(numbers,) * 9),
    sampling=st.builds(Sampling, *(numbers,) * 4, st.tuples(st.text())),
    text=st.text(st.characters()),
)
def test_every_accepted_request_can_be_encoded(
    limits: Limits, sampling: Sampling, text: str
) -> None:
    request = replace(GOOD, limits=limits, sampling=sampling, task=replace(GOOD.task, prompt=text))
    try:
        check_request(request)
    except Refused:
        return

    Codec(LocalRegistry()).encode("requests", request)


def test_a_programs_sampling_has_the_bounds_of_a_request() -> None:
    check_sampling(Sampling(0.7, 0.9, 5, 10, ("a",)))
    check_sampling(Sampling(max_tokens=0))

    with pytest.raises(Refused, match=r"sampling\.temperature must be from 0"):
        check_sampling(Sampling(temperature=INF))
