"""Times as people write them."""

import pytest

from rollcall.consumers.history.reading.times import seconds_of, time_ms
from rollcall.schemas.errors import Refused

NOW_S = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5h", 5400), ("3d", 259_200), (" 1w ", 604_800)],
)
def test_a_duration_is_that_long_before_now(text: str, ago_s: float) -> None:
    assert seconds_of(text) == ago_s
    assert time_ms(text, NOW_S) == int((NOW_S - ago_s) * 1000)


@pytest.mark.parametrize(
    "text", ["2023-11-14T22:13:20", "2023-11-14T22:13:20Z", "2023-11-15T00:13:20+02:00"]
)
def test_an_iso_time_defaults_to_utc(text: str) -> None:
    assert time_ms(text, 0.0) == 1_700_000_000_000


def test_a_day_begins_at_midnight() -> None:
    assert time_ms("2023-11-14", 0.0) == 1_699_920_000_000


@pytest.mark.parametrize("text", ["", "yesterday", "2x", "-2h", "h", "2023-13-01"])
def test_an_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(Refused, match="ISO 8601"):
        time_ms(text, NOW_S)
    with pytest.raises(Refused, match="30m"):
        seconds_of(text)
