"""The limit of running rollouts is AReaL's rule; draws are reproducible.

Golden values: the design's page on algorithms, section 5.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.producers.admission import AdmissionRule, Draws, PublishedRequests
from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import draw_of, group_id
from rollcall.schemas.messages import RolloutRequest, Task

DRAWS = Draws(RolloutRequest("", Task(), run_id="run", purpose="train"), 3, 4, (0, 1000))
COUNTS = st.integers(0, 2000)


@pytest.mark.parametrize(
    ("rule", "version", "accepted", "running", "groups"),
    [
        (AdmissionRule(4, 256, 512, 1), 3, 1024, 100, 412),
        (AdmissionRule(4, 256, 512, 8), 3, 1024, 100, 51),
        (AdmissionRule(2, 64, 512, 1), 0, 150, 42, 0),
        (AdmissionRule(2, 64, 512, 1), 0, 0, 0, 192),
        (AdmissionRule(2, 64, 512, 1), 0, 0, 192, 0),
        (AdmissionRule(2, 64, 512, 1), 0, 64, 128, 0),
        (AdmissionRule(2, 64, 512, 1), 1, 64, 128, 64),
        (AdmissionRule(2, 64, 512, 1), 1, 64, 192, 0),
        (AdmissionRule(2, 64, 512, 1), 1, 54, 192, 10),
        (AdmissionRule(2, 64, 512, 1), 7, 448, 0, 192),
        (AdmissionRule(2, 64, 512, 1), 7, 0, 0, 512),
        (AdmissionRule(0, 4, 8, 1), 0, 4, 0, 0),
        (AdmissionRule(0, 4, 8, 1), 0, 3, 0, 1),
    ],
)
def test_the_rule_grants_the_published_numbers(
    rule: AdmissionRule, version: int, accepted: int, running: int, groups: int
) -> None:
    assert rule.grant(version, accepted, running) == groups


@given(st.integers(0, 4), st.integers(1, 8), COUNTS, st.integers(0, 50), COUNTS, COUNTS)
def test_a_grant_stays_within_its_bounds_by_less_than_a_group(
    staleness: int, size: int, room: int, version: int, accepted: int, running: int
) -> None:
    rule = AdmissionRule(staleness, 4 * size, size + room, size)

    granted = rule.grant(version, accepted, running) * size

    bound = min(rule.max_running, (staleness + version + 1) * rule.batch - accepted)
    assert granted == 0 or running + granted <= bound
    assert granted + running + size > bound


@given(st.integers(0, 4), st.integers(1, 8), st.integers(0, 50), st.integers(0, 2000))
def test_granted_groups_are_trained_on_before_they_become_stale(
    staleness: int, size: int, version: int, waiting: int
) -> None:
    rule = AdmissionRule(staleness, 4 * size, 10_000, size)
    accepted = version * rule.batch + waiting

    for group in range(rule.grant(version, accepted, 0)):
        assert 0 <= rule.batches_ahead(version, accepted + group * size) <= staleness


@pytest.mark.parametrize(("started", "ahead"), [(0, 0), (640, 0), (703, 0), (704, 1), (831, 2)])
def test_batches_ahead_are_complete_ones_beyond_the_steps_taken(started: int, ahead: int) -> None:
    assert AdmissionRule(2, 64, 512, 1).batches_ahead(10, started) == ahead


def test_a_bound_below_one_group_is_refused() -> None:
    with pytest.raises(Refused, match=r"max_running is 7, .* group_size 8"):
        AdmissionRule(2, 64, 7, 8)


def test_a_draw_always_gives_the_same_group() -> None:
    group = DRAWS.group(5)

    assert group == DRAWS.group(5)
    assert len({request.rollout_id for request in group + DRAWS.group(6)}) == 8
    assert {draw_of("run", request.group_id) for request in group} == {5}
    assert len({request.task.seed for request in group}) == 1


@pytest.mark.parametrize(
    "group", ["", "5", "run/", "run/-1", "run/05", "run/²", "other/5", "run/5/x", f"run/{10**40}"]
)
def test_a_group_not_drawn_by_admission_has_no_draw(group: str) -> None:
    assert draw_of("run", group) == -1
    assert draw_of("run", group_id("run", 0)) == 0


def test_requests_unpublished_by_a_crash_are_found() -> None:
    published = PublishedRequests("run", first=2)
    for request in [*DRAWS.group(1), *DRAWS.group(3)[1:], *DRAWS.group(4)[:2]]:
        published.take(request)
    published.take(replace(DRAWS.group(9)[0], run_id="other"))
    published.take(replace(DRAWS.group(9)[0], purpose="evaluate"))

    missing = list(published.unfinished(DRAWS.group))

    assert missing == [*DRAWS.group(2), DRAWS.group(3)[0], *DRAWS.group(4)[2:]]
