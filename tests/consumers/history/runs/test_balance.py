"""Servers are added if the trainer waits, and removed if samples are not used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.history.runs.balance_report import proposed_servers


@pytest.mark.parametrize(
    ("servers", "wait_share", "consumed", "entered", "proposed"),
    [
        (6, 0.269, 100, 100, 9),
        (11, 0.021, 700, 1000, 9),
        (11, 0.07, 700, 1000, 11),
        (4, 0.0, 1000, 1000, 4),
        (4, 0.0, 0, 0, 4),
        (1, 0.0, 0, 1000, 1),
        (2, 1.0, 5, 5, 20),
    ],
)
def test_proposals_match_the_golden_values(
    servers: int, wait_share: float, consumed: int, entered: int, proposed: int
) -> None:
    assert proposed_servers(servers, wait_share, consumed, entered) == proposed


@given(st.integers(1, 500), st.floats(0, 1), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_proposal_is_between_one_and_tenfold(
    servers: int, wait_share: float, consumed: int, entered: int
) -> None:
    assert 1 <= proposed_servers(servers, wait_share, consumed, entered) <= 10 * servers
