"""Times as people type them."""

import pytest

from compose.times import duration_s, moment_ms
from schemas.errors import Refused

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("3d", 259_200), (" 1.5m ", 90)]
)
def test_a_duration_has_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "5 minutes", "infs"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(Refused, match="90s, 5m, 2h or 3d"):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2h", NOW_MS - 7_200_000),
        ("2023-11-14", 1_699_920_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500),
    ],
)
def test_a_moment_is_a_duration_ago_or_iso_8601(text: str, at_ms: int) -> None:
    assert moment_ms(text, NOW_MS) == at_ms


@pytest.mark.parametrize("text", ["", "yesterday", "14.11.2023", "2023-13-01"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="no moment"):
        moment_ms(text, NOW_MS)
